"""What each stage trains, for how long, and that the teacher stays as it is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.errors import UserError
from refilled.methods.refilled_settings import RefilledSettings
from refilled.methods.stage import share

from .world import (
    ALL_METHODS,
    SAME_CLASSES,
    TWO_STAGES,
    first_batch,
    gradients,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    same_state,
    state,
    values,
)

TERMS = {
    "student": [("classifier", ["cross_entropy"])],
    "refilled": [("embedding", ["comparison", "imitation"]), ("classifier", ["cross_entropy", "imitation"])],
    "refilled-emb": [("embedding", ["comparison"]), ("classifier", ["cross_entropy"])],
    "refilled-lkd": [("classifier", ["cross_entropy", "local_kd"])],
    "refilled-minus": [("embedding", ["comparison"]), ("classifier", ["cross_entropy", "local_kd"])],
    "refilled-gamma": [("joint", ["cross_entropy", "local_kd", "comparison"])],
    "refilled-paper": [("embedding", ["comparison"]), ("classifier", ["cross_entropy", "local_kd"])],
    "refilled-authors": [("embedding", ["comparison"]), ("classifier", ["cross_entropy", "local_kd"])],
    "rkd": [("embedding", ["distance", "angle"]), ("classifier", ["cross_entropy"])],
    "sp": [("classifier", ["cross_entropy", "similarity"])],
    "aml": [("embedding", ["asymmetric"]), ("classifier", ["cross_entropy"])],
    "seed": [("embedding", ["similarity"]), ("classifier", ["cross_entropy"])],
    "seed-supervised": [("embedding", ["similarity"]), ("classifier", ["cross_entropy"])],
    "refilled-two-stages": [
        ("embedding", ["comparison"]),
        ("classifier", ["cross_entropy", "local_kd"]),
    ],
    "refilled-few": [("classifier", ["cross_entropy", "local_kd", "imitation"])],
    "crd": [("classifier", ["cross_entropy", "student", "teacher"])],
}


def run(stage, student, batches, epochs=1, lr=0.05):
    """Train by plain SGD with weight decay and momentum, all that a loop may do to what it is given."""
    optimizer = torch.optim.SGD(stage.parameters, lr=lr, momentum=0.9, weight_decay=1e-2)
    student.train()
    for epoch in range(epochs):
        for batch in batches.epoch(epoch):
            optimizer.zero_grad(set_to_none=True)
            sum(stage.loss(batch).values()).backward()
            optimizer.step()


@pytest.mark.parametrize("name", ALL_METHODS)
def test_stages_and_their_terms(name):
    student, batches = make_student(), make_batches()
    stages = make_stages(name, make_teacher(), student, batches)
    assert [(stage.name, list(stage.loss(first_batch(batches)))) for stage in stages] == TERMS[name]


@pytest.mark.parametrize("name", ALL_METHODS)
def test_what_is_trained_and_how_it_is_judged(name):
    """Only matching of embeddings leaves the head alone; only it is judged by the embedding."""
    student = make_student()
    of_head = {id(parameter) for parameter in student.head.parameters()}
    whole = {id(parameter) for parameter in student.parameters()}
    for stage in make_stages(name, make_teacher(), student, make_batches()):
        trained = [id(parameter) for parameter in stage.parameters]
        assert len(trained) == len(set(trained))
        first = stage.name == "embedding"
        beside = {id(parameter) for parameter in stage.beside.parameters()} if stage.beside else set()
        assert set(trained) == (whole - of_head if first else whole) | beside
        assert stage.judge == ("embedding" if first else "classifier")


@pytest.mark.parametrize("name", TWO_STAGES)
def test_first_stage_leaves_the_head_without_gradient_and_unchanged(name):
    student, batches = make_student(), make_batches()
    stage = make_stages(name, make_teacher(), student, batches)[0]
    head = [parameter.detach().clone() for parameter in student.head.parameters()]
    before = state(student)
    run(stage, student, batches, lr=1e-3)
    assert all(parameter.grad is None for parameter in student.head.parameters())
    assert all(torch.equal(now, then) for now, then in zip(student.head.parameters(), head))
    for parameter_name, parameter in student.named_parameters():
        if not parameter_name.startswith("head."):
            assert not torch.equal(parameter, before[parameter_name]), f"{parameter_name} is not trained"


@pytest.mark.parametrize("name", [name for name in ALL_METHODS if name != "refilled-emb"])
def test_last_stage_trains_everything(name):
    student, batches = make_student(), make_batches()
    stage = make_stages(name, make_teacher(), student, batches)[-1]
    found = gradients(sum(stage.loss(first_batch(batches)).values()), student)
    assert all(gradient is not None for gradient in found.values())
    before = state(student)
    run(stage, student, batches)
    assert all(not torch.equal(parameter, before[key]) for key, parameter in student.named_parameters())


@pytest.mark.parametrize("name", [*ALL_METHODS, *SAME_CLASSES])
def test_teacher_never_changes(name):
    """Though its parameters could be trained here: no gradient, no weight, no running statistic."""
    teacher = make_teacher(["ibis", "hen", "ant", "fox"]) if name in SAME_CLASSES else make_teacher()
    before = state(teacher)
    student, batches = make_student(), make_batches(augment="crop")
    for stage in make_stages(name, teacher, student, batches):
        assert not {id(p) for p in stage.parameters} & {id(p) for p in teacher.parameters()}
        run(stage, student, batches, epochs=2)
    assert same_state(teacher, before)
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not any(module.training for module in teacher.modules())


def test_student_stays_in_training_mode_while_stages_are_made():
    student = make_student()
    before = state(student)
    for name in ALL_METHODS:
        make_stages(name, make_teacher(), student, make_batches())
    assert all(module.training for module in student.modules())
    assert same_state(student, before)


@pytest.mark.parametrize("name", ["refilled", "refilled-gamma", "refilled-lkd"])
def test_training_lowers_the_loss(name):
    student, batches = make_student(), make_batches(size=32, batch_size=32)
    for stage in make_stages(name, make_teacher(), student, batches):
        batch = first_batch(batches)
        before = sum(values(stage, batch).values())
        run(stage, student, batches, epochs=20, lr=0.002)
        assert sum(values(stage, batch).values()) < 0.95 * before, stage.name


# --- epochs -------------------------------------------------------------------------------------------

_TEACHER, _STUDENT, _BATCHES = make_teacher(), make_student(), make_batches(size=8)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.integers(2, 2000), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_shares_of_epochs(epochs, first_share):
    first, second = share(epochs, first_share)
    assert first + second == epochs
    assert first >= 1
    assert second >= 1
    # As asked to within rounding, unless one stage would get nothing.
    assert abs(first - epochs * first_share) <= 0.5 + 1e-9 or 1 in (first, second)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    st.sampled_from(ALL_METHODS),
    st.integers(2, 1000),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_epochs_of_all_stages_add_up(name, epochs, first_share):
    changes = {"embedding_share": first_share} if name in TWO_STAGES else {}
    stages = make_stages(name, _TEACHER, _STUDENT, _BATCHES, epochs, **changes)
    assert sum(stage.epochs for stage in stages) == epochs
    assert all(isinstance(stage.epochs, int) and stage.epochs >= 1 for stage in stages)
    assert len(stages) == (2 if name in TWO_STAGES else 1)
    if len(stages) == 2:
        assert stages[0].epochs == share(epochs, first_share)[0]


@pytest.mark.parametrize(
    ("epochs", "of", "expected"),
    [(200, 0.5, (100, 100)), (200, 0.2, (40, 160)), (3, 0.5, (2, 1)), (2, 0.99, (1, 1)), (10, 0.01, (1, 9))],
)
def test_shares_by_hand(epochs, of, expected):
    assert share(epochs, of) == expected


@pytest.mark.parametrize("name", TWO_STAGES)
def test_two_stages_refuse_a_single_epoch(name):
    with pytest.raises(UserError, match="at least 2 epochs, not 1"):
        make_stages(name, _TEACHER, _STUDENT, _BATCHES, 1)


@pytest.mark.parametrize("name", sorted(set(ALL_METHODS) - set(TWO_STAGES)))
def test_one_stage_takes_a_single_epoch(name):
    (stage,) = make_stages(name, _TEACHER, _STUDENT, _BATCHES, 1)
    assert stage.epochs == 1


@pytest.mark.parametrize("wrong", [1.0, -0.5, 2.0, float("nan")])
def test_shares_out_of_range_are_refused(wrong):
    with pytest.raises(UserError, match="embedding_share"):
        RefilledSettings(embedding_share=wrong)


@pytest.mark.parametrize(
    "name", ["refilled", "refilled-two-stages", "refilled-emb", "refilled-stage1", "refilled-gamma"]
)
def test_images_of_a_class_come_side_by_side_where_comparisons_are_learnt(name):
    networks = make_teacher(), make_student(), make_batches()
    stages = make_stages(name, *networks, group=3)
    assert [stage.group for stage in stages] == [3, 1][: len(stages)]
    assert all(stage.group == 1 for stage in make_stages(name, *networks))
    with pytest.raises(UserError, match="group must be at least 2"):
        make_stages(name, *networks, group=1)
