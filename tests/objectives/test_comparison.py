"""Comparison matching: equal to the loop over all tuples, in loss and gradient, wherever that is defined."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refilled.objectives import comparison, comparison_matching

from . import reference

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
WINDOWS = list(itertools.product([None, 0.02, 0.2, 1.0], [None, 1, 2, 5]))
SOME_WINDOWS = [(None, None), (0.2, None), (None, 3), (0.2, 3)]


def batch(seed: int, size: int = 16, dim: int = 8, classes: int = 4, dtype=torch.float64):
    """Random student [B, d], teacher [B, d + 3] and labels."""
    generator = torch.Generator().manual_seed(seed)
    student = torch.randn(size, dim, generator=generator, dtype=torch.float64).to(dtype)
    teacher = torch.randn(size, dim + 3, generator=generator, dtype=torch.float64).to(dtype)
    return student, teacher, torch.randint(0, classes, (size,), generator=generator)


def loss_and_gradient(function, student: Tensor, teacher: Tensor, labels: Tensor, **options):
    """Value and gradient with respect to the student."""
    student = student.detach().clone().requires_grad_()
    loss = function(student, teacher, labels, **options)
    loss.backward()
    return loss.detach(), student.grad


def assert_same(student: Tensor, teacher: Tensor, labels: Tensor, tolerance: float | None = None, **options):
    """Ours equals the float64 reference of the same numbers, relative to the greatest entry or to 1."""
    if tolerance is None:
        tolerance = TOLERANCE[student.dtype]
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    expected, expected_gradient = loss_and_gradient(
        reference.comparison_matching, student.double(), teacher.double(), labels, **options
    )
    assert loss.dtype == (torch.float64 if student.dtype == torch.float64 else torch.float32)
    assert gradient.dtype == student.dtype
    assert abs(loss.item() - expected.item()) <= tolerance * max(1.0, expected.item())
    if gradient.numel():
        scale = max(1.0, expected_gradient.abs().max().item())
        assert (gradient.double() - expected_gradient).abs().max().item() <= tolerance * scale
    return expected, expected_gradient


# --- equality on random batches ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
@pytest.mark.parametrize("taus", [(0.5, 0.5), (0.5, 10.0), (10.0, 0.5), (1.0, 2.0), (4.0, 4.0), (10.0, 10.0)])
def test_equals_reference_at_usual_temperatures(taus, margin, max_impostors, dtype):
    student, teacher, labels = batch(int(10 * taus[0] + taus[1]), dtype=dtype)
    options = {"tau_student": taus[0], "tau_teacher": taus[1], "margin": margin}
    expected, _ = assert_same(student, teacher, labels, max_impostors=max_impostors, **options)
    assert expected > 0


@pytest.mark.parametrize(("margin", "max_impostors"), WINDOWS)
def test_equals_reference_for_every_window(margin, max_impostors):
    for seed, dim in ((0, 3), (1, 16)):
        student, teacher, labels = batch(seed, dim=dim)
        assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
@pytest.mark.parametrize("taus", [(0.05, 0.05), (0.05, 2.0), (1.0, 0.05), (0.004, 0.004)])
def test_equals_reference_at_small_temperatures(taus, margin, max_impostors, dtype):
    """The bound of the method is 1e-3 at temperature 0.05; the same as elsewhere holds."""
    student, teacher, labels = batch(7, dtype=dtype)
    options = {"tau_student": taus[0], "tau_teacher": taus[1], "margin": margin}
    assert_same(student, teacher, labels, max_impostors=max_impostors, **options)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(
    ("margin", "max_impostors"), [(None, None), (0.05, None), (None, 1), (None, 2), (0.3, 2)]
)
@pytest.mark.parametrize("taus", [(0.005, 0.005), (0.02, 0.5), (0.5, 0.01)])
def test_windows_of_tiny_terms_do_not_cancel(taus, margin, max_impostors, dim):
    """In few dimensions distances spread from 0 to 2: exp(-D / tau) covers hundreds of decades, and a
    window far from the anchor holds only terms that vanish beside the rest of the row."""
    student, teacher, labels = batch(dim, size=24, dim=dim, classes=3)
    options = {"tau_student": taus[0], "tau_teacher": taus[1], "margin": margin}
    assert_same(student, teacher, labels, max_impostors=max_impostors, **options)


def test_far_window_of_tiny_terms_by_hand():
    """An anchor, a positive almost opposite, one impostor opposite, and many negatives close by whose
    terms are 10^170 times as large."""
    angles = torch.tensor([0.0, 2.8, 3.1, *torch.linspace(0.01, 0.2, 30).tolist()], dtype=torch.float64)
    student = torch.stack((angles.cos(), angles.sin()), dim=1)
    teacher = torch.stack(((angles * 0.9).cos(), (angles * 0.9).sin()), dim=1)
    labels = torch.tensor([0, 0, 1, *range(2, 32)])
    for options in ({"max_impostors": 1}, {"margin": 0.2}, {}):
        assert_same(student, teacher, labels, tau_student=0.005, tau_teacher=0.005, **options)


def test_a_larger_batch():
    student, teacher, labels = batch(3, size=70, dim=5, classes=7, dtype=torch.float32)
    assert_same(student, teacher, labels, margin=0.4, max_impostors=9)
    assert_same(student, teacher, labels)


def test_three_images_by_hand():
    """Anchor at 0°, positive at 60°, negative at 180°: distances 1 and 2; as seen from the positive the
    negative is sqrt(3) away. The teacher has them at 90°, 90° and 90° of each other."""
    root = math.sqrt(3.0)
    student = torch.tensor([[5.0, 0.0], [0.5, root / 2], [-1.0, 0.0]], dtype=torch.float64)
    teacher = torch.eye(3, dtype=torch.float64) * 7
    labels = torch.tensor([4, 4, -9])

    def divergence(to_positive: float, to_negative: float, tau: float) -> float:
        q = 1.0 / (1.0 + math.exp((to_positive - to_negative) / tau))
        return 0.5 * math.log(0.5 / q) + 0.5 * math.log(0.5 / (1.0 - q))

    expected = (divergence(1.0, 2.0, 0.7) + divergence(1.0, root, 0.7)) / 2
    assert comparison_matching(student, teacher, labels, tau_student=0.7).item() == pytest.approx(
        expected, 1e-12
    )
    # A bound of 0.8 leaves only the second tuple (sqrt(3) - 1 = 0.73).
    bounded = comparison_matching(student, teacher, labels, tau_student=0.7, margin=0.8)
    assert bounded.item() == pytest.approx(divergence(1.0, root, 0.7), 1e-12)


# --- ties -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_duplicates_within_and_across_classes(margin, max_impostors, dtype):
    student, teacher, labels = batch(5, size=18, dim=4, dtype=dtype)
    labels[:6] = torch.tensor([0, 0, 1, 1, 2, 0])
    student[1] = student[0]  # in one class
    student[2] = student[0]  # in another class
    student[4] = 3.0 * student[3]  # one direction, another length, another class
    student[5] = student[3]
    teacher[7] = teacher[8]
    assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize(("margin", "max_impostors"), WINDOWS)
@pytest.mark.parametrize("grid", [1, 2])
def test_coarse_grid_with_many_equal_distances(grid, margin, max_impostors):
    """Most distances occur many times: who is an impostor, and who is among the nearest K, is decided by
    the rule for ties (farther means really farther; lower index first)."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(100 * grid + seed)
        student = torch.randint(-grid, grid + 1, (16, 3), generator=generator).double()
        teacher = torch.randn(16, 5, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 3, (16,), generator=generator)
        assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize("margin", [math.sqrt(2.0), 2.0, 2.0 - math.sqrt(2.0)])
