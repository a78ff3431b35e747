import dataclasses

import pytest

from refilled.errors import UserError
from refilled.methods import METHODS, get_method
from refilled.suite import TABLES, Cell, OverSeeds, cells_of, get_table, tiny_cell
from refilled.suite.baselines import TEACHER_BASELINES
from refilled.suite.tables.cifar100 import standard
from refilled.suite.tables.rows import GROUPED, HALF, STANDARD_KD, STEADY, TWO_STAGES

WANTED = {
    "cifar100-gkd", "cub-gkd", "reweighting", "one-stage", "weaker-teacher", "other-family", "cub-to-dogs",
    "cifar100-standard", "cub-standard", "cross-family", "kd-against-lkd", "ncm-after-stage-1", "k-hat",
    "lambda", "shots", "cifar100-wider", "cub-cross-family",
}  # fmt: skip


def test_all_tables_of_the_paper_are_there():
    assert set(TABLES) >= WANTED


TRAININGS = [table for table in TABLES.values() if table.judged is OverSeeds]


@pytest.mark.parametrize("table", TRAININGS, ids=lambda table: table.name)
def test_every_cell_is_a_training_that_exists(table):
    points = list(table.points())
    assert points
    for point in points:
        cell = table.cell(point)
        assert isinstance(cell, Cell)
        assert cell.method in {*METHODS, *TEACHER_BASELINES}
        assert len(cell.key) == 16
        published = table.published(point)
        assert published is None or 20 < published < 100
        if table.alone is not None:
            alone = table.alone(point)
            assert alone.method == "student"
            epochs = dict(cell.settings).get("epochs")
            unlike = {*TEACHER_BASELINES, "fine-tune", HALF}
            assert point.get("method") in unlike or epochs == dict(alone.settings)["epochs"]
        small = tiny_cell(cell)
        assert small.data == "digits"
        assert small.method == cell.method


def test_published_numbers_are_where_they_belong():
    table = get_table("cifar100-gkd")
    at = {"student": "wrn-16-2", "overlap": 60}
    assert table.published(at | {"method": "refilled"}) == 76.66
    assert table.published(at | {"method": HALF}) == 76.37
    assert table.published(at | {"method": "student"}) is None  # theirs has half of those epochs
    assert table.published({"student": "wrn-40-2", "overlap": 60, "method": "fine-tune"}) == 71.13
    assert get_table("k-hat").published({"overlap": 50, "max_impostors": None}) == 30.27


def test_windows_overlap_as_they_say():
    table = get_table("cifar100-gkd")
    for overlap, classes in ((0, "50:100"), (60, "20:70"), (100, "0:50")):
        point = {"student": "wrn-16-2", "overlap": overlap, "method": "refilled"}
        assert table.cell(point).classes == classes


def test_a_part_of_a_table():
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("refilled", "rkd")})
    cells = cells_of(table, where, OverSeeds(3))
    assert len(cells) == 6
    assert {cell.seed for cell in cells} == {0, 1, 2}
    assert (
        len(cells_of(get_table("lambda"), get_table("lambda").where({}, ("strength=2.0",)), OverSeeds(1)))
        == 2
    )


@pytest.mark.parametrize(
    ("named", "assignments", "message"),
    [
        ({"overlap": (61,)}, (), r"unknown overlap '61'; did you mean '60'"),
        ({"student": ("wrn-16-3",)}, (), "unknown student 'wrn-16-3'"),
        ({"shots": (5,)}, (), "table cifar100-gkd has no axis 'shots'; it has student, method, overlap"),
        ({}, ("strength",), "--where takes AXIS=VALUE"),
        ({"method": ("refiled",)}, (), "did you mean 'refilled'"),
        ({"method": ("kd",)}, (), "^kd needs a teacher of the same classes, and is no row of cifar100-gkd"),
        ({"method": ("sp",)}, (), "^sp is no row of cifar100-gkd; its rows: teacher-1nn, "),
        (
            {"method": ("teacher-lr", "fine-tune"), "student": ("wrn-16-2",)}, (),
            "^cifar100-gkd has no cell for method teacher-lr fine-tune, student wrn-16-2; with the rest "
            "of it there is method student-half, student, .*, or student wrn-40-2$",
        ),
    ],
)  # fmt: skip
def test_what_a_table_does_not_have_is_refused(named, assignments, message):
    with pytest.raises(UserError, match=message):
        get_table("cifar100-gkd").where(named, assignments)


def test_a_row_that_is_missing_for_no_reason_of_classes_gets_none():
    with pytest.raises(UserError, match=r"^dkd is no row of cub-standard; its rows: student, kd"):
        get_table("cub-standard").where({"method": ("dkd",)})


