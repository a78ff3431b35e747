"""A block of T ConvNets at once, in kernels of our own (Triton).

Libraries have no convolution that is fast when every few images have weights of their own. Here a block is
six kernels, whatever T: maps lie as [T, B, H, W, C], so that every pixel of a task is a row of a matrix, and

- forward: a convolution (nine products of matrices, no copy of neighbours), which also sums what the
  normalisation needs; then normalisation, pooling and ReLU in one pass;
- backward: sums over the gradient; the gradient before the normalisation; that of the weights; that of the
  images, which is a convolution again.

Sums are float32, maps and products have the type of the images. Channels are a power of two from 16 up; the
first block has any number of them, and its images no gradient.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 128
"""Pixels of a program of the convolution, and of a step of the weights' gradient."""
WINDOWS = 32
"""Windows of four pixels of a program of the pooling."""
PROGRAMS = 2048
"""Wanted for the weights' gradient, which is cut into so many parts."""


@triton.jit
def _neighbour_rows(x, m, inside, k, height, width, C: tl.constexpr, K: tl.constexpr):
    """The nine neighbours' channels of pixels m, where C is small: [M, K] with K from 9 * C up."""
    tap, channel = k // C, k % C
    down, right = tap // 3 - 1, tap % 3 - 1
    row, column = (m // width) % height, m % width
    there = (row[:, None] + down[None, :] >= 0) & (row[:, None] + down[None, :] < height)
    there &= (column[:, None] + right[None, :] >= 0) & (column[:, None] + right[None, :] < width)
    there &= inside[:, None] & (k < 9 * C)[None, :]
    places = (m[:, None] + (down * width + right)[None, :]) * C + channel[None, :]
    return tl.load(x + places, mask=there, other=0.0)


@triton.jit
def _neighbour(x, m, inside, tap, channel, height, width, C: tl.constexpr):
    """The channels of one neighbour of pixels m: [M, C], zero beyond the border."""
    down, right = tap // 3 - 1, tap % 3 - 1
    row, column = (m // width) % height + down, m % width + right
    there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = (m + down * width + right)[:, None] * C + channel[None, :]
    return tl.load(x + places, mask=there[:, None], other=0.0)


@triton.jit(do_not_specialize=["pixels", "height", "width"])
def _convolve(
    x, weight, bias, y, sums, pixels, height, width,
    C: tl.constexpr, K: tl.constexpr, D: tl.constexpr, M: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """y [T, pixels, D] = neighbours of x [T, pixels, C] times weight [T, 9 * C, D].

    FIRST: add the bias [T, D], and write sums [T, programs, 2, D] of y and y².
    """
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    x += task * pixels * C
    weight += task * 9 * C * D
    m, o = block * M + tl.arange(0, M), tl.arange(0, D)
    inside = m < pixels
    if C >= 16:
        channel = tl.arange(0, C)
        total = tl.zeros((M, D), tl.float32)
        for tap in range(9):
            a = _neighbour(x, m, inside, tap, channel, height, width, C)
            b = tl.load(weight + (tap * C + channel)[:, None] * D + o[None, :])
            total = tl.dot(a, b, total, input_precision="ieee")
    else:
        k = tl.arange(0, K)
        a = _neighbour_rows(x, m, inside, k, height, width, C, K)
        b = tl.load(weight + k[:, None] * D + o[None, :], mask=(k < 9 * C)[:, None], other=0.0)
        total = tl.dot(a, b, input_precision="ieee")
    if FIRST:
        total += tl.load(bias + task * D + o)[None, :]
    found = total.to(y.dtype.element_ty)
    tl.store(y + task * pixels * D + m[:, None] * D + o[None, :], found, mask=inside[:, None])
    if FIRST:
        exact = tl.where(inside[:, None], found.to(tl.float32), 0.0)
        sums += ((task * tl.num_programs(0) + block) * 2) * D
        tl.store(sums + o, tl.sum(exact, 0))
        tl.store(sums + D + o, tl.sum(exact * exact, 0))


@triton.jit(do_not_specialize=["pixels", "each", "height", "width"])
def _weight_gradient(
    x, g, out, bias_out, pixels, each, height, width,
    C: tl.constexpr, K: tl.constexpr, D: tl.constexpr, M: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """out [parts, T, 9 * C, D]: neighbours of x [T, pixels, C], transposed, times g [T, pixels, D]; each part
    of ``each`` pixels. bias_out [parts, T, D]: sums of g."""
    tap, part = tl.program_id(0) % TAPS, tl.program_id(0) // TAPS
    task = tl.program_id(1).to(tl.int64)
    x += task * pixels * C
    g += task * pixels * D
    place = part * tl.num_programs(1) + task
    o, first = tl.arange(0, D), part * each
    last = tl.minimum(first + each, pixels)
    sums = tl.zeros((D,), tl.float32)
    if C >= 16:
        k = tl.arange(0, C)
        total = tl.zeros((C, D), tl.float32)
    else:
        k = tl.arange(0, K)
        total = tl.zeros((K, D), tl.float32)
    for start in range(first, last, M):
        m = start + tl.arange(0, M)
        inside = m < last
        b = tl.load(g + m[:, None] * D + o[None, :], mask=inside[:, None], other=0.0)
        if C >= 16:
            a = _neighbour(x, m, inside, tap, k, height, width, C)
        else:
            a = _neighbour_rows(x, m, inside, k, height, width, C, K)
        total = tl.dot(tl.trans(a), b, total, input_precision="ieee")
        sums += tl.sum(b.to(tl.float32), 0)
    if C >= 16:
        tl.store(out + (place * 9 * C + tap * C + k)[:, None] * D + o[None, :], total)
    else:
        tl.store(out + (place * 9 * C + k)[:, None] * D + o[None, :], total, mask=(k < 9 * C)[:, None])
    tl.store(bias_out + place * D + o, sums, mask=(o >= 0) & (tap == 0))


@triton.jit
def _four(x, corner, inside, o, width, D: tl.constexpr):
    """The four pixels of windows [P] with that upper left corner: each float32 [P, D]."""
    places = corner[:, None] * D + o[None, :]
    mask = inside[:, None]
    a = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x + places + D, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(x + places + width * D, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(x + places + (width + 1) * D, mask=mask, other=0.0).to(tl.float32)
    return a, b, c, d


@triton.jit
def _largest(a, b, c, d):
    """The largest of four and which it is; of equal ones the first."""
    best, which = a, tl.zeros_like(a).to(tl.int32)
    which = tl.where(b > best, 1, which)
    best = tl.maximum(b, best)
    which = tl.where(c > best, 2, which)
    best = tl.maximum(c, best)
    which = tl.where(d > best, 3, which)
    return tl.maximum(d, best), which


@triton.jit(do_not_specialize=["windows", "pixels", "height", "width"])
def _pool(x, scale, shift, y, windows, pixels, height, width, D: tl.constexpr, P: tl.constexpr):
    """y [T, windows, D]: the largest of scale * x + shift in each window, or zero if that is less."""
    task = tl.program_id(1).to(tl.int64)
    o, p = tl.arange(0, D), tl.program_id(0) * P + tl.arange(0, P)
    inside = p < windows
    down, across = height // 2, width // 2
    corner = ((p // (down * across)) * height + 2 * ((p // across) % down)) * width + 2 * (p % across)
    a, b, c, d = _four(x + task * pixels * D, corner, inside, o, width, D)
    m, s = tl.load(scale + task * D + o)[None, :], tl.load(shift + task * D + o)[None, :]
    best, _ = _largest(a * m + s, b * m + s, c * m + s, d * m + s)
    places = task * windows * D + p[:, None] * D + o[None, :]
    tl.store(y + places, tl.maximum(best, 0.0).to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _gradients(a, b, c, d, scale, shift, g):
    """The gradient of pooled windows [P, D] at each of their four pixels, and which has it."""
    best, which = _largest(
        a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
    )  # fmt: skip
    return tl.where(best > 0.0, g, 0.0), which


@triton.jit(do_not_specialize=["windows", "pixels", "height", "width"])
def _gradient_sums(
    x, g, scale, shift, mean, spread, sums, windows, pixels, height, width,
    D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """sums [T, programs, 2, D] of the gradient behind the normalisation, and of it times normalised x."""
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o, p = tl.arange(0, D), block * P + tl.arange(0, P)
    inside = p < windows
    down, across = height // 2, width // 2
    corner = ((p // (down * across)) * height + 2 * ((p // across) % down)) * width + 2 * (p % across)
    a, b, c, d = _four(x + task * pixels * D, corner, inside, o, width, D)
    places = task * windows * D + p[:, None] * D + o[None, :]
    given = tl.load(g + places, mask=inside[:, None], other=0.0).to(tl.float32)
    own = task * D + o
    given, which = _gradients(
        a, b, c, d, tl.load(scale + own)[None, :], tl.load(shift + own)[None, :], given
    )  # fmt: skip
    taken = tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))
    normal = (taken - tl.load(mean + own)[None, :]) * tl.load(spread + own)[None, :]
    sums += ((task * tl.num_programs(0) + block) * 2) * D
    tl.store(sums + o, tl.sum(given, 0))
    tl.store(sums + D + o, tl.sum(given * normal, 0))


@triton.jit
def _store_gradient(out, v, g, m, s, k, r, first, second, places, mask):
    normal = (v - k) * r
    tl.store(out + places, (m * (g - first - normal * second)).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["pixels", "images", "height", "width"])
def _gradient_before(
    x, g, scale, shift, mean, spread, first, second, out, pixels, images, height, width,
    D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """out [T, pixels, D]: the gradient before normalisation; first and second are means over pixels of what
    :func:`_gradient_sums` sums. Windows at an odd border are incomplete: pooling leaves them out."""
    task = tl.program_id(1).to(tl.int64)
    o, p = tl.arange(0, D), tl.program_id(0) * P + tl.arange(0, P)
    down, across = (height + 1) // 2, (width + 1) // 2
    image, top, left = p // (down * across), 2 * ((p // across) % down), 2 * (p % across)
    corner = (image * height + top) * width + left
    inside = image < images
    below, beside = inside & (top + 1 < height), inside & (left + 1 < width)
    whole = below & beside
    x += task * pixels * D
    out += task * pixels * D
    places = corner[:, None] * D + o[None, :]
    a = tl.load(x + places, mask=inside[:, None], other=0.0).to(tl.float32)
    b = tl.load(x + places + D, mask=beside[:, None], other=0.0).to(tl.float32)
    c = tl.load(x + places + width * D, mask=below[:, None], other=0.0).to(tl.float32)
    d = tl.load(x + places + (width + 1) * D, mask=whole[:, None], other=0.0).to(tl.float32)
    pooled = (image * (height // 2) + top // 2) * (width // 2) + left // 2
    g += task * images * (height // 2) * (width // 2) * D
    given = tl.load(g + pooled[:, None] * D + o[None, :], mask=whole[:, None], other=0.0).to(tl.float32)
    own = task * D + o
    m, s = tl.load(scale + own)[None, :], tl.load(shift + own)[None, :]
    k, r = tl.load(mean + own)[None, :], tl.load(spread + own)[None, :]
    u, v = tl.load(first + own)[None, :], tl.load(second + own)[None, :]
    given, which = _gradients(a, b, c, d, m, s, given)
    _store_gradient(out, a, tl.where(which == 0, given, 0.0), m, s, k, r, u, v, places, inside[:, None])
    _store_gradient(out, b, tl.where(which == 1, given, 0.0), m, s, k, r, u, v, places + D, beside[:, None])
    _store_gradient(
        out, c, tl.where(which == 2, given, 0.0), m, s, k, r, u, v, places + width * D, below[:, None]
    )
    _store_gradient(
        out, d, tl.where(which == 3, given, 0.0), m, s, k, r, u, v, places + (width + 1) * D, whole[:, None]
    )


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Maps [T, B, H, W, C] to [T, B, H, W, D] by weights [T, 9 * C, D].

    With biases [T, D] also sums [T, 2, D] of the new maps and of their squares.
    """
    tasks, images, height, width, channels = x.shape
    outputs, pixels = weight.shape[2], images * height * width
    y = x.new_empty(tasks, images, height, width, outputs)
    programs = triton.cdiv(pixels, ROWS)
    sums = x.new_empty(tasks, programs, 2, outputs, dtype=torch.float32) if bias is not None else None
    _convolve[programs, tasks](
        x, weight, weight if bias is None else bias, y, y if sums is None else sums, pixels, height, width,
        C=channels, K=_columns(channels), D=outputs, M=ROWS, FIRST=bias is not None,
    )  # fmt: skip
    return y, None if sums is None else sums.sum(dim=1)


def weight_gradient(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients float32 of weights [T, 9 * C, D] and biases [T, D], by maps x before and gradients g behind
    the convolution."""
    tasks, images, height, width, channels = x.shape
    outputs, pixels = g.shape[-1], images * height * width
    taps = 9 if channels >= 16 else 1
    parts = min(triton.cdiv(PROGRAMS, tasks * taps), triton.cdiv(pixels, 4 * ROWS))
    each = triton.cdiv(triton.cdiv(pixels, parts), ROWS) * ROWS
    parts = triton.cdiv(pixels, each)
    out = x.new_empty(parts, tasks, 9 * channels, outputs, dtype=torch.float32)
    bias_out = x.new_empty(parts, tasks, outputs, dtype=torch.float32)
    _weight_gradient[taps * parts, tasks](
        x, g, out, bias_out, pixels, each, height, width,
        C=channels, K=_columns(channels), D=outputs, M=ROWS, TAPS=taps,
    )  # fmt: skip
    return out.sum(dim=0), bias_out.sum(dim=0)


def pool(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Scaled and shifted [T, D] maps [T, B, H, W, D], pooled and cut at zero: [T, B, H // 2, W // 2, D]."""
    tasks, images, height, width, outputs = x.shape
    y = x.new_empty(tasks, images, height // 2, width // 2, outputs)
    windows = images * (height // 2) * (width // 2)
    _pool[triton.cdiv(windows, WINDOWS), tasks](
        x, scale, shift, y, windows, images * height * width, height, width, D=outputs, P=WINDOWS
    )
    return y


def _columns(channels: int) -> int:
    return max(16, triton.next_power_of_2(9 * channels))


class TrainedBlock(torch.autograd.Function):
    """Convolution, normalisation by the batch, pooling and ReLU.

    Takes maps [T, B, H, W, C], weights [T, D, C, 3, 3], biases, scales and shifts [T, D], and returns maps
    [T, B, H // 2, W // 2, D] with the means and variances [T, D] of what was normalised.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Maps, means and variances."""
        raw, sums = convolve(x, _as_matrices(weight, x.dtype), bias.float().contiguous())
        assert sums is not None
        mean, square = (sums / (raw.numel() // sums[:, 0].numel())).unbind(dim=1)
        variance = (square - mean * mean).clamp(min=0)
        spread = (variance + eps).rsqrt()
        scale = gamma.float() * spread
        shift = beta.float() - mean * scale
        y = pool(raw, scale, shift)
        ctx.save_for_backward(x, weight, raw, mean.contiguous(), spread, scale, shift)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Of maps, weights, biases, scales and shifts."""
        x, weight, raw, mean, spread, scale, shift = ctx.saved_tensors
        g = gradients[0].contiguous()
        tasks, images, height, width, outputs = raw.shape
        pixels, windows = images * height * width, images * (height // 2) * (width // 2)
        programs = triton.cdiv(windows, WINDOWS)
        sums = raw.new_empty(tasks, programs, 2, outputs, dtype=torch.float32)
        _gradient_sums[programs, tasks](
            raw, g, scale, shift, mean, spread, sums, windows, pixels, height, width, D=outputs, P=WINDOWS
        )
        of_shift, of_scale = (part.contiguous() for part in sums.sum(dim=1).unbind(dim=1))
        before = torch.empty_like(raw)
        corners = images * ((height + 1) // 2) * ((width + 1) // 2)
        _gradient_before[triton.cdiv(corners, WINDOWS), tasks](
            raw, g, scale, shift, mean, spread, of_shift / pixels, of_scale / pixels, before,
            pixels, images, height, width, D=outputs, P=WINDOWS,
        )  # fmt: skip
        of_weight, of_bias = weight_gradient(x, before)
        of_weight = of_weight.view(tasks, 3, 3, -1, outputs).permute(0, 4, 3, 1, 2).to(weight.dtype)
        of_x = None
        if ctx.needs_input_grad[0]:  # each pixel gives to its neighbours what it took from them
            mirrored = weight.flip(3, 4).transpose(1, 2)
            of_x, _ = convolve(before, _as_matrices(mirrored, x.dtype), None)
        return of_x, of_weight, of_bias, of_scale, of_shift, None


def known_block(
    x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    """The same with known means and variances [T, D], without a gradient."""
    raw, _ = convolve(x, _as_matrices(weight, x.dtype), bias.float().contiguous())
    scale = gamma.float() * (variance.float() + eps).rsqrt()
    return pool(raw, scale, beta.float() - mean.float() * scale)


def _as_matrices(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, D, C, 3, 3] as [T, 9 * C, D], neighbour by neighbour."""
    return weight.permute(0, 3, 4, 2, 1).to(dtype).contiguous().flatten(1, 3)
