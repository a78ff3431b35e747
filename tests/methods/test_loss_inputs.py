"""What the losses are made from: class centres, weights of the teacher, and pixels."""

import pytest
import torch

from refilled.methods.refilled_settings import TwoStageSettings
from refilled.methods.refilled_terms import ClassifierTerm

from .world import (
    POSTERIORS,
    WEIGHTS,
    first_batch,
    gradients,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    values,
)


@pytest.mark.parametrize("augment", ["none", "crop-flip", "resized-crop-flip"])
def test_centres_are_those_of_the_training_images_as_they_are(teacher, augment):
    """More images than the centres are made from at once, each counted once, whatever the augmentation."""
    batches = make_batches(size=300, batch_size=64, augment=augment)
    term = ClassifierTerm(teacher, batches, 4, TwoStageSettings())
    with torch.no_grad():
        embeddings = teacher.embed(batches.source.images.float() / 255)
    expected = torch.stack([embeddings[batches.labels == c].mean(dim=0) for c in range(4)])
    torch.testing.assert_close(term.centres, expected, rtol=1e-4, atol=1e-5)
    assert not term.centres.requires_grad


def test_centres_are_made_once_for_the_whole_stage(teacher, student, batches):
    stage = make_stages("refilled-lkd", teacher, student, batches)[0]
    batch = first_batch(batches)
    before = values(stage, batch)
    batches.source.images = torch.zeros_like(batches.source.images)
    assert values(stage, batch) == before


@pytest.mark.parametrize("classes", [1, 2, 4, 9])
def test_head_weights_with_a_teacher_of_any_number_of_classes(student, batches, classes):
    teacher = make_teacher([f"thing {i}" for i in range(classes)])
    batch = first_batch(batches)
    term = ClassifierTerm(teacher, batches, 4, TwoStageSettings())
    z, own = teacher(batch.images)
    weights = term.weights(student(batch.images)[1], z, term.scores(z), batch.labels)
    confidence = own.double().softmax(1).amax(1)
    raw = 2 * confidence / (1 + confidence)  # 2 σ(log p)
    if classes == 1:
        assert weights.tolist() == [1.0] * len(batch)
    else:
        torch.testing.assert_close(
            weights.double(), (raw - raw.min()) / (raw.max() - raw.min()), rtol=1e-3, atol=1e-4
        )
        assert weights.min() == 0
        assert weights.max() == 1
    assert not weights.requires_grad


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_class_without_training_images_does_no_harm(teacher, weight):
    student = make_student(["fox", "ant", "hen", "ibis", "jay"])
    batches = make_batches()
    for posterior in POSTERIORS:
        stage = make_stages("refilled-lkd", teacher, student, batches, posterior=posterior, weight=weight)[0]
        terms = stage.loss(first_batch(batches))
        assert all(term.isfinite() for term in terms.values())
        assert all(g.isfinite().all() for g in gradients(sum(terms.values()), student).values())


def test_both_networks_see_the_same_augmented_pixels(teacher, student, monkeypatch):
    batches = make_batches(augment="crop-flip")
    seen = {"teacher": [], "student": []}
    for name, network in (("teacher", teacher), ("student", student)):

        def spy(images, name=name, prepare=network.prepare):
            seen[name].append(images)
            return prepare(images)

        monkeypatch.setattr(network, "prepare", spy)
    stages = make_stages("refilled-two-stages", teacher, student, batches)
    seen["teacher"].clear()  # those of the class centres
    for stage in stages:
        batch = first_batch(batches)
        stage.loss(batch)
        for images in (seen["teacher"].pop(), seen["student"].pop()):
            assert torch.equal(images, batch.images)
    assert seen == {"teacher": [], "student": []}
