"""The methods that match feature maps: their terms, what they train, which networks they take."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from objectives import reference, reference_features
from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.methods import get_method
from refilled.methods.feature_pairs import after_activation, before_activation, channels, paired
from refilled.methods.fitnet import guided_parameters, middle
from refilled.methods.overhaul import margins
from refilled.models import Network, Preprocess, load

from .test_kd import permuted
from .world import (
    FEATURE_METHODS,
    STUDENT_CLASSES,
    first_batch,
    gradients,
    make_batches,
    make_stages,
    make_teacher,
    same_state,
    state,
    tiny,
    values,
)

CLOSE = {"rtol": 2e-4, "atol": 1e-5}
ONE_STAGE = [name for name in FEATURE_METHODS if name != "fitnet"]
STUDENTS = ("resnet-8", "mobilenet-0.25", "wrn-10-1", "convnet-1")
TERMS = {
    "at": ["cross_entropy", "attention"],
    "nst": ["cross_entropy", "selectivity"],
    "vid": ["cross_entropy", "information"],
    "kd-vid": ["cross_entropy", "kd", "information"],
    "overhaul": ["cross_entropy", "overhaul"],
    "jacobian": ["cross_entropy", "jacobian"],
}


@pytest.fixture
def teacher():
    """Of the student's classes, so that every method takes it."""
    return make_teacher(STUDENT_CLASSES)


@pytest.fixture
def student():
    return tiny("resnet-8", STUDENT_CLASSES, seed=2).train()


def cross_entropy(student, batch):
    return F.cross_entropy(student(batch.images)[1].double(), batch.labels)


# --- settings and stages --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_STAGE)
def test_one_stage_trains_the_student_and_what_is_beside_it(name, teacher, student, batches):
    (stage,) = make_stages(name, teacher, student, batches, epochs=6)
    assert (stage.name, stage.epochs, stage.judge) == ("classifier", 6, "classifier")
    assert stage.asks is (teacher if name == "at" else None)  # others want more than a vector for each image
    beside = list(stage.beside.parameters()) if stage.beside is not None else []
    assert (stage.beside is not None) == (name in ("vid", "kd-vid", "overhaul"))
    assert [id(p) for p in stage.parameters] == [id(p) for p in (*student.parameters(), *beside)]
    assert list(values(stage, first_batch(batches))) == TERMS[name]


def test_hints_come_first(teacher, student, batches):
    hints, task = make_stages("fitnet", teacher, student, batches, epochs=10)
    assert (hints.name, hints.epochs, hints.judge, hints.asks) == ("hint", 2, "embedding", None)
    assert (task.name, task.epochs, task.judge, task.asks) == ("classifier", 8, "classifier", teacher)
    assert list(values(hints, first_batch(batches))) == ["hint"]
    assert list(values(task, first_batch(batches))) == ["cross_entropy", "kd"]
    assert hints.beside.weight.shape == (64, 32, 1, 1)  # from the second map of ResNet-8 to that of WRN-10-2
    assert task.beside is None
    with pytest.raises(UserError, match="at least 2 epochs, not 1"):
        make_stages("fitnet", teacher, student, batches, epochs=1)


@pytest.mark.parametrize("settings", [{}, {"kd_weight": 0.0}])
def test_without_the_same_classes_hints_are_followed_by_the_labels_alone(batches, student, settings):
    teacher = make_teacher() if not settings else make_teacher(STUDENT_CLASSES)
    _, task = make_stages("fitnet", teacher, student, batches, **settings)
    assert list(values(task, first_batch(batches))) == ["cross_entropy"]
    assert task.asks is None


@pytest.mark.parametrize("name", [name for name in FEATURE_METHODS if name != "kd-vid"])
def test_any_classes_are_taken(name, batches, student):
    teacher = make_teacher()
    get_method(name).check(teacher, student)
    for stage in make_stages(name, teacher, student, batches):
        assert all(torch.tensor(value).isfinite() for value in values(stage, first_batch(batches)).values())


@pytest.mark.parametrize("name", FEATURE_METHODS)
def test_making_stages_changes_neither_network(name, teacher, student, batches):
    student.stages[1].eval()  # someone's choice
    before, modes = (state(teacher), state(student)), [module.training for module in student.modules()]
    torch.manual_seed(5)
    make_stages(name, teacher, student, batches)
    drawn = torch.rand(3)
    assert same_state(teacher, before[0])
    assert same_state(student, before[1])
    assert modes == [module.training for module in student.modules()]
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