def test_margin_excludes_impostors_exactly_at_the_bound(margin):
    """On the four half axes distances are 0, sqrt(2) and 2."""
    half_axes = torch.tensor([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64).repeat(3, 1)
    teacher = batch(2, size=12)[1]
    labels = torch.tensor([0, 1, 1, 2, 0, 0, 2, 1, 1, 0, 2, 2])
    assert_same(half_axes, teacher, labels, margin=margin)
    assert_same(half_axes, teacher, labels, margin=margin, max_impostors=2)


def test_nearest_impostors_among_equals_are_those_of_lower_index():
    """Impostors 2, 3 and 4 are equally far from both the anchor and the positive; only the teacher tells
    them apart."""
    student = torch.eye(5, dtype=torch.float64)
    student[1] = student[0]
    _, teacher, _ = batch(8, size=5)
    labels = torch.tensor([0, 0, 1, 2, 3])
    first_only = torch.tensor([0, 1, 2])
    expected = comparison_matching(student[first_only], teacher[first_only], labels[first_only])
    actual = comparison_matching(student, teacher, labels, max_impostors=1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    two = comparison_matching(student[:4], teacher[:4], labels[:4])
    torch.testing.assert_close(
        comparison_matching(student, teacher, labels, max_impostors=2), two, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_collapsed_student_has_loss_and_gradient_zero(margin, max_impostors, dtype):
    """All distances are 0: no negative is farther than a positive, so there is no tuple."""
    student = torch.randn(1, 6, generator=torch.Generator().manual_seed(0)).expand(12, 6).to(dtype)
    _, teacher, labels = batch(4, size=12)
    loss, gradient = loss_and_gradient(
        comparison_matching, student, teacher.to(dtype), labels, margin=margin, max_impostors=max_impostors
    )
    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_collapsed_teacher():
    student, teacher, labels = batch(9)
    expected, gradient = assert_same(student, teacher[:1].expand_as(teacher), labels)
    assert expected > 0
    assert gradient.abs().max() > 0


def test_classes_collapsed_to_their_centres():
    """Every positive is at distance 0: all negatives are impostors, the gradient stays finite."""
    centres = batch(6, size=4)[0]
    labels = torch.tensor([0, 1, 2, 3] * 4)
    assert_same(centres[labels], batch(6)[1], labels)
    assert_same(centres[labels], batch(6)[1], labels, max_impostors=2)


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize(("margin", "max_impostors"), [(None, None), (None, 3)])
def test_almost_collapsed_student(margin, max_impostors, spread, monkeypatch):
    """All directions are within a small angle of one another; their comparison is as exact as any."""
    monkeypatch.setattr(reference, "SAME_DISTANCE", 1e-14)
    tolerance = 1e-5  # relative to the greatest gradient, which grows as 1 / spread
    for seed in range(4):
        student, teacher, labels = batch(seed)
        student = student[:1] + spread * student
        assert_same(student, teacher, labels, tolerance, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5])
def test_equal_distances_are_equal_at_every_scale(spread):
    """Positive and negative lie left and right of the anchor, equally far: that is no tuple. The other
    order of the pair is one, for any rotation of the three."""
    teacher = batch(28, size=3)[1]
    for angle in torch.linspace(0.0, 6.0, 25, dtype=torch.float64).tolist():
        angles = angle + spread * torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
        student = torch.stack((angles.cos(), angles.sin()), dim=1)
        assert len(reference.comparison_tuples(student, torch.tensor([0, 0, 1]))) == 1
        assert_same(student, teacher, torch.tensor([0, 0, 1]), 1e-5)


# --- batches at the edge ----------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
@pytest.mark.parametrize(
    "labels", [[], [3], [1, 1], [1, 2], [5] * 8, list(range(8))], ids=["0", "1", "2 alike", "2", "one", "own"]
)
def test_batches_without_a_tuple(labels, margin, max_impostors):
    student, teacher, _ = batch(1, size=len(labels), dtype=torch.float32)
    loss, gradient = loss_and_gradient(
        comparison_matching,
        student,
        teacher,
        torch.tensor(labels, dtype=torch.int64),
        margin=margin,
        max_impostors=max_impostors,
    )
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert loss.item() == 0.0
    assert gradient.shape == student.shape
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_negatives_all_nearer_than_the_positive_make_no_tuple():
    student = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.6, 0.8]])
    loss, gradient = loss_and_gradient(
        comparison_matching, student, batch(0, size=3, dtype=torch.float32)[1], torch.tensor([0, 0, 1])
    )
    assert loss.item() == 0.0
    assert not gradient.any()


