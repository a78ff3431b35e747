import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.errors import UserError
from refilled.labels import LabelSpace, aliases, key

plain_names = st.lists(st.text("abcdefghij", min_size=1, max_size=5), min_size=1, max_size=12, unique=True)
HUNDRED = LabelSpace(f"c{index}" for index in range(100))


@pytest.mark.parametrize(
    "name", ["Sweet Pepper", "sweet_pepper", "SWEET-PEPPER", " sweetpepper ", "sweet  _pepper"]
)
def test_case_spaces_dashes_and_underscores_do_not_count(name):
    assert key(name) == "sweetpepper"
    space = LabelSpace(["rose", "sweet pepper"])
    assert name in space
    assert space.label(name) == space.find(name) == 1


def test_a_space_is_a_sequence_of_names():
    space = LabelSpace(["cat", "dog", "owl"])
    assert (len(space), space[1], space[1:], list(space)) == (3, "dog", ("dog", "owl"), ["cat", "dog", "owl"])
    assert space == LabelSpace(iter(["cat", "dog", "owl"]))
    assert hash(space) == hash(LabelSpace(["cat", "dog", "owl"]))
    assert space != LabelSpace(["dog", "cat", "owl"])
    assert space != ["cat", "dog", "owl"]
    assert 3 not in space
    assert repr(LabelSpace("abcdef")) == "LabelSpace(6: a, b, c, d, …)"


@pytest.mark.parametrize("twins", [["cat", "Cat"], ["sea lion", "sea_lion"], ["sea-lion", "dog", "SeaLion"]])
def test_names_that_compare_equal_are_refused(twins):
    with pytest.raises(UserError, match="are one name"):
        LabelSpace(twins)


def test_synonyms_of_a_comma_list_are_found():
    assert aliases("tench, Tinca tinca") == ["tench,tincatinca", "tench", "tincatinca"]
    assert aliases("tench") == ["tench"]
    imagenet = LabelSpace(["tench, Tinca tinca", "crane, bird", "crane"])
    assert imagenet.label("Tinca Tinca") == 0
    assert imagenet.label("bird") == 1
    assert imagenet.label("crane") == 2  # a whole name is never hidden by a synonym
    assert imagenet.label("tench, Tinca tinca") == 0
    mine = LabelSpace(["tench", "crane", "heron"])
    assert imagenet.overlap(mine).pairs == ((0, 0), (2, 1))
    assert mine.overlap(imagenet).shared == ("tench", "crane")


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown class 'dgo'; did you mean 'dog'\? \(known: cat, dog\)"):
        LabelSpace(["cat", "dog"]).label("dgo")
    assert LabelSpace(["cat"]).find("dog") is None


def test_overlap():
    teacher, student = LabelSpace(["cat", "Sea Lion", "owl"]), LabelSpace(["dog", "owl", "sea_lion", "ape"])
    overlap = teacher.overlap(student)
    assert overlap.shared == ("Sea Lion", "owl")
    assert overlap.only_here == ("cat",)
    assert overlap.only_there == ("dog", "ape")
    assert overlap.pairs == ((1, 2), (2, 1))
    assert overlap.ratio == 0.5
    assert str(overlap) == "2 of 4 classes shared (50%)"
    assert teacher.overlap(LabelSpace([])).ratio == 0


@settings(deadline=None)
@given(plain_names, plain_names)
def test_overlap_is_complete_and_symmetric(ours, theirs):
    here, there = LabelSpace(ours), LabelSpace(theirs)
    overlap, back = here.overlap(there), there.overlap(here)
    assert set(overlap.shared) == set(ours) & set(theirs)
    assert sorted(overlap.shared + overlap.only_here) == sorted(ours)
    assert len(overlap.shared) + len(overlap.only_there) == len(theirs)
    assert {(b, a) for a, b in overlap.pairs} == set(back.pairs)
    assert all(here[a] == there[b] for a, b in overlap.pairs)
    assert overlap.ratio == len(overlap.shared) / len(theirs)


@settings(deadline=None)
@given(plain_names, st.data())
def test_every_class_is_found_however_it_is_written(names, data):
    space = LabelSpace(names)
    name = data.draw(st.sampled_from(names))
    spelled = data.draw(st.sampled_from(["", " ", "-", "_"])).join(name)
    assert space[space.label(data.draw(st.sampled_from([spelled, spelled.upper()])))] == name


@pytest.mark.parametrize(
    ("overlap", "first", "shared"), [(0.0, "c50", 0), (0.2, "c40", 10), (0.6, "c20", 30), (1.0, "c0", 50)]
)
def test_windows_slide(overlap, first, shared):
    teacher, student = HUNDRED.windows(50, overlap)
    assert (len(teacher), len(student)) == (50, 50)
    assert (teacher[0], student[0]) == ("c0", first)
    assert teacher.overlap(student).ratio == overlap
    assert len(teacher.overlap(student).shared) == shared


@settings(deadline=None)
@given(st.integers(1, 50), st.floats(0, 1))
def test_windows_share_what_was_asked_for(size, overlap):
    teacher, student = HUNDRED.windows(size, overlap)
    assert len(teacher) == len(student) == size
    assert len(teacher.overlap(student).shared) == round(size * overlap)


@pytest.mark.parametrize(
    ("size", "overlap", "message"),
    [
        (50, 1.5, "ratio from 0 to 1, not 1.5"),
        (50, -0.1, "ratio from 0 to 1"),
        (60, 0.0, "windows of 60 classes that overlap by 0% need 120 classes; there are 100"),
        (0, 0.5, "windows of 0 classes"),
    ],
)
def test_windows_that_do_not_fit(size, overlap, message):
    with pytest.raises(UserError, match=message):
        HUNDRED.windows(size, overlap)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("20:22", ("c20", "c21")),
        (" 98 : ", ("c98", "c99")),
        (":2", ("c0", "c1")),
        ("c3, C_1", ("c3", "c1")),
        ("c7", ("c7",)),
    ],
)
def test_classes_are_chosen_by_range_or_name(spec, expected):
    assert HUNDRED.choose(spec).names == expected
    assert len(HUNDRED.choose(":")) == 100


@pytest.mark.parametrize("spec", ["90:101", "50:50", "60:50", "100:"])
def test_ranges_that_do_not_fit(spec):
    with pytest.raises(UserError, match=f"classes {spec} (is empty|goes beyond the 100 classes)"):
        HUNDRED.choose(spec)


def test_chosen_names_must_be_known():
    with pytest.raises(UserError, match="unknown class 'cc3'"):
        HUNDRED.choose("c1,cc3")


def test_a_name_is_given_once():
    with pytest.raises(UserError, match="one name"):
        HUNDRED.choose("c1,C1")