def test_recipes_for_the_same_classes_are_refused_elsewhere():
    table = get_table("recipes")
    with pytest.raises(UserError, match=r"no cell for overlap 60, recipe plain distillation; .* overlap 100"):
        table.where({"overlap": (60,)}, ("recipe=plain distillation",))
    assert table.where({"overlap": (60, 100)}, ("recipe=plain distillation",))


def test_an_unknown_table():
    with pytest.raises(UserError, match="unknown table 'cifar-gkd'; did you mean 'cifar100-gkd'"):
        get_table("cifar-gkd")


def test_decoupled_distillation_has_its_authors_weight_for_wide_resnets():
    table = get_table("cifar100-standard")
    cell = table.cell({"method": "dkd", "student": "wrn-16-2"})
    assert cell.resolved()["method"]["beta"] == 6.0
    assert "beta" not in dict(table.cell({"method": "kd", "student": "wrn-16-2"}).settings)


def test_our_recipes_keep_their_settings_where_classes_are_the_same():
    """The paper's other settings for standard distillation are for its own method."""
    rows = {
        row: dict(standard(row, "wrn-16-2").settings) for row in ("refilled", STEADY, GROUPED, TWO_STAGES)
    }
    assert rows[TWO_STAGES].items() >= STANDARD_KD.items()
    for row in ("refilled", STEADY, GROUPED):
        assert not STANDARD_KD.keys() & rows[row].keys()
    assert rows[GROUPED] == rows["refilled"] | {"group": 4}


KNOWN_CHANGES = {"rkd": {"embedding_share": 0.0}, "dkd": {"beta": 6.0}}


@pytest.mark.parametrize("name", [table.name for table in TRAININGS if table.name != "recipes"])
def test_methods_of_others_have_their_own_settings(name):
    """What is set for the paper's method does not reach another that has a setting of that name."""
    table = get_table(name)
    for point in table.points():
        cell = table.cell(point)
        if cell.method not in METHODS or cell.method.startswith("refilled"):
            continue
        usual = dataclasses.asdict(get_method(cell.method).settings())
        given = cell.resolved()["method"]
        changed = {setting: value for setting, value in given.items() if value != usual[setting]}
        assert changed.items() <= KNOWN_CHANGES.get(cell.method, {}).items(), point


def test_relations_are_beside_cross_entropy_where_classes_are_the_same():
    for name, share in (("cifar100-standard", 0), ("cub-standard", 0), ("cross-family", 0), ("cub-gkd", 0.5)):
        table = get_table(name)
        cell = next(table.cell(point) for point in table.points({"method": ("rkd",)}))
        assert cell.resolved()["method"]["embedding_share"] == share


def test_the_published_method_stands_beside_its_own_settings_too():
    table = get_table("cifar100-gkd")
    at = {"student": "wrn-16-2", "overlap": 60}
    for row in (TWO_STAGES, "refilled-paper", "refilled"):
        assert table.published(at | {"method": row}) == 76.66


@pytest.mark.parametrize("name", TABLES)
def test_a_page_says_that_refilled_is_another_recipe_than_what_it_stands_beside(name):
    table = get_table(name)
    if table.judged is not OverSeeds or "method" not in table.axes:
        return
    ours = [point for point in table.points() if point["method"] == "refilled"]
    beside = any(table.published(point) is not None for point in ours)
    assert ("another recipe than the paper's" in table.note) == beside


@pytest.mark.parametrize("name", ["cub-gkd", "weaker-teacher", "cub-to-dogs", "other-family"])
def test_the_published_student_alone_has_half_our_epochs(name):
    table = get_table(name)
    student = {"student": table.axes["student"][-1], "overlap": 0}
    half, whole = ({"method": row} | student for row in (HALF, "student"))
    assert table.published(half) is not None
    assert table.published(whole) is None
    epochs = [dict(table.cell(point).settings)["epochs"] for point in (half, whole)]
    assert epochs[1] == 2 * epochs[0]


def test_cub_is_divided_as_in_the_paper_where_label_spaces_overlap():
    """70 % and 30 % of each class, for students, teachers and baselines alike; elsewhere as officially."""
    for name in ("cub-gkd", "one-stage", "weaker-teacher", "k-hat"):
        for point in get_table(name).points():
            cell = get_table(name).cell(point)
            cells = [cell, *(teacher.as_cell() for teacher in cell.teachers)]
            assert {dict(one.settings)["test_fraction"] for one in cells} == {0.3}
    for name in ("cub-incremental", "cub-standard"):
        for point in get_table(name).points():
            cell = get_table(name).cell(point)
            assert "test_fraction" not in dict(cell.settings) | dict(
                cell.teachers[0].settings if cell.teachers else ()
            )