# --- which maps -------------------------------------------------------------------------------------------


def test_pairs_are_made_from_the_last_backwards():
    assert paired("abc", [1, 2]) == [("b", 1), ("c", 2)]
    assert paired("c", [1, 2, 3]) == [("c", 3)]
    assert paired("abc", "xyz") == [("a", "x"), ("b", "y"), ("c", "z")]


@pytest.mark.parametrize(("maps", "expected"), [(1, -1), (2, -2), (3, -2), (4, -3), (5, -3)])
def test_the_hint_is_in_the_middle(maps, expected):
    assert middle(maps) == expected


def test_channels_of_both_kinds_of_maps():
    network = tiny("mobilenet-0.25", STUDENT_CLASSES)
    assert channels(network, after_activation) == [16, 32, 64, 128, 256]
    assert channels(network, before_activation) == [16, 32, 64, 128, 256]


def test_guided_parameters_are_those_below_the_hint(student):
    names = {id(parameter): name for name, parameter in student.named_parameters()}
    found = {names[id(parameter)] for parameter in guided_parameters(student, -2)}
    assert found == {name for name in names.values() if name.startswith(("stem.", "stages.0.", "stages.1."))}


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", STUDENTS)
def test_attention_of_every_pair(teacher, spec):
    batches = make_batches(size=4, batch_size=3)
    student, batch = tiny(spec, STUDENT_CLASSES, seed=2).train(), first_batch(batches)
    (stage,) = make_stages("at", teacher, student, batches, weight=7.0)
    pairs = paired(student.features(batch.images), teacher.features(batch.images))
    expected = 7 * sum(reference_features.attention_transfer(s.double(), t.double()) for s, t in pairs)
    terms = stage.loss(batch)
    torch.testing.assert_close(terms["attention"].double(), expected, **CLOSE)
    torch.testing.assert_close(terms["cross_entropy"].double(), cross_entropy(student, batch), **CLOSE)
    found, wanted = gradients(terms["attention"], student), gradients(expected, student)
    for name, gradient in found.items():
        if gradient is not None:
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spec", STUDENTS)
def test_attentions_that_are_known_are_all_that_at_wants(teacher, spec, monkeypatch):
    batches = make_batches(size=4, batch_size=3)
    student, batch = tiny(spec, STUDENT_CLASSES, seed=2).eval(), first_batch(batches)
    (stage,) = make_stages("at", teacher, student, batches)
    expected = {name: float(value) for name, value in stage.loss(batch).items()}
    assert stage.asks is teacher
    known = stage.wanted(teacher, teacher.prepare(batch.images)).detach()
    monkeypatch.setattr(teacher, "feature_maps", None)  # any use of it would fail
    found = stage.loss(dataclasses.replace(batch, answers=known))
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-5)


def test_selectivity_of_the_last_maps(teacher, student):
    batches = make_batches(size=4, batch_size=2)
    batch = first_batch(batches)
    (stage,) = make_stages("nst", teacher, student, batches, weight=7.0)
    ours, theirs = (network.features(batch.images)[-1].double() for network in (student, teacher))
    expected = 7 * reference_features.neuron_selectivity(ours, theirs)
    torch.testing.assert_close(stage.loss(batch)["selectivity"].double(), expected, **CLOSE)


def test_hint_through_the_regressor(teacher, batches, student):
    batch = first_batch(batches)
    hints, _ = make_stages("fitnet", teacher, student, batches, weight=7.0)
    ours, theirs = (network.features(batch.images)[1] for network in (student, teacher))
    expected = 7 * reference_features.hint(hints.beside(ours).double(), theirs.double())
    torch.testing.assert_close(hints.loss(batch)["hint"].double(), expected, **CLOSE)


@pytest.mark.parametrize(("behind", "weight"), [(None, 4.0), (0.0, 4.0), (0.5, 2.5), (1.0, 1.0)])
def test_weight_of_the_logits_falls_to_a_quarter(teacher, batches, student, behind, weight):
    batch = first_batch(batches)
    _, task = make_stages("fitnet", teacher, student, batches)
    batch.progress = None if behind is None else torch.tensor(behind)
    logits, wanted = student(batch.images)[1].double(), teacher(batch.images)[1].double()
    expected = weight * reference.kd(logits, wanted, tau=3.0) / 9
    terms = task.loss(batch)
    torch.testing.assert_close(terms["kd"].double(), expected, **CLOSE)
    torch.testing.assert_close(terms["cross_entropy"].double(), cross_entropy(student, batch), **CLOSE)


