"""Kernels of :mod:`refilled.models.convolution`, called by :mod:`refilled.models.convolution_calls`.

Maps lie as [pixels, channels], weights as [outputs, taps, channels].
"""

import triton
import triton.language as tl


@triton.jit
def _taken(x, image, row, column, inside, channel, height, width, C: tl.constexpr):
    """The channels of one pixel for each of M: [M, BC], zero beyond the border."""
    there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = ((image * height + row) * width + column)[:, None] * C + channel[None, :]
    return tl.load(x + places, mask=there[:, None], other=0.0)


@triton.jit(do_not_specialize=["pixels"])
def convolve(
    x, weight, y, pixels, height, width, down, across,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """y [pixels, N]: for each tap the pixels of x [.., K] that it takes, times its weights.

    weight is [N, SIDE * SIDE, K]; BACK: it is [K, SIDE * SIDE, N], and each pixel gives to its neighbours
    what it took from them: the gradient of a convolution without strides.
    """
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    m = tl.program_id(1) * M + tl.arange(0, M)
    inside = m < pixels
    image = m // (down * across)
    row, column = (m // across) % down * STRIDE - SIDE // 2, m % across * STRIDE - SIDE // 2
    total = tl.zeros((M, BN), tl.float32)
    for place in range(SIDE * SIDE * (K // BK)):
        tap, channel = place // (K // BK), place % (K // BK) * BK + k
        a = _taken(x, image, row + tap // SIDE, column + tap % SIDE, inside, channel, height, width, K)
        if BACK:
            mirrored = SIDE * SIDE - 1 - tap
            b = tl.load(weight + (channel[:, None] * (SIDE * SIDE) + mirrored) * N + n[None, :])
        else:
            b = tl.trans(tl.load(weight + (n[:, None] * (SIDE * SIDE) + tap) * K + channel[None, :]))
        total = tl.dot(a, b, total)
    places = m[:, None] * N + n[None, :]
    tl.store(y + places, total.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["pixels"])
def spread(
    g, weight, y, pixels, height, width, down, across,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr,
):  # fmt: skip
    """y [images, height, width, N]: the gradient of a convolution with strides of two, of g [pixels, K].

    Each pixel of g has a square of four in y. A program has one corner of it: those in even rows were taken
    by one line of taps, those in odd rows by two, and likewise the columns.
    """
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
    tl.store(y + places, total.to(y.dtype.element_ty), mask=there[:, None])


@triton.jit
def _all_taps(
    x, m, inside, k, height, width, down, across, C: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr
):
    """All channels of all taps of pixels m, where C is small: [M, K] with K from SIDE * SIDE * C up."""
    tap, channel = k // C, k % C
    row = ((m // across) % down * STRIDE)[:, None] + (tap // SIDE - SIDE // 2)[None, :]
    column = (m % across * STRIDE)[:, None] + (tap % SIDE - SIDE // 2)[None, :]
    there = inside[:, None] & (k < SIDE * SIDE * C)[None, :]
    there &= (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = (((m // (down * across)) * height)[:, None] + row) * width + column
    return tl.load(x + places * C + channel[None, :], mask=there, other=0.0)


@triton.jit(do_not_specialize=["pixels"])
def convolve_few(
    x, weight, y, pixels, height, width, down, across,
    C: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
):  # fmt: skip
    """y [pixels, N] of x with few channels: all taps of all of them at once, in K columns."""
    m, k, n = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    inside = m < pixels
    a = _all_taps(x, m, inside, k, height, width, down, across, C, SIDE, STRIDE)
    b = tl.load(
        weight + n[None, :] * (SIDE * SIDE * C) + k[:, None], mask=(k < SIDE * SIDE * C)[:, None], other=0.0
    )
    total = tl.dot(a, b)
    tl.store(y + m[:, None] * N + n[None, :], total.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["pixels", "each"])
def weight_gradient(
    x, g, out, pixels, each, height, width, down, across,
    C: tl.constexpr, D: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """out [parts, D, SIDE * SIDE, C]: g [pixels, D], transposed, times the pixels of x that each was made of.

    A program has a block of channels, a part of ``each`` pixels, and some of the taps.
    """
    which, part = tl.program_id(0), tl.program_id(1)
    group, rest = which % (SIDE * SIDE // TAPS), which // (SIDE * SIDE // TAPS)
    c = (rest % (C // BC)) * BC + tl.arange(0, BC)
    d = (rest // (C // BC)) * BD + tl.arange(0, BD)
    first = part * each
    last = tl.minimum(first + each, pixels)
    totals = (tl.zeros((BD, BC), tl.float32),) * TAPS
    for start in range(first, last, M):
        m = start + tl.arange(0, M)
        inside = m < last
        image = m // (down * across)
        row, column = (m // across) % down * STRIDE - SIDE // 2, m % across * STRIDE - SIDE // 2
        b = tl.trans(tl.load(g + m[:, None] * D + d[None, :], mask=inside[:, None], other=0.0))
        more = ()
        for number in tl.static_range(TAPS):
            tap = group * TAPS + number
            a = _taken(x, image, row + tap // SIDE, column + tap % SIDE, inside, c, height, width, C)
            more = more + (tl.dot(b, a, totals[number]),)  # noqa: RUF005, Triton knows no stars
        totals = more
    for number in tl.static_range(TAPS):
        tap = group * TAPS + number
        tl.store(out + ((part * D + d[:, None]) * (SIDE * SIDE) + tap) * C + c[None, :], totals[number])


@triton.jit(do_not_specialize=["pixels", "each"])
def weight_gradient_few(
    x, g, out, pixels, each, height, width, down, across,
    C: tl.constexpr, K: tl.constexpr, D: tl.constexpr, M: tl.constexpr, SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
):  # fmt: skip
    """The same for few channels: all taps of all of them at once, in K columns."""
    part = tl.program_id(0)
    d, k = tl.arange(0, D), tl.arange(0, K)
    first = part * each
    last = tl.minimum(first + each, pixels)
    total = tl.zeros((D, K), tl.float32)
    for start in range(first, last, M):
        m = start + tl.arange(0, M)
        inside = m < last
        b = tl.trans(tl.load(g + m[:, None] * D + d[None, :], mask=inside[:, None], other=0.0))
        a = _all_taps(x, m, inside, k, height, width, down, across, C, SIDE, STRIDE)
        total = tl.dot(b, a, total)
    out += (part * D + d[:, None]) * (SIDE * SIDE * C) + k[None, :]
    tl.store(out, total, mask=(k < SIDE * SIDE * C)[None, :])
