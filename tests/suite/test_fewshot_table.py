"""The table of few-shot tasks: what its cells are, and what is published."""

import pytest

from refilled.errors import UserError
from refilled.fewshot import METHODS, settings_of
from refilled.suite import cells_of, fewshot, get_table

TABLE = get_table("miniimagenet-fewshot")


def test_every_cell_exists():
    points = list(TABLE.points())
    assert len(points) == 2 * len(METHODS) * 4
    for point in points:
        cell = TABLE.cell(point)
        assert (cell.classes, cell.val_classes, cell.network.classes) == ("80:100", "64:80", "0:64")
        assert (cell.ways, cell.queries, cell.network.network) == (5, 15, "convnet-4")
        assert len(cell.key) == 16
        published = TABLE.published(point)
        assert published is None or 40 < published < 85


def test_nothing_is_run_twice():
    cells = cells_of(TABLE, {}, TABLE.judge())
    assert len(cells) == len({cell.key for cell in cells}) == 4 * (len(METHODS) + 2)  # two ask two teachers
    assert all(cell.teacher is None for cell in cells if not cell.method.startswith("refilled"))
    assert {cell.tasks for cell in cells} == {10_000}


def test_published_numbers_are_where_they_belong():
    at = {"teacher": "resnet-12", "shots": 1}
    assert TABLE.published(at | {"method": "refilled"}) == 55.13
    assert TABLE.published({"teacher": "convnet-4", "shots": 30, "method": "refilled"}) == 78.98
    assert TABLE.published(at | {"method": "feat"}) == 55.15
    assert TABLE.published(at | {"shots": 10, "method": "maml"}) is None
    assert TABLE.published(at | {"method": "refilled-scratch"}) is None


def test_gains_are_over_the_same_student_with_as_many_steps(monkeypatch):
    point = {"teacher": "resnet-12", "method": "refilled", "shots": 5}
    assert TABLE.alone(point).key == TABLE.cell(point | {"method": "fine-tune"}).key
    assert TABLE.alone(point | {"method": "refilled-scratch"}).method == "student"
    assert TABLE.alone(point | {"method": "fine-tune"}) is None
    monkeypatch.setitem(fewshot.CHOSEN, ("refilled", "resnet-12", 5), {"steps": 40, "lr": 0.1})
    monkeypatch.setitem(fewshot.CHOSEN, ("fine-tune", None, 5), {"steps": 20, "lr": 0.02})
    assert dict(TABLE.cell(point).settings) == {"steps": 40, "lr": 0.1}
    assert dict(TABLE.alone(point).settings) == {"steps": 40, "lr": 0.02}
    assert dict(TABLE.cell(point | {"teacher": "convnet-4"}).settings) == {}
    cells = cells_of(
        TABLE, {"method": ("refilled",), "teacher": ("resnet-12",), "shots": (5,)}, TABLE.judge()
    )
    assert [cell.method for cell in cells] == ["refilled", "fine-tune"]


def test_chosen_settings_are_settings():
    for (method, teacher, shots), settings in fewshot.CHOSEN.items():
        settings_of(method, **settings)
        assert fewshot.cell(method, teacher or "convnet-4", shots).resolved().items() >= settings.items()


def test_what_it_does_not_have_is_refused():
    for named, said in (
        ({"shots": (2,)}, "unknown shots '2'"),
        ({"method": ("refiled",)}, "unknown method 'refiled'; did you mean 'refilled'"),
        ({"teacher": ("resnet-18",)}, "unknown teacher 'resnet-18'; did you mean 'resnet-12'"),
    ):
        with pytest.raises(UserError, match=said):
            TABLE.where(named)
    with pytest.raises(UserError, match="resnet-18 is no network of this table"):
        fewshot.cell("refilled", "resnet-18", 5)
