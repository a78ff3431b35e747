"""Recipes are judged on validation images, and their cells are apart from all others."""

from dataclasses import replace

import pytest
import torch

from refilled.suite import TABLES, Bench, Ledger, Places, cells_of, get_table, render, tiny_cell
from refilled.suite.judging import OverSeeds
from refilled.suite.tables.recipes import ALONE, ALONE_MIXED, RECIPES, alone, cell
from refilled.suite.validation import blind, without_test

POINT = {"overlap": 100, "shots": 50, "epochs": 200}


def test_every_recipe_is_a_training_of_its_own():
    keys = {name: cell(POINT, name).key for name in RECIPES}
    assert len(set(keys.values())) == len(RECIPES)
    assert cell(POINT, "few").resolved()["method"]["imitation"] == 5
    assert cell(POINT, ALONE).teacher is None


def test_settings_that_a_method_does_not_have_are_no_recipe():
    """A name that is misspelt in a recipe would be left out silently."""
    for name, (_, settings) in RECIPES.items():
        found = cell(POINT, name).resolved()
        known = found["method"] | {"unlabelled_classes": found["data"]["unlabelled_classes"]}
        assert {setting: known[setting] for setting in settings} == settings


def test_what_sees_mixtures_is_compared_with_a_student_that_does():
    mixed, plain = cell(POINT, ALONE_MIXED), cell(POINT, ALONE)
    assert mixed.key != plain.key
    assert alone(POINT | {"recipe": "few + mixtures"}).key == mixed.key
    assert alone(POINT | {"recipe": "few"}).key == alone(POINT | {"recipe": ALONE_MIXED}).key == plain.key


def test_a_line_of_progress_tells_recipes_apart():
    said = {cell(POINT, name).describe() for name in RECIPES}
    assert len(said) == len(RECIPES)
    assert "refilled-few, imitation 15.0, imitation_new 5.0 of wrn-40-2" in " ".join(said)


def test_a_head_speaks_where_it_knows_all_classes():
    assert cell(POINT, "few + head").resolved()["method"]["head_same"] == 1
    assert cell(POINT | {"overlap": 60}, "few + head") is None
    of_others = {
        overlap: cell(POINT | {"overlap": overlap}, "few + unlabelled + head") for overlap in (0, 60, 100)
    }
    assert of_others.pop(0) is None  # it knows none of them
    assert {dict(found.settings)["head_unlabelled"] for found in of_others.values()} == {1.0}


@pytest.mark.parametrize("recipe", ["plain distillation", "decoupled distillation"])
def test_distillation_of_logits_is_for_the_same_classes(recipe):
    assert cell(POINT, recipe).method in ("kd", "dkd")
    assert all(cell(POINT | {"overlap": overlap}, recipe) is None for overlap in (0, 60))


def test_only_all_images_are_tried_in_half_the_epochs():
    assert dict(cell(POINT, ALONE).settings)["epochs"] == 200
    assert cell(POINT | {"epochs": 100}, ALONE) is None
    for epochs in (100, 200):
        assert dict(cell(POINT | {"shots": None, "epochs": epochs}, ALONE).settings)["epochs"] == epochs


def test_the_cell_of_the_test_images_is_another_one():
    held_out = cell(POINT, "two stages")
    on_test = replace(held_out, on_validation=False)
    assert held_out.key != on_test.key
    assert held_out.world != on_test.world
    assert "on_validation" not in on_test.to_json()


@pytest.fixture
def finished(tmp_path):
    chosen = [tiny_cell(cell(POINT, name)) for name in (ALONE, "few")]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    said = []
    Bench(ledger, Places(None, tmp_path), "cpu", said.append).run(chosen)
    return chosen, ledger, said


def test_test_images_are_not_read(finished, tmp_path):
    chosen, ledger, said = finished
    for one in chosen:
        record = ledger.of(one)
        held_out = without_test(one, Places(None, tmp_path))
        assert record["test_accuracy"] is None
        assert 0 <= record["val_accuracy"] <= 1
        assert record["test_images"] == len(held_out.val) == len(held_out.test)
        assert torch.equal(held_out.test.labels, held_out.val.labels)
    assert sum("on validation" in line for line in said) == 2


def test_the_ledger_keeps_them_and_runs_nothing_twice(finished, tmp_path):
    chosen, ledger, _ = finished
    again = Ledger(ledger.path)
    assert not again.broken
    assert all(map(again.has, chosen))
    said = []
    Bench(again, Places(None, tmp_path), "cpu", said.append).run(chosen)
    assert not [line for line in said if "on validation" in line]


def test_the_page_says_what_it_was_judged_on(finished, tmp_path):
    _, ledger, _ = finished
    page = render(TABLES["recipes"], ledger, OverSeeds(1), tiny=True)
    assert "Accuracy on validation images in percent" in page
    assert "| few |" in page


def test_all_images_are_asked_for_by_their_name():
    table = get_table("recipes")
    where = table.where({}, ("shots=all", "recipe=few", "epochs=100"))
    assert [point["shots"] for point in table.points(where)] == [None] * 3


def test_what_was_asked_for(tmp_path):
    table = get_table("recipes")
    where = table.where({"overlap": (100,), "shots": (50,)}, ("recipe=few",))
    assert [c.key for c in cells_of(table, where, OverSeeds(2))] == [
        cell(POINT, "few").with_seed(seed).key for seed in range(2)
    ]


def test_a_teacher_of_shared_classes_has_not_seen_what_is_held_out():
    for overlap, seen in ((0, 0.0), (60, 0.2), (100, 0.2)):
        found = cell(POINT | {"overlap": overlap}, "few")
        assert dict(found.teacher.settings)["val_fraction"] == seen
        assert dict(found.settings)["val_fraction"] == 0.2


def test_who_shares_images_with_its_teacher():
    found = replace(cell(POINT, "few"), teacher=replace(cell(POINT, "few").teacher, settings=()))

    def blinded(**changes):
        return dict(blind(replace(found, **changes)).teacher.settings).get("val_fraction") is not None

    assert [blinded(classes=classes) for classes in ("50:100", "49:100", "0:1", None, "cat,dog")] == [
        False, True, True, True, True,
    ]  # fmt: skip
    assert blinded(classes="50:100", class_order="default")
    assert not blinded(classes=None, data="digits")
    above = replace(found.teacher, seed=7)
    taught = blind(replace(found, classes=None, teacher=replace(found.teacher, taught_by=above))).teacher
    assert dict(taught.taught_by.settings) == {"val_fraction": 0.2}
    assert blind(replace(found, teacher=None)).teacher is None
