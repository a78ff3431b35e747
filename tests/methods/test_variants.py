"""The methods by name, how the variants differ from each other, and their settings."""

import dataclasses

import pytest
import torch

from refilled.errors import UserError
from refilled.methods import METHODS, get_method
from refilled.methods.refilled_settings import (
    AuthorsSettings,
    MinusSettings,
    PaperSettings,
    RefilledSettings,
    TwoStageSettings,
)

from .world import (
    ALL_METHODS,
    FEATURE_METHODS,
    OTHERS,
    SAME_CLASSES,
    TEACHER_FIRST,
    first_batch,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    values,
)


@pytest.fixture
def world():
    return make_teacher(), make_student(), make_batches()


def test_methods_by_name():
    assert set(METHODS) == {*ALL_METHODS, *SAME_CLASSES, *TEACHER_FIRST, *FEATURE_METHODS, *OTHERS}
    for name, method in METHODS.items():
        assert method.name == name
        assert get_method(name) is method
        assert method.summary
        assert method.needs_teacher == (name != "student")
        assert dataclasses.is_dataclass(method.settings())
        assert method.same_classes == (name in (*SAME_CLASSES, "kd-vid", "refilled-kd"))
        assert (method.fits is not None) == (name in (*FEATURE_METHODS, "fine-tune", "ewc"))


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("refiled", "refilled"), ("refilled_emb", "refilled-emb"), ("ReFilled-Paper", "refilled-paper"),
     ("KD", "kd"), ("students", "student"), ("refilled-gama", "refilled-gamma")],
)  # fmt: skip
def test_unknown_names_are_refused_with_the_nearest(wrong, nearest):
    with pytest.raises(UserError, match=f"unknown method '{wrong}'; did you mean '{nearest}'") as problem:
        get_method(wrong)
    assert all(name in str(problem.value) for name in METHODS)


def test_a_name_near_to_nothing_is_refused_without_a_guess():
    with pytest.raises(UserError, match="unknown method 'zzzzzz'") as problem:
        get_method("zzzzzz")
    assert "did you mean" not in str(problem.value)


# --- settings -----------------------------------------------------------------------------------------


def test_default_settings():
    assert dataclasses.asdict(RefilledSettings()) == {
        "embedding_share": 0.25,
        "comparison_tau_teacher": 0.1,
        "comparison_tau_student": 0.1,
        "comparison_scale": 1.0,
        "margin": None,
        "max_impostors": None,
        "group": None,
        "strength": 0.0,
        "tau_teacher": 2.0,
        "tau_student": 1.0,
        "posterior": "dot",
        "weight": "head",
        "imitation": 5.0,
        "imitation_new": None,
        "imitation_unlabelled": 30.0,
        "head_same": 0.0,
        "head_share": 0.9,
        "head_unlabelled": 0.0,
        "head_tau": 4.0,
        "mixtures": False,
        "fade": 1.0,
        "head_fade": None,
    }


def test_settings_for_few_images():
    """One stage, in which the student imitates; what else is given wins."""
    found = get_method("refilled-few").settings()
    assert (found.embedding_share, found.imitation, found.fade, found.head_same) == (0, 5, 0, 0)
    assert (found.strength, found.posterior, found.weight) == (1, "scaled", "none")
    assert get_method("refilled-few").settings(strength=2.0).strength == 2
    assert set(dataclasses.asdict(found)) == set(dataclasses.asdict(RefilledSettings()))


def test_settings_of_the_paper():
    """Teacher's temperature 2 in both stages, the student's logits as they are, λ 2, all impostors."""
    found = get_method("refilled-paper").settings()
    assert isinstance(found, PaperSettings)
    assert (found.comparison_tau_teacher, found.comparison_tau_student, found.comparison_scale) == (2, 1, 1)
    assert (found.tau_teacher, found.tau_student, found.strength) == (2, 1, 2)
    assert (found.margin, found.max_impostors) == (None, None)
    assert (found.posterior, found.weight) == ("literal", "pl")
    assert (found.embedding_share, found.imitation, found.fade, found.head_same) == (0.5, 0, 0, 0)


def test_settings_of_the_authors_code():
    """Temperature 4 and a factor of 1000, impostors within 0.2, raw dot products, the teacher's own head."""
    found = get_method("refilled-authors").settings()
    assert isinstance(found, AuthorsSettings)
    assert (found.comparison_tau_teacher, found.comparison_tau_student) == (4, 4)
    assert (found.comparison_scale, found.margin) == (1000, 0.2)
    assert (found.tau_teacher, found.tau_student, found.strength) == (1, 1, 1)
    assert (found.posterior, found.weight) == ("dot", "head")


def test_the_two_stages_are_spelt_out():
    """Whatever becomes the default: these are the settings of results/cifar100-first.md."""
    assert {"comparison_tau_teacher", "strength", "fade"} <= set(vars(TwoStageSettings))
    assert set(TwoStageSettings.__annotations__) == set(dataclasses.asdict(RefilledSettings()))


