"""Born-again networks: who teaches whom, and where a generation starts."""

import pytest
import torch
from torch.nn import functional as F

from objectives import reference
from refilled.errors import UserError
from refilled.methods.ban import lifetimes

from .test_stages import run
from .world import STUDENT_CLASSES, first_batch, make_batches, make_stages, make_teacher, same_state, state

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


@pytest.mark.parametrize("changes", [{}, {"tau": 3.0, "label_weight": 0.5}], ids=str)
def test_first_generation_is_taught_by_the_teacher(student, batches, changes):
    teacher, batch = make_teacher(STUDENT_CLASSES), first_batch(batches)
    (stage,) = make_stages("ban", teacher, student, batches, epochs=5, **changes)
    assert (stage.name, stage.epochs, stage.begin, stage.beside) == ("generation 1", 5, None, None)
    logits, wanted = student(batch.images)[1], teacher(batch.images)[1]
    kd = reference.kd(logits.double(), wanted.double(), tau=changes.get("tau", 1.0))
    labels = changes.get("label_weight", 0.0) * F.cross_entropy(logits, batch.labels)
    terms = stage.loss(batch)
    torch.testing.assert_close(terms["kd"].double(), kd, **CLOSE)
    torch.testing.assert_close(terms["cross_entropy"], labels)


def test_each_generation_starts_anew_and_is_taught_by_the_one_before(student, batches):
    teacher, batch = make_teacher(["ibis", "hen", "ant", "fox"]), first_batch(batches)
    made = make_stages("ban", teacher, student, batches, epochs=7, generations=3)
    assert [stage.epochs for stage in made] == [2, 2, 3]
    assert [stage.name for stage in made] == ["generation 1", "generation 2", "generation 3"]
    starts, grown = [state(student)], {}
    for number, stage in enumerate(made):
        if number:
            stage.begin()
            assert same_state(stage.asks, grown)
            assert stage.beside is stage.asks
            assert not any(p.requires_grad for p in stage.asks.parameters())
            starts.append(state(student))
            student.eval()
            expected = reference.kd(
                student(batch.images)[1].double(), stage.asks(batch.images)[1].double(), tau=1.0
            )
            torch.testing.assert_close(stage.loss(batch)["kd"].double(), expected, **CLOSE)
        run(stage, student, batches)
        grown = state(student)
        assert all(not torch.equal(p, starts[-1][n]) for n, p in student.named_parameters())
    weights = [name for name in starts[0] if name.endswith("weight") and starts[0][name].ndim > 1]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not any(torch.equal(starts[a][name], starts[b][name]) for name in weights)


def test_fresh_weights_follow_from_the_seed(student):
    teacher = make_teacher(STUDENT_CLASSES)

    def start(seed):
        stage = make_stages("ban", teacher, student, make_batches(seed=seed), generations=2)[1]
        torch.rand(3)  # whatever the process draws meanwhile
        kept = state(student)
        stage.begin()
        found = state(student)
        student.load_state_dict(kept)
        return found

    one, same, other = start(0), start(0), start(1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    fresh_norm = [value for name, value in one.items() if name.endswith("running_mean")]
    assert all(not value.any() for value in fresh_norm)


@pytest.mark.parametrize(
    ("epochs", "generations", "expected"),
    [(10, 1, [10]), (10, 2, [5, 5]), (10, 3, [3, 3, 4]), (3, 3, [1, 1, 1])],
)
def test_lifetimes(epochs, generations, expected):
    assert lifetimes(epochs, generations) == expected


def test_more_generations_than_epochs_are_refused(student, batches):
    with pytest.raises(UserError, match="3 generations need at least 3 epochs, not 2"):
        make_stages("ban", make_teacher(STUDENT_CLASSES), student, batches, epochs=2, generations=3)