def test_zero_embeddings():
    """A zero row has no direction: it stands at the origin, distance 1 to all others, without gradient."""
    student, teacher, labels = batch(11, size=14, dim=3)
    student[[0, 3, 4]] = 0.0
    teacher[[3, 9]] = 0.0
    for margin, max_impostors in SOME_WINDOWS:
        _, gradient = assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)
        assert not gradient[[0, 3, 4]].any()
    loss, gradient = loss_and_gradient(comparison_matching, torch.zeros(6, 4), torch.zeros(6, 2), labels[:6])
    assert loss.item() == 0.0
    assert not gradient.any()


def test_one_dimension():
    """In one dimension every unit vector is +1 or -1."""
    student, teacher, labels = batch(12, dim=1)
    assert_same(student, teacher, labels)
    assert_same(student, teacher, labels, max_impostors=2, margin=0.5)


# --- precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_half_precision_is_exact_up_to_the_last_rounding(margin, max_impostors, dtype):
    student, teacher, labels = batch(13, dtype=dtype)
    options = {"margin": margin, "max_impostors": max_impostors, "tau_student": 0.1}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    expected, expected_gradient = loss_and_gradient(
        reference.comparison_matching, student.double(), teacher.double(), labels, **options
    )
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    one_unit = torch.finfo(dtype).eps
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=one_unit, atol=1e-6)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(half, dtype, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", 40)
    student, teacher, labels = batch(14, dtype=dtype)
    options = {"margin": 0.3, "max_impostors": 4}
    expected, expected_gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    with torch.autocast("cpu", dtype=half):
        loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    assert loss.dtype == expected.dtype
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)