@pytest.mark.parametrize("name", ["fitnet", "kd-vid"])
def test_teacher_may_have_its_classes_in_any_order(teacher, student, batches, name):
    batch, other = first_batch(batches), permuted(teacher, [1, 3, 0, 2])
    get_method(name).check(other, student)
    straight = make_stages(name, teacher, student, batches)[-1]
    stage = make_stages(name, other, student, batches)[-1]
    assert values(stage, batch) == pytest.approx(values(straight, batch), rel=1e-4)


def test_information_of_every_pair(teacher, batches, student):
    batch = first_batch(batches)
    (stage,) = make_stages("vid", teacher, student, batches, weight=7.0)
    pairs = paired(student.features(batch.images), teacher.features(batch.images))
    expected = 0.0
    for gaussian, (ours, theirs) in zip(stage.beside, pairs, strict=True):
        variance = F.softplus(gaussian.unbounded_variance.double()) + 1e-5
        torch.testing.assert_close(variance, torch.full_like(variance, 5.0))
        mean = gaussian.mean(ours).double()
        expected = expected + 7 * reference_features.variational_information(mean, variance, theirs.double())
    torch.testing.assert_close(stage.loss(batch)["information"].double(), expected, **CLOSE)
    assert [len(list(gaussian.mean)) for gaussian in stage.beside] == [5, 5, 5]  # three convolutions


def test_kd_vid_is_both(teacher, student, batches):
    batch = first_batch(batches)
    (both,) = make_stages("kd-vid", teacher, student, batches, vid_weight=3.0)
    (kd,) = make_stages("kd", teacher, student, batches)
    (vid,) = make_stages("vid", teacher, student, batches, weight=3.0)
    expected = values(kd, batch) | {"information": values(vid, batch)["information"]}
    assert values(both, batch) == pytest.approx(expected, rel=1e-4)


def test_kd_vid_refuses_other_classes(student):
    with pytest.raises(UserError, match=r"^kd-vid needs a teacher of the same classes: only the teacher"):
        get_method("kd-vid").check(make_teacher(), student)


@pytest.mark.parametrize("spec", ["resnet-8", "mobilenet-0.25"])
def test_distance_before_the_activation(teacher, spec):
    batches = make_batches(size=5, batch_size=3)
    student, batch = tiny(spec, STUDENT_CLASSES, seed=2).train(), first_batch(batches)
    (stage,) = make_stages("overhaul", teacher, student, batches, weight=7.0)
    both = [network.responses_and_embedding(batch.images)[0] for network in (student, teacher)]
    floors = margins(teacher, student, batches)
    expected = 0.0
    for number, ((ours, theirs), floor, connect) in enumerate(zip(paired(*both), floors, stage.beside)):
        ours, theirs = reference_features.same_size(ours, theirs)
        distance = reference_features.partial_distance(
            connect(ours).double(), theirs.double(), floor.double()
        )
        expected = expected + 7 / 2 ** (2 - number) * distance
    torch.testing.assert_close(stage.loss(batch)["overhaul"].double(), expected, **CLOSE)


def test_margins_are_means_of_the_teachers_negative_responses(teacher, student):
    batches = make_batches(size=70, augment="crop")  # more than are looked at at once
    images = torch.cat([batch.images for batch in batches.ordered()])
    responses, _ = teacher.responses_and_embedding(images)
    for found, maps in zip(margins(teacher, student, batches), responses, strict=True):
        assert found.tolist() == pytest.approx(reference_features.margins(maps), rel=1e-4, abs=1e-6)
        assert found.min() < 0