def test_settings_of_minus_differ_in_the_weight_only():
    usual, minus = dataclasses.asdict(TwoStageSettings()), dataclasses.asdict(MinusSettings())
    assert minus == usual | {"weight": "none"}
    assert get_method("refilled-minus").settings is MinusSettings


@pytest.mark.parametrize("wrong", [{"posterior": "cosin"}, {"weight": "heads"}, {"weight": None}], ids=str)
def test_unknown_options_are_refused(world, wrong):
    """A misspelt option may not silently train something else."""
    teacher, student, batches = world
    with pytest.raises(UserError, match=next(iter(wrong))):
        make_stages("refilled", teacher, student, batches, **wrong)[1].loss(first_batch(batches))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("refilled", {"strength": -1.0}), ("refilled-gamma", {"comparison_scale": 0.0}), ("kd", {"tau": 0.0}),
     ("refilled-lkd", {"tau_teacher": 0.0}), ("refilled-minus", {"tau_student": -1.0}),
     ("refilled-paper", {"comparison_tau_teacher": 0.0}), ("refilled", {"comparison_tau_student": 1e-4}),
     ("refilled-authors", {"margin": 0.0}), ("refilled-emb", {"max_impostors": 0}), ("kd", {"weight": 1.5}),
     ("refilled", {"imitation": -1.0}), ("refilled", {"imitation_new": -1.0}),
     ("refilled", {"fade": 1.5}), ("refilled", {"head_fade": -0.5}), ("refilled", {"embedding_share": 1.0}),
     ("refilled-emb", {"embedding_share": 0.0}), ("refilled", {"strength": float("inf")}),
     ("refilled", {"tau_teacher": float("nan")})],
    ids=str,
)  # fmt: skip
def test_numbers_without_sense_are_refused_by_name(name, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        get_method(name).settings(**wrong)


# --- variants -----------------------------------------------------------------------------------------


def test_what_measured_best_has_a_short_first_stage_and_imitates(world):
    teacher, student, batches = world
    first, second = make_stages("refilled", teacher, student, batches, epochs=8)
    assert (first.epochs, second.epochs) == (2, 6)
    assert set(values(first, first_batch(batches))) == {"comparison", "imitation"}
    assert set(values(second, first_batch(batches))) == {"cross_entropy", "imitation"}


def test_without_strength_there_is_no_distillation(world):
    """Not even the teacher's centres are asked for: a posterior that they rule out does no harm."""
    teacher, student, batches = world
    batch = first_batch(batches)
    options = {"posterior": "literal", "weight": "pl"}
    own = make_stages("refilled-two-stages", teacher, student, batches, strength=0.0, **options)[1]
    (alone,) = make_stages("student", None, student, batches)
    assert values(own, batch) == values(alone, batch)


def test_emb_is_the_first_stage_and_then_the_student_alone(world):
    teacher, student, batches = world
    batch = first_batch(batches)
    emb = make_stages("refilled-emb", teacher, student, batches)
    whole = make_stages("refilled-two-stages", teacher, student, batches)
    (alone,) = make_stages("student", None, student, batches)
    assert values(emb[0], batch) == values(whole[0], batch)
    assert values(emb[1], batch) == values(alone, batch)
    assert [stage.epochs for stage in emb] == [stage.epochs for stage in whole]


def test_lkd_is_the_second_stage_alone_for_all_epochs(world):
    teacher, student, batches = world
    (lkd,) = make_stages("refilled-lkd", teacher, student, batches, epochs=7)
    second = make_stages("refilled-two-stages", teacher, student, batches)[1]
    assert values(lkd, first_batch(batches)) == values(second, first_batch(batches))
    assert lkd.epochs == 7


def test_minus_is_the_method_without_weights(world):
    teacher, student, batches = world
    batch = first_batch(batches)
    minus = make_stages("refilled-minus", teacher, student, batches)
    none = make_stages("refilled-two-stages", teacher, student, batches, weight="none")
    whole = make_stages("refilled-two-stages", teacher, student, batches)
    assert [values(stage, batch) for stage in minus] == [values(stage, batch) for stage in none]
    assert values(minus[0], batch) == values(whole[0], batch)
    assert values(minus[1], batch)["local_kd"] > values(whole[1], batch)["local_kd"] + 1e-4


def test_gamma_is_one_stage_with_the_terms_of_both(world):
    teacher, student, batches = world
    batch = first_batch(batches)
    (joint,) = make_stages("refilled-gamma", teacher, student, batches, epochs=7)
    first, second = (
        values(stage, batch) for stage in make_stages("refilled-two-stages", teacher, student, batches)
    )
    assert joint.epochs == 7
    assert values(joint, batch) == pytest.approx(first | second, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "kind"), [("refilled-paper", PaperSettings), ("refilled-authors", AuthorsSettings)]
)
def test_named_settings_are_the_method_with_those_settings(world, name, kind):
    teacher, student, batches = world
    batch = first_batch(batches)
    named = make_stages(name, teacher, student, batches)
    by_hand = make_stages("refilled-two-stages", teacher, student, batches, **dataclasses.asdict(kind()))
    usual = make_stages("refilled-two-stages", teacher, student, batches)
    for one, same, other in zip(named, by_hand, usual):
        assert values(one, batch) == values(same, batch)
        assert values(one, batch) != values(other, batch)