def test_teacher_of_another_precision():
    student, teacher, labels = batch(15)
    loss = comparison_matching(student.float(), teacher.half(), labels)
    expected = reference.comparison_matching(student.float().double(), teacher.half().double(), labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_gradcheck(margin, max_impostors):
    student, teacher, labels = batch(16, size=7, dim=3, classes=2)
    student.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: comparison_matching(
            x, teacher, labels, tau_student=0.3, margin=margin, max_impostors=max_impostors
        ),
        (student,),
    )


# --- invariances ------------------------------------------------------------------------------------


def test_no_gradient_to_the_teacher():
    student, teacher, labels = batch(17)
    student.requires_grad_()
    teacher.requires_grad_()
    comparison_matching(student, teacher, labels).backward()
    assert teacher.grad is None
    assert student.grad.abs().max() > 0


def test_without_a_gradient_at_all(monkeypatch):
    student, teacher, labels = batch(17)
    expected = comparison_matching(student, teacher, labels)
    assert not expected.requires_grad
    monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", 1)
    with torch.no_grad():
        torch.testing.assert_close(comparison_matching(student.requires_grad_(), teacher, labels), expected)


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_an_equal_teacher_gives_zero(margin, max_impostors):
    student, _, labels = batch(18)
    options = {"tau_student": 0.3, "tau_teacher": 0.3, "margin": margin, "max_impostors": max_impostors}
    loss, gradient = loss_and_gradient(comparison_matching, student, 2.0 * student, labels, **options)
    assert abs(loss.item()) < 1e-12
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_lengths_of_embeddings_do_not_matter(margin, max_impostors):
    student, teacher, labels = batch(19)
    factors = torch.logspace(-6, 6, len(labels), dtype=torch.float64)[:, None]
    options = {"margin": margin, "max_impostors": max_impostors}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    scaled_loss, scaled_gradient = loss_and_gradient(
        comparison_matching, student * factors, teacher * factors.flip(0), labels, **options
    )
    torch.testing.assert_close(scaled_loss, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled_gradient * factors, gradient, rtol=0, atol=1e-12)
    assert (gradient * student).sum(dim=1).abs().max() < 1e-12  # so none of it changes a length


