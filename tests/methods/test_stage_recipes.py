"""A stage says all that decides what it does: trainings with the same first stage share it."""

import dataclasses

import pytest
import torch

from refilled.errors import UserError
from refilled.methods import METHODS, get_method
from refilled.methods.keeping import keeping_stages

from .world import first_batch, make_batches, make_stages, make_student, make_teacher, values

FIRST = (
    "refilled",
    "refilled-two-stages",
    "refilled-emb",
    "refilled-minus",
    "refilled-stage1",
    "refilled-paper",
)
OTHER_VALUES = {
    float: (0.25, 0.5, 3.0), int: (1, 2), bool: (True, False), str: ("pl", "none", "cosine"),
    type(None): (0.5, 1, 2),
}  # fmt: skip


def first_stage(name, batches, **settings):
    return make_stages(name, make_teacher(), make_student(), batches, epochs=8, **settings)[0]


def changes(name):
    """Each setting of a method by itself, with other values that it may have."""
    own = get_method(name).settings()
    for field in dataclasses.fields(own):
        for value in OTHER_VALUES[type(getattr(own, field.name))]:
            if value != getattr(own, field.name):
                yield field.name, value


@pytest.mark.parametrize("name", FIRST)
def test_whatever_changes_the_first_stage_changes_its_recipe(name):
    batches = make_batches()
    usual, batch = first_stage(name, batches), first_batch(batches)

    def terms(stage):
        torch.manual_seed(0)  # mixtures are drawn
        return values(stage, batch)

    expected, told, seen = terms(usual), [], set()
    for setting, value in changes(name):
        try:
            stage = first_stage(name, batches, **{setting: value})
        except UserError:  # no such value, or not for these classes
            continue
        if (stage.name, stage.epochs) != (usual.name, usual.epochs):
            continue
        if terms(stage) != expected:
            assert stage.recipe != usual.recipe, (setting, value)
            seen.add(setting)
        elif stage.recipe == usual.recipe:
            told.append(setting)
    assert {"comparison_tau_student", "comparison_tau_teacher", "comparison_scale"} <= seen
    if name in ("refilled", "refilled-two-stages"):
        assert {"imitation", "imitation_new"} <= seen
        assert {"strength", "fade"} <= set(told)


def test_images_without_labels_belong_to_it():
    with_others = make_batches(size=48)
    with_others = type(with_others)(
        with_others.source, with_others.labels[:24], 12, unlabelled=12
    )  # the last 24 images have no labels
    recipes = {
        first_stage("refilled", with_others, imitation_unlabelled=weight).recipe
        for weight in (0.0, 1.0, 30.0)
    }
    assert len(recipes) == 3


def test_variants_with_the_same_first_stage_say_the_same():
    batches = make_batches()
    same = [
        first_stage(name, batches).recipe
        for name in ("refilled-two-stages", "refilled-minus", "refilled-emb")
    ]
    assert len(set(same)) == 1
    assert first_stage("refilled", batches).recipe not in same
    assert first_stage("refilled-emb", batches, group=4).recipe not in same
    assert first_stage("refilled-paper", batches).recipe not in same


def test_no_other_stage_is_taken_for_another():
    """Who says nothing shares nothing; a stage that keeps old classes does more than its recipe says."""
    batches, teacher = make_batches(), make_teacher(["ibis", "hen", "ant", "fox"])
    for name in METHODS:
        for stage in make_stages(name, teacher, make_student(), batches, 8):
            assert stage.recipe is None or stage.name == "embedding", name
    method, teacher, own = get_method("refilled"), make_teacher(["a", "b"]), make_student().classes
    student = make_student(["a", "b", "fox", "Ant", "hen", "ibis"])
    for weight in (0.0, 1.0):
        for stage in keeping_stages(
            method, teacher, student, own, batches, method.settings(), 8, weight=weight, tau=2.0
        ):
            assert stage.recipe is None or stage.judge == "embedding"