def test_without_a_share_for_the_embedding_the_classifier_has_all_epochs(world):
    teacher, student, batches = world
    (only,) = make_stages("refilled-two-stages", teacher, student, batches, epochs=1, embedding_share=0.0)
    (lkd,) = make_stages("refilled-lkd", teacher, student, batches, epochs=1)
    assert (only.name, only.epochs) == ("classifier", 1)
    assert values(only, first_batch(batches)) == values(lkd, first_batch(batches))


def test_imitation_adds_one_term_to_both_stages_through_one_map(world):
    teacher, student, batches = world
    batch = first_batch(batches)
    usual = make_stages("refilled-two-stages", teacher, student, batches)
    stages = make_stages("refilled-two-stages", teacher, student, batches, imitation=3.0)
    assert stages[0].beside is stages[1].beside is not None
    mapped = stages[0].beside.linear(student.embed(batch.images)).double().detach()
    wanted = teacher.embed(batch.images).double()
    cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(mapped, wanted)]
    expected = 3 * sum(1 - cosine for cosine in cosines) / len(cosines)
    for stage, plain in zip(stages, usual):
        terms = values(stage, batch)
        assert terms.pop("imitation") == pytest.approx(expected, rel=1e-5)
        assert terms == pytest.approx(values(plain, batch), rel=1e-6)
        assert {id(p) for p in stage.beside.parameters()} <= {id(p) for p in stage.parameters}
        assert plain.beside is None


def test_images_of_new_classes_may_count_less(world):
    """The teacher knows ant and fox; hen and ibis are new to it."""
    teacher, student, batches = world
    batch = first_batch(batches)
    stage = make_stages("refilled-two-stages", teacher, student, batches, imitation=3.0, imitation_new=0.5)[0]
    mapped, wanted = stage.beside.linear(student.embed(batch.images)), teacher.embed(batch.images)
    apart = 1 - torch.cosine_similarity(mapped.double(), wanted.double())
    known = [student.classes[label].lower() in ("ant", "fox") for label in batch.labels.tolist()]
    assert any(known)
    assert not all(known)
    weights = torch.tensor([3.0 if each else 0.5 for each in known])
    expected = float((weights * apart).mean().detach())
    assert values(stage, batch)["imitation"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("known", "new", "there"), [(0, None, False), (0, 0, False), (0, 1, True), (1, 0, True)]
)
def test_imitation_is_there_where_any_image_counts(world, known, new, there):
    teacher, student, batches = world
    stages = make_stages("refilled-two-stages", teacher, student, batches, imitation=known, imitation_new=new)
    assert [stage.beside is not None for stage in stages] == [there, there]


def test_imitation_moves_student_and_map_and_not_the_teacher(world):
    teacher, student, batches = world
    first = make_stages("refilled-two-stages", teacher, student, batches, imitation=1.0)[0]
    first.loss(first_batch(batches))["imitation"].backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in first.beside.parameters())
    assert any(p.grad is not None and bool(p.grad.any()) for p in student.backbone_parameters())
    assert all(p.grad is None for p in (*teacher.parameters(), *student.head.parameters()))


def test_the_teacher_fades_and_the_labels_stay(world):
    teacher, student, batches = world
    batch = first_batch(batches)
    second = make_stages("refilled-two-stages", teacher, student, batches, imitation=1.0, fade=0.5)[1]
    start, middle, end = (
        values(second, dataclasses.replace(batch, progress=torch.tensor(at))) for at in (0.0, 0.5, 1.0)
    )
    for name, left in (("local_kd", 0.75), ("imitation", 0.75), ("cross_entropy", 1.0)):
        assert middle[name] == pytest.approx(left * start[name], rel=1e-5)
    for name, left in (("local_kd", 0.5), ("imitation", 0.5), ("cross_entropy", 1.0)):
        assert end[name] == pytest.approx(left * start[name], rel=1e-5)
    assert values(second, batch) == pytest.approx(start)  # outside of training nothing has faded


def test_student_alone_asks_no_teacher(world):
    _, student, batches = world
    (stage,) = make_stages("student", None, student, batches, epochs=5)
    assert stage.epochs == 5
    assert list(values(stage, first_batch(batches))) == ["cross_entropy"]