def test_rotations_of_embeddings_do_not_matter():
    student, teacher, labels = batch(20)
    rotation = torch.linalg.qr(batch(21, size=8, dim=8)[0]).Q
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels)
    wide = torch.cat((teacher, torch.zeros_like(teacher)), dim=1)
    turned_loss, turned_gradient = loss_and_gradient(comparison_matching, student @ rotation, wide, labels)
    torch.testing.assert_close(turned_loss, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(turned_gradient, gradient @ rotation, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_order_of_the_batch_and_names_of_classes_do_not_matter(margin, max_impostors):
    student, teacher, labels = batch(22)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(22))
    names = torch.tensor([-5, 1000, 2**40, 0])
    options = {"margin": margin, "max_impostors": max_impostors}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    other_loss, other_gradient = loss_and_gradient(
        comparison_matching, student[order], teacher[order], names[labels[order]], **options
    )
    torch.testing.assert_close(other_loss, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(other_gradient, gradient[order], rtol=0, atol=1e-12)


def test_inputs_are_left_as_they_are():
    student, teacher, labels = batch(23)
    copies = student.clone(), teacher.clone(), labels.clone()
    comparison_matching(student, teacher, labels, margin=0.2, max_impostors=3)
    for value, copy in zip((student, teacher, labels), copies):
        assert torch.equal(value, copy)


def test_unbounded_windows_equal_no_window():
    student, teacher, labels = batch(24)
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels)
    wide_loss, wide_gradient = loss_and_gradient(
        comparison_matching, student, teacher, labels, margin=2.1, max_impostors=len(labels)
    )
    torch.testing.assert_close(wide_loss, loss, rtol=0, atol=1e-13)
    torch.testing.assert_close(wide_gradient, gradient, rtol=0, atol=1e-13)


# --- shapes, blocks, arguments ----------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 2**25], ids=["made again", "kept"])
@pytest.mark.parametrize("elements", [1, 17, 16 * 5, 16 * 15])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_blocks_of_anchors_equal_one_block(margin, max_impostors, elements, kept, monkeypatch):
    student, teacher, labels = batch(25)
    student[3] = student[5]
    options = {"margin": margin, "max_impostors": max_impostors, "tau_student": 0.2}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", elements)
    monkeypatch.setattr(comparison, "_KEPT_ELEMENTS", kept)
    block_loss, block_gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    torch.testing.assert_close(block_loss, loss, rtol=0, atol=1e-13)
    torch.testing.assert_close(block_gradient, gradient, rtol=0, atol=1e-12)


def test_blocks_without_a_tuple(monkeypatch):
    monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", 1)
    for labels in ([], [0], [0, 0, 0], [0, 1, 2]):
        student, teacher, _ = batch(26, size=len(labels))
        target = torch.tensor(labels, dtype=torch.int64)
        loss, gradient = loss_and_gradient(comparison_matching, student, teacher, target)
        assert loss.item() == 0.0
        assert not gradient.any()


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_shapes_do_not_depend_on_values(margin, max_impostors):
    """Tensors without values pass through: no shape and no branch depends on what they hold."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        student = torch.empty(12, 5, requires_grad=True)
        loss = comparison_matching(
            student,
            torch.empty(12, 7),
            torch.empty(12, dtype=torch.int64),
            margin=margin,
            max_impostors=max_impostors,
        )
        loss.backward()
        assert loss.shape == ()
        assert student.grad.shape == (12, 5)


@pytest.mark.parametrize(
    ("student", "teacher", "labels", "message"),
    [
        ((4, 3), (4, 3), (4, 1), r"labels.*\[4, 1\]"),
        ((4, 3), (4, 3), (), r"labels.*\[\]"),
        ((5, 3), (4, 3), (4,), r"student.*4.*\[5, 3\]"),
        ((4, 3), (5, 2), (4,), r"teacher.*4.*\[5, 2\]"),
        ((4,), (4, 3), (4,), r"student.*\[4\]"),
        ((4, 3, 1), (4, 3), (4,), r"student.*\[4, 3, 1\]"),
        ((4, 3), (4, 2, 2, 2), (4,), r"teacher.*\[4, 2, 2, 2\]"),
    ],
)
def test_wrong_shapes(student, teacher, labels, message):
    with pytest.raises(ValueError, match=message):
        comparison_matching(torch.ones(student), torch.ones(teacher), torch.zeros(labels, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_student": 0.0}, r"tau_student.*not 0\.0"),
        ({"tau_student": -1.0}, r"tau_student.*not -1\.0"),
        ({"tau_teacher": 0.001}, r"tau_teacher.*not 0\.001"),
        ({"tau_teacher": math.nan}, r"tau_teacher.*not nan"),
        ({"margin": 0.0}, r"margin.*not 0\.0"),
        ({"margin": -0.2}, r"margin.*not -0\.2"),
        ({"margin": math.nan}, r"margin.*not nan"),
        ({"max_impostors": 0}, r"max_impostors.*not 0"),
        ({"max_impostors": -3}, r"max_impostors.*not -3"),
    ],
)
def test_wrong_settings(options, message):
    student, teacher, labels = batch(0)
    with pytest.raises(ValueError, match=message):
        comparison_matching(student, teacher, labels, **options)


# --- properties -------------------------------------------------------------------------------------


@st.composite
def small_batches(draw, numbers):
    """Student, teacher and labels of up to 9 images in up to 3 dimensions, numbers of one kind."""
    size, dim = draw(st.integers(0, 9)), draw(st.integers(1, 3))

    def matrix(width: int) -> Tensor:
        rows = [[draw(numbers) for _ in range(width)] for _ in range(size)]
        return torch.tensor(rows, dtype=torch.float64).reshape(size, width)

    labels = torch.tensor([draw(st.integers(0, 3)) for _ in range(size)], dtype=torch.int64)
    return matrix(dim), matrix(2), labels


small_settings = st.fixed_dictionaries(
    {
        "tau_student": st.sampled_from([0.05, 0.5, 1.0, 10.0]),
        "tau_teacher": st.sampled_from([0.05, 0.5, 2.0]),
        "margin": st.sampled_from([None, 0.1, 0.5, math.sqrt(2.0)]),
        "max_impostors": st.sampled_from([None, 1, 2, 4]),
    }
)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(small_batches(st.integers(-2, 2)), small_settings)
def test_equals_reference_for_any_labels_and_ties(data, options):
    assert_same(*data, **options)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(small_batches(st.floats(-1e3, 1e3, width=32)), small_settings, st.sampled_from([1, 20, 2**24]))
def test_never_negative_and_always_finite(data, options, elements):
    student, teacher, labels = data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_BLOCK_ELEMENTS", elements)
        loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    assert loss.isfinite()
    assert loss.item() >= -1e-12
    assert gradient.isfinite().all()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(1, 4), st.integers(1, 20), st.randoms(use_true_random=False), st.integers(0, 300))
def test_interval_sums_equal_a_loop(rows, n, random, decades):
    """Values from 1 down to 10^-decades: every window is exact relative to its own size."""
    values = torch.tensor(
        [[10.0 ** -random.uniform(0, decades) for _ in range(n)] for _ in range(rows)], dtype=torch.float64
    )
    first = torch.tensor([[random.randint(0, n) for _ in range(n)] for _ in range(rows)])
    signed = values * torch.tensor([random.choice((-1.0, 0.0, 1.0)) for _ in range(n)], dtype=torch.float64)
    sums, signed_sums = comparison.interval_sums((values, signed), first)
    torch.testing.assert_close(sums, reference.interval_sums(values, first), rtol=1e-13, atol=0)
    bound = 1e-13 * reference.interval_sums(signed.abs(), first)
    assert ((signed_sums - reference.interval_sums(signed, first)).abs() <= bound).all()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16, 17])
def test_interval_sums_for_every_interval(n):
    """All (first, last) of a row at once, one row for each first; integers, so sums are exact."""
    values = torch.arange(1.0, n + 1, dtype=torch.float64).pow(3).expand(n + 1, n)
    first = torch.arange(n + 1)[:, None].expand(n + 1, n)
    (sums,) = comparison.interval_sums((values,), first)
    assert torch.equal(sums, reference.interval_sums(values, first))


def test_interval_sums_gradient():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    first = torch.randint(0, 8, (2, 7), generator=generator)
    assert torch.autograd.gradcheck(lambda x: comparison.interval_sums((x, x * x), first), (values,))
