"""Objectives over feature maps against their loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import (
    attention_transfer,
    averaged_down,
    hint,
    input_gradients,
    jacobian_matching,
    most_attended,
    negative_sums,
    neuron_selectivity,
    partial_distance,
    same_size,
    variational_information,
)

from . import reference_features as slow
from .test_logits import loss_and_gradient

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
MARGINS = torch.tensor([-0.5, -0.1, 0.0, -2.0], dtype=torch.float64)
VARIANCE = torch.tensor([0.3, 1.0, 2.0, 5.0], dtype=torch.float64)


def with_margins(student, teacher):
    return partial_distance(student, teacher, MARGINS)


def slow_with_margins(student, teacher):
    return slow.partial_distance(student, teacher, MARGINS)


def with_variance(student, teacher):
    return variational_information(student, VARIANCE, teacher)


def slow_with_variance(student, teacher):
    return slow.variational_information(student, VARIANCE, teacher)


ANY_SHAPES = [(attention_transfer, slow.attention_transfer), (neuron_selectivity, slow.neuron_selectivity)]
ONE_SHAPE = [
    (hint, slow.hint),
    (with_margins, slow_with_margins),
    (with_variance, slow_with_variance),
    (jacobian_matching, slow.jacobian_matching),
]
EVERY = [*ANY_SHAPES, *ONE_SHAPE]
OURS = [ours for ours, _ in EVERY]
NAMES = [ours.__name__ for ours in OURS]


def maps(seed, student=(3, 4, 3, 3), teacher=(3, 4, 3, 3), dtype=torch.float64):
    """Maps of student and teacher, positive and negative."""
    generator = torch.Generator().manual_seed(seed)
    both = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (student, teacher)]
    return both[0].to(dtype), both[1].to(dtype)


def assert_same(ours, expected_by, student, teacher, tolerance):
    loss, gradient = loss_and_gradient(ours, student, teacher)
    expected, expected_gradient = loss_and_gradient(expected_by, student.double(), teacher.double())
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)
    return loss, gradient


# --- values and gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(("ours", "expected_by"), EVERY, ids=NAMES)
def test_equals_reference(ours, expected_by, size, dtype):
    shape = (size, 4, 3, 2)
    loss, gradient = assert_same(ours, expected_by, *maps(size, shape, shape, dtype), TOLERANCE[dtype])
    assert loss.dtype == gradient.dtype == dtype
    assert loss.shape == ()


@pytest.mark.parametrize(
    ("student", "teacher"),
    [((2, 3, 4, 4), (2, 5, 2, 2)), ((2, 3, 2, 2), (2, 5, 6, 4)), ((2, 3, 5, 3), (2, 2, 3, 4)),
     ((1, 1, 1, 1), (1, 7, 4, 4)), ((2, 2, 6, 6), (2, 9, 6, 6)), ((2, 9, 2, 3), (2, 2, 2, 3))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("ours", "expected_by"), ANY_SHAPES, ids=NAMES[:2])
def test_other_channels_and_sizes(ours, expected_by, student, teacher):
    """More positions than channels, and fewer; sizes that fit into each other, and such that do not."""
    assert_same(ours, expected_by, *maps(1, student, teacher), 1e-10)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.sampled_from(ANY_SHAPES), st.integers(0, 1000), *[st.integers(1, 5)] * 6)
def test_any_shapes(both, seed, c, d, height, width, other_height, other_width):
    student, teacher = maps(seed, (2, c, height, width), (2, d, other_height, other_width))
    assert_same(*both, student, teacher, 1e-9)


def test_gradient_of_the_variance():
    predicted, teacher = maps(2)
    ours, expected = (VARIANCE.clone().requires_grad_() for _ in range(2))
    variational_information(predicted, ours, teacher).backward()
    slow.variational_information(predicted, expected, teacher).backward()
    torch.testing.assert_close(ours.grad, expected.grad)


def test_information_is_best_at_the_true_mean_and_variance():
    teacher = torch.randn(500, 2, 2, 2, dtype=torch.float64) * torch.tensor([1.0, 3.0]).view(1, 2, 1, 1)
    mean, true = torch.zeros_like(teacher), teacher.square().mean(dim=(0, 2, 3))
    best = variational_information(mean, true, teacher)
    for other in (true * 1.1, true / 1.1, true.flip(0)):
        assert variational_information(mean, other, teacher) > best
    assert variational_information(mean + 0.1, true, teacher) > best


@pytest.mark.parametrize("ours", [f for f in OURS if f is not with_variance])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 4, 3, 3), (2, 4, 1, 1), (2, 4, 2, 1)])
def test_equal_maps_give_zero(ours, dtype, shape):
    student = maps(3, shape, shape, dtype)[0].abs()  # no margin applies
    assert ours(student, student.clone()).abs().item() < 1e-7


@pytest.mark.parametrize("ours", OURS)
def test_gradient_goes_to_the_student_only(ours):
    student, teacher = (x.requires_grad_() for x in maps(4, (2, 4, 2, 2), (2, 4, 2, 2)))
    ours(student, teacher).backward()
    assert student.grad.any()
    assert teacher.grad is None
    assert torch.autograd.gradcheck(lambda x: ours(x, teacher), (student,))


@pytest.mark.parametrize("ours", OURS)
def test_order_of_the_images_does_not_matter(ours):
    student, teacher = maps(5, (5, 4, 2, 2), (5, 4, 2, 2))
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(ours(student[order], teacher[order]), ours(student, teacher))
    assert (ours(student[order], teacher) - ours(student, teacher)).abs() > 1e-4


# --- precision ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(ours, dtype, autocast):
    student, teacher = maps(6, dtype=dtype)
    leaf = student.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = ours(leaf, teacher)
    loss.backward()  # outside of it, as in any loop
    expected, expected_gradient = loss_and_gradient(ours, student.double(), teacher.double())
    assert loss.dtype == torch.float32
    assert leaf.grad.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(
        leaf.grad.double(), expected_gradient, rtol=2 * torch.finfo(dtype).eps, atol=1e-5
    )


@pytest.mark.parametrize("ours", OURS)
def test_autocast_changes_nothing(ours):
    student, teacher = maps(7, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ours(student, teacher)
    assert torch.equal(inside, ours(student, teacher))


@pytest.mark.parametrize("ours", OURS)
def test_large_values_in_half_precision(ours):
    """Squares of these are beyond float16."""
    student, teacher = (1000 * x for x in maps(8, dtype=torch.float16))
    loss, gradient = loss_and_gradient(ours, student.to(torch.bfloat16), teacher.to(torch.bfloat16))
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert ours(student, teacher).isfinite()


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("who", ["student", "teacher", "both"])
def test_maps_of_zeros(ours, who):
    student, teacher = maps(9, dtype=torch.float32)
    student, teacher = student * (who == "teacher"), teacher * (who == "student")
    loss, gradient = loss_and_gradient(ours, student, teacher)
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("ours", "expected_by"), EVERY, ids=NAMES)
def test_a_channel_and_an_image_of_zeros(ours, expected_by):
    student, teacher = maps(10)
    student[:, 1] = 0
    student[2] = 0
    teacher[:, 3] = 0
    assert_same(ours, expected_by, student, teacher, 1e-10)


@pytest.mark.parametrize("ours", OURS)
def test_no_images(ours):
    nothing = torch.ones(0, 4, 2, 2)
    assert ours(nothing, nothing) == 0


# --- what each of them is blind to ------------------------------------------------------------------------


def test_attention_ignores_scale_sign_and_order_of_channels():
    student, teacher = maps(11)
    expected = attention_transfer(student, teacher)
    assert expected > 1e-3
    torch.testing.assert_close(attention_transfer(-7 * student[:, [2, 0, 3, 1]], 100 * teacher), expected)


def test_selectivity_ignores_scale_sign_and_order_of_channels():
    student, teacher = maps(12)
    factors = torch.tensor([2.0, -1.0, 30.0, 0.1], dtype=torch.float64).view(1, 4, 1, 1)
    expected = neuron_selectivity(student, teacher)
    assert expected > 1e-3
    torch.testing.assert_close(neuron_selectivity(student * factors, teacher[:, [1, 0, 3, 2]]), expected)


def test_jacobians_ignore_length():
    student, teacher = maps(13)
    expected = jacobian_matching(student, teacher)
    torch.testing.assert_close(jacobian_matching(1e-30 * student, 1e20 * teacher), expected)
    torch.testing.assert_close(jacobian_matching(1e-30 * student.float(), teacher.float()), expected.float())
    assert jacobian_matching(student, -student).item() == pytest.approx(4)


def test_what_the_activation_cuts_off_costs_nothing():
    teacher = torch.full((1, 1, 1, 1), -0.3)
    margin = torch.tensor([-0.5])
    for response, cost in ((-9.0, 0), (-0.3, 0), (-0.1, 0.04), (0.2, 0.25)):
        found = partial_distance(torch.full((1, 1, 1, 1), response), teacher, margin)
        assert found.item() == pytest.approx(cost, abs=1e-7)
    deep = partial_distance(torch.full((1, 1, 1, 1), -0.4), teacher - 5, margin)
    assert deep.item() == pytest.approx(0.01)  # to the margin, not to the teacher
    active = partial_distance(torch.full((1, 1, 1, 1), -2.0), torch.full((1, 1, 1, 1), 1.0), margin)
    assert active.item() == pytest.approx(9)


# --- parts ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40, derandomize=True)
@given(*[st.integers(1, 9)] * 4)
def test_averages_of_larger_maps(height, width, rows, columns):
    larger, _ = maps(14, (2, 3, height, width), (1, 1, 1, 1))
    found = averaged_down(larger, (rows, columns))
    assert found.shape == (2, 3, min(rows, height), min(columns, width))
    torch.testing.assert_close(found, slow.averaged_down(larger, rows, columns))


def test_sizes_are_made_the_same():
    student, teacher = maps(15, (2, 3, 4, 2), (2, 5, 2, 6))
    ours, theirs = same_size(student, teacher)
    assert ours.shape == (2, 3, 2, 2)
    assert theirs.shape == (2, 5, 2, 2)
    assert same_size(ours, theirs)[0] is ours


def test_means_of_negative_responses():
    batches = [maps(seed, (2, 4, 3, 3))[0] for seed in range(3)]
    for batch in batches:
        batch[:, 2].abs_()
    total, count = sum(negative_sums(batch) for batch in batches)
    expected = slow.margins(torch.cat(batches))
    assert (total / count.clamp(min=1)).tolist() == pytest.approx(expected)
    assert expected[2] == 0


def test_counts_of_many_responses_are_exact():
    sums = negative_sums(-torch.ones(1, 1, 4100, 4100, dtype=torch.bfloat16))
    assert sums.dtype == torch.float64
    assert sums[:, 0].tolist() == [-(4100**2), 4100**2]


def test_most_attended_position_is_the_teachers():
    student, teacher = (x.requires_grad_() for x in maps(16, (2, 3, 2, 2), (2, 5, 4, 4)))
    ours, theirs = most_attended(student, teacher)
    for image in range(2):
        looks = slow.attention(slow.averaged_down(teacher, 2, 2)[image]) / 5
        where = looks.argmax()
        torch.testing.assert_close(theirs[image], looks[where])
        torch.testing.assert_close(ours[image], slow.attention(student[image])[where] / 3)
    ours.sum().backward()
    assert (student.grad != 0).sum() == 2 * 3  # one position of each image


@pytest.mark.parametrize("differentiable", [False, True])
def test_gradients_of_the_pixels(differentiable):
    images = torch.rand(3, 2, 2, 2, dtype=torch.float64).requires_grad_()
    weight = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    found = input_gradients((weight * images**3).sum(dim=(1, 2, 3)), images, differentiable=differentiable)
    torch.testing.assert_close(found, 9 * images.detach() ** 2)
    assert found.requires_grad == differentiable
    assert images.grad is weight.grad is None
    if differentiable:
        found.sum().backward()
        torch.testing.assert_close(weight.grad, (3 * images.detach() ** 2).sum())


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [attention_transfer, neuron_selectivity, hint, with_margins, with_variance])
@pytest.mark.parametrize(("student", "teacher"), [((4, 3, 2, 2), (5, 3, 2, 2)), ((4, 3), (4, 3))])
def test_wrong_shapes(ours, student, teacher):
    with pytest.raises(ValueError, match="share B") as error:
        ours(torch.ones(student), torch.ones(teacher))
    assert str(list(student)) in str(error.value)


@pytest.mark.parametrize(("ours", "expected_by"), ONE_SHAPE)
def test_shapes_that_must_be_one(ours, expected_by):
    with pytest.raises(ValueError, match="one shape"):
        ours(torch.ones(2, 4, 3, 3), torch.ones(2, 4, 2, 2))


def test_one_margin_and_one_variance_for_each_channel():
    ones = torch.ones(2, 3, 2, 2)
    with pytest.raises(ValueError, match=r"margins must be \[3\], not \[4\]"):
        partial_distance(ones, ones, MARGINS)
    with pytest.raises(ValueError, match=r"variance must be \[3\], not \[4\]"):
        variational_information(ones, VARIANCE, ones)
