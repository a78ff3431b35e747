"""Mixtures of images, of labels and of weights, against loops over the batch."""

import pytest
import torch
from torch.nn import functional as F

from refilled.data import Batch
from refilled.errors import UserError
from refilled.fewshot import RefilledTasks
from refilled.methods.mixtures import show
from refilled.methods.refilled_settings import FewSettings

from .world import first_batch, make_batches, make_stages, make_student, make_teacher, values


@pytest.fixture
def world():
    return make_teacher().requires_grad_(False), make_student(), make_batches()


def seen_of(batch: Batch, seed: int = 5):
    torch.manual_seed(seed)
    return show(batch, True)


def shares_of(batch: Batch, seed: int = 5) -> list[float]:
    torch.manual_seed(seed)
    return torch.rand(len(batch)).tolist()


def test_without_them_everything_is_as_it_was(world):
    batch = first_batch(world[2])
    seen = show(batch, False)
    assert seen.images is batch.images
    logits = torch.randn(len(batch), 4)
    assert torch.equal(seen.cross_entropy(logits), F.cross_entropy(logits, batch.labels))
    assert torch.equal(seen.by_class(torch.arange(4.0)), batch.labels.float())


def test_each_image_is_blended_with_the_one_before_it(world):
    batch = first_batch(world[2])
    seen, shares = seen_of(batch), shares_of(batch)
    assert torch.equal(seen.images[: len(batch)], batch.images)
    for row, share in enumerate(shares):
        expected = share * batch.images[row] + (1 - share) * batch.images[row - 1]
        torch.testing.assert_close(seen.images[len(batch) + row], expected)


def test_labels_and_values_of_classes_are_blended_alike(world):
    batch = first_batch(world[2])
    seen, shares, labels = seen_of(batch), shares_of(batch), batch.labels.tolist()
    logits, of_class = torch.randn(2 * len(batch), 4, dtype=torch.float64), [3.0, 0.5, 1.0, 2.0]
    right = -logits.log_softmax(dim=1)
    total = sum(float(right[row, label]) for row, label in enumerate(labels))
    for row, share in enumerate(shares):
        mixture = right[len(batch) + row]
        total += float(share * mixture[labels[row]] + (1 - share) * mixture[labels[row - 1]])
    assert float(seen.cross_entropy(logits)) == pytest.approx(total / (2 * len(batch)), rel=1e-5)
    found = seen.by_class(torch.tensor(of_class)).tolist()
    assert found[: len(batch)] == [of_class[label] for label in labels]
    assert found[len(batch) :] == pytest.approx(
        [s * of_class[labels[i]] + (1 - s) * of_class[labels[i - 1]] for i, s in enumerate(shares)]
    )


def test_a_batch_of_one_is_blended_with_itself(world):
    batch = first_batch(world[2])
    one = Batch(batch.images[:1], batch.labels[:1], batch.rows[:1])
    seen = show(one, True)
    torch.testing.assert_close(seen.images[1], seen.images[0])
    assert seen.cross_entropy(torch.zeros(2, 4)) == pytest.approx(torch.tensor(4.0).log().item())


def test_known_answers_are_used_for_images_and_mixtures_are_asked(world):
    teacher, _, batches = world
    batch = first_batch(batches)
    known = Batch(batch.images, batch.labels, batch.rows, answers=torch.zeros(len(batch), teacher.dim))
    seen = seen_of(known)
    found = seen.teacher_embeddings(teacher, known)
    assert not found[: len(batch)].any()
    assert torch.equal(found[len(batch) :], teacher.embed(seen.images[len(batch) :]))


@pytest.mark.parametrize("number", [0, 1])
def test_both_stages_see_them(world, number):
    """The student sees images and mixtures in one pass; comparisons and local distillation are of images."""
    teacher, student, batches = world
    batch = first_batch(batches)
    chosen = {"imitation": 3.0, "imitation_new": 0.5, "strength": 1.0, "mixtures": True}
    stage = make_stages("refilled", teacher, student, batches, **chosen)[number]
    torch.manual_seed(5)
    terms = values(stage, batch)
    seen, count = seen_of(batch), len(batch)
    student_z, logits = student(seen.images)
    mapped, wanted = stage.beside.linear(student_z), teacher.embed(seen.images)
    apart = 1 - torch.cosine_similarity(mapped.double(), wanted.double())
    weights = seen.by_class(torch.tensor([3.0, 3.0, 0.5, 0.5]))  # the teacher knows fox and Ant
    assert terms.pop("imitation") == pytest.approx(float((weights * apart).mean().detach()), rel=1e-5)
    if number:
        assert terms.pop("cross_entropy") == pytest.approx(
            float(seen.cross_entropy(logits).detach()), rel=1e-5
        )
    assert set(terms) == ({"local_kd"} if number else {"comparison"})
    assert len(student_z) == 2 * count


def test_the_student_alone_sees_them_too(world):
    _, student, batches = world
    batch = first_batch(batches)
    (stage,) = make_stages("student", None, student, batches, mixtures=True)
    torch.manual_seed(5)
    found = values(stage, batch)["cross_entropy"]
    seen = seen_of(batch)
    assert found == pytest.approx(float(seen.cross_entropy(student(seen.images)[1]).detach()), rel=1e-5)


def test_few_shot_students_do_not():
    with pytest.raises(UserError, match="see no mixtures"):
        RefilledTasks(None, None, None, settings=FewSettings(mixtures=True))