def test_jacobians_of_the_largest_attention():
    """In evaluation mode images do not influence each other: one at a time gives the same."""
    teacher, student = make_teacher(), tiny("resnet-8", STUDENT_CLASSES, seed=2).eval()
    batches = make_batches(size=5, batch_size=3)
    batch = first_batch(batches)
    (stage,) = make_stages("jacobian", teacher, student, batches, weight=7.0)
    total = 0.0
    for image in batch.images:
        image = image[None].clone().requires_grad_()
        looks = [(network.features(image)[-1] ** 2).sum(1).flatten() for network in (student, teacher)]
        where = looks[1].argmax()
        ours, theirs = (torch.autograd.grad(look[where], image, create_graph=True)[0] for look in looks)
        total = total + reference_features.jacobian_matching(ours.double(), theirs.double())
    expected = 7 * total / len(batch)
    terms = stage.loss(batch)
    torch.testing.assert_close(terms["jacobian"].double(), expected, **CLOSE)
    torch.testing.assert_close(terms["cross_entropy"].double(), cross_entropy(student, batch), **CLOSE)
    found, wanted = gradients(terms["jacobian"], student), gradients(expected, student)
    assert sum(gradient is not None and bool(gradient.any()) for gradient in found.values()) > 5
    for name, gradient in found.items():
        if gradient is not None and wanted[name] is not None:
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FEATURE_METHODS)
def test_under_bfloat16_autocast(name, teacher, student, batches):
    batch = first_batch(batches)
    for stage in make_stages(name, teacher, student, batches):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = stage.loss(batch)
        assert all(term.dtype == torch.float32 for term in terms.values())
        found = gradients(sum(terms.values()), student)
        assert all(gradient is None or gradient.isfinite().all() for gradient in found.values())
        if stage.beside is not None:
            assert all(parameter.grad.isfinite().all() for parameter in stage.beside.parameters())


def test_a_student_equal_to_the_teacher_has_nothing_to_learn(teacher, batches):
    student, batch = copy.deepcopy(teacher), first_batch(batches)
    for name, term in (("at", "attention"), ("nst", "selectivity"), ("jacobian", "jacobian")):
        (stage,) = make_stages(name, teacher, student, batches)
        assert values(stage, batch)[term] == pytest.approx(0, abs=1e-4)


# --- refusals ---------------------------------------------------------------------------------------------


class NoMaps(Network):
    """Embeds without maps, as many a model of another library."""

    def __init__(self):
        super().__init__("hf:somewhere", 8, LabelSpace(STUDENT_CLASSES), Preprocess(8))
        self.head = nn.Linear(8, len(STUDENT_CLASSES))


@pytest.mark.parametrize("name", FEATURE_METHODS)
@pytest.mark.parametrize("role", ["teacher", "student"])
def test_a_network_without_maps_is_refused(name, role, teacher, student):
    networks = {"teacher": teacher, "student": student} | {role: NoMaps()}
    with pytest.raises(
        UserError, match=f"^{name} compares feature maps.* the {role} hf:somewhere"
    ) as problem:
        get_method(name).check(**networks)
    assert "Use --method" in str(problem.value)
    assert "\n" not in str(problem.value)


def test_maps_of_another_library_are_compared_after_their_activation_only(working_torchvision, student):
    teacher = load("timm:test_resnet@random", STUDENT_CLASSES).eval()
    for name in FEATURE_METHODS:
        if name == "overhaul":
            with pytest.raises(UserError, match=r"before their activation, and the teacher timm:test_resnet"):
                get_method(name).check(teacher, student)
        else:
            get_method(name).check(teacher, student)


def test_a_student_of_another_library_learns_in_one_pass(working_torchvision, teacher):
    student = load("timm:test_resnet@random", STUDENT_CLASSES, image_size=32)
    batches = make_batches(size=8, batch_size=4)
    (stage,) = make_stages("at", teacher, student, batches)
    calls = []
    student.model.register_forward_hook(lambda *_: calls.append("whole"))
    student.model.conv1.register_forward_hook(lambda *_: calls.append("pass"))
    found = gradients(sum(stage.loss(first_batch(batches)).values()), student)
    assert calls == ["pass"]
    assert all(gradient is not None for gradient in found.values())


def test_a_network_that_embeds_in_its_own_way_keeps_it(teacher, student, batches):
    own = type("Own", (type(student),), {})
    own.embed_prepared = lambda self, prepared: self.feature_maps(prepared)[-1].amax(dim=(2, 3))
    student.__class__ = own
    batch = first_batch(batches)
    (stage,) = make_stages("at", teacher, student, batches)
    torch.testing.assert_close(
        stage.loss(batch)["cross_entropy"].double(), cross_entropy(student, batch), **CLOSE
    )
