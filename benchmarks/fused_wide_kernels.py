"""Kernels of ``fused_wide.py``. Maps lie as [pixels, channels], weights as [outputs, taps, channels]."""

import triton
import triton.language as tl

from refilled.models.convolution_kernels import _all_taps, _taken


@triton.jit
def _store_sums(sums, block, n, first, second, N: tl.constexpr):
    """Two sums over the pixels of a program into sums [programs, 2, N]."""
    tl.store(sums + block * 2 * N + n, first)
    tl.store(sums + (block * 2 + 1) * N + n, second)


@triton.jit
def _store_with_sums(total, y, sums, block, places, inside, n, N: tl.constexpr):
    """Maps [M, BN], and their sums and those of their squares, as they are stored."""
    found = total.to(y.dtype.element_ty)
    tl.store(y + places, found, mask=inside[:, None])
    exact = tl.where(inside[:, None], found.to(tl.float32), 0.0)
    _store_sums(sums, block, n, tl.sum(exact, 0), tl.sum(exact * exact, 0), N)


@triton.jit(do_not_specialize=["pixels"])
def convolve(
    x, weight, beside, y, sums, pixels, height, width, down, across,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """y [pixels, N]: the convolution of x [.., K] by weight [N, SIDE * SIDE, K], plus beside [pixels, N]."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    m = tl.program_id(1) * M + tl.arange(0, M)
    inside = m < pixels
    image = m // (down * across)
    row, column = (m // across) % down * STRIDE - SIDE // 2, m % across * STRIDE - SIDE // 2
    total = tl.zeros((M, BN), tl.float32)
    for place in range(SIDE * SIDE * (K // BK)):
        tap, channel = place // (K // BK), place % (K // BK) * BK + k
        a = _taken(x, image, row + tap // SIDE, column + tap % SIDE, inside, channel, height, width, K)
        b = tl.trans(tl.load(weight + (n[:, None] * (SIDE * SIDE) + tap) * K + channel[None, :]))
        total = tl.dot(a, b, total)
    places = m[:, None] * N + n[None, :]
    if BESIDE:
        total += tl.load(beside + places, mask=inside[:, None], other=0.0).to(tl.float32)
    _store_with_sums(total, y, sums, tl.program_id(1), places, inside, n, N)


@triton.jit(do_not_specialize=["pixels"])
def convolve_few(
    x, weight, y, sums, pixels, height, width, down, across,
    C: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
):  # fmt: skip
    """The same for few channels C: all taps of all of them at once, in K columns."""
    m, k, n = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    inside, taken = m < pixels, (k < SIDE * SIDE * C)[:, None]
    a = _all_taps(x, m, inside, k, height, width, down, across, C, SIDE, STRIDE)
    b = tl.load(weight + n[None, :] * (SIDE * SIDE * C) + k[:, None], mask=taken, other=0.0)
    total = tl.dot(a, b)
    _store_with_sums(total, y, sums, tl.program_id(0), m[:, None] * N + n[None, :], inside, n, N)


@triton.jit(do_not_specialize=["parts", "count"])
def finish(
    sums, weight, bias, running_mean, running_var, batches, stats, parts, count, eps, momentum,
    C: tl.constexpr, BC: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """stats [4, C] of maps with sums [parts, 2, C] over ``count`` pixels: factor and term that normalise
    them, their mean, and one by their spread. Moves the running statistics, and counts the batch."""
    c, p = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, P)
    first, second = tl.zeros((P, BC), tl.float32), tl.zeros((P, BC), tl.float32)
    for start in range(0, parts, P):
        places = (start + p)[:, None] * 2 * C + c[None, :]
        inside = (start + p < parts)[:, None]
        first += tl.load(sums + places, mask=inside, other=0.0)
        second += tl.load(sums + places + C, mask=inside, other=0.0)
    pixels = tl.cast(count, tl.float32)
    mean = tl.sum(first, 0) / pixels
    var = tl.maximum(tl.sum(second, 0) / pixels - mean * mean, 0.0)
    spread = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(weight + c) * spread
    tl.store(stats + c, scale)
    tl.store(stats + C + c, tl.load(bias + c) - mean * scale)
    tl.store(stats + 2 * C + c, mean)
    tl.store(stats + 3 * C + c, spread)
    old = tl.load(running_mean + c)
    tl.store(running_mean + c, old + momentum * (mean - old))
    old = tl.load(running_var + c)
    tl.store(running_var + c, old + momentum * (var * (pixels / (pixels - 1)) - old))
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def _store_gradient(
    total, other, raw, stats, y, sums, block, places, inside, n, N: tl.constexpr, OTHER: tl.constexpr
):
    """The gradient [M, BN] behind a ReLU, where that let the normalised maps through; its sums, and those of
    it times the normalised maps. raw: the maps before normalisation; stats [4, N]: what they are multiplied
    with, and what is added, for it; their mean, and one by their spread. OTHER: add a second gradient."""
    if OTHER:
        total += tl.load(other + places, mask=inside[:, None], other=0.0).to(tl.float32)
    v = tl.load(raw + places, mask=inside[:, None], other=0.0).to(tl.float32)
    active = v * tl.load(stats + n)[None, :] + tl.load(stats + N + n)[None, :] > 0
    found = tl.where(active & inside[:, None], total, 0.0).to(y.dtype.element_ty)
    tl.store(y + places, found, mask=inside[:, None])
    exact = found.to(tl.float32)
    normal = (v - tl.load(stats + 2 * N + n)[None, :]) * tl.load(stats + 3 * N + n)[None, :]
    _store_sums(sums, block, n, tl.sum(exact, 0), tl.sum(exact * normal, 0), N)


@triton.jit(do_not_specialize=["pixels"])
def gradient(
    g, weight, other, raw, stats, y, sums, pixels, height, width,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """y [pixels, N]: the gradient in front of a ReLU that a convolution without strides follows, by g
    [pixels, K] behind that; weight is [K, SIDE * SIDE, N]."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    m = tl.program_id(1) * M + tl.arange(0, M)
    inside = m < pixels
    image, row, column = m // (height * width), (m // width) % height - SIDE // 2, m % width - SIDE // 2
    total = tl.zeros((M, BN), tl.float32)
    for place in range(SIDE * SIDE * (K // BK)):
        tap, channel = place // (K // BK), place % (K // BK) * BK + k
        a = _taken(g, image, row + tap // SIDE, column + tap % SIDE, inside, channel, height, width, K)
        mirrored = SIDE * SIDE - 1 - tap
        b = tl.load(weight + (channel[:, None] * (SIDE * SIDE) + mirrored) * N + n[None, :])
        total = tl.dot(a, b, total)
    places = m[:, None] * N + n[None, :]
    _store_gradient(total, other, raw, stats, y, sums, tl.program_id(1), places, inside, n, N, OTHER)


@triton.jit(do_not_specialize=["pixels"])
def spread(
    g, weight, other, raw, stats, y, sums, pixels, height, width, down, across,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """The same with strides of two: a program has one corner of the squares that belong to pixels of g."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    m = tl.program_id(1) * M + tl.arange(0, M)
    lower, right = tl.program_id(2) // 2, tl.program_id(2) % 2
    image, i, j = m // (down * across), (m // across) % down, m % across
    inside = m < pixels
    if SIDE == 3:
        lines, columns = 1 + lower, 1 + right
    else:
        lines, columns = 1 - lower, 1 - right
    total = tl.zeros((M, BN), tl.float32)
    for place in range(lines * columns * (K // BK)):
        which, channel = place // (K // BK), place % (K // BK) * BK + k
        below, beside = which // columns, which % columns
        tap = 0
        if SIDE == 3:
            tap = (1 + lower * (1 - 2 * below)) * 3 + 1 + right * (1 - 2 * beside)
        a = _taken(g, image, i + below, j + beside, inside, channel, down, across, K)
        b = tl.load(weight + (channel[:, None] * (SIDE * SIDE) + tap) * N + n[None, :])
        total = tl.dot(a, b, total)
    row, column = 2 * i + lower, 2 * j + right
    there = inside & (row < height) & (column < width)
    places = ((image * height + row) * width + column)[:, None] * N + n[None, :]
    block = tl.program_id(1) * 4 + tl.program_id(2)
    _store_gradient(total, other, raw, stats, y, sums, block, places, there, n, N, OTHER)
