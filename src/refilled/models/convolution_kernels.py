"""Kernels of :mod:`refilled.models.convolution`, called by :mod:`refilled.models.convolution_calls`.

Maps lie as [pixels, channels], weights as [outputs, taps, channels]. What a kernel does with the maps that it
makes is up to :func:`_store`, with BESIDE and SUMS.

Several networks go side by side: all that a kernel is given then lies one network after the other, ``pixels``
are those of one, and the grid's last axis says whose they are. A program never has pixels of two, so that
each network gets what it would get alone.
"""

import triton
import triton.language as tl


@triton.jit
def _taken(x, image, row, column, inside, channel, height, width, C: tl.constexpr):
    """The channels of one pixel for each of M: [M, BC], zero beyond the border."""
    there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = ((image * height + row) * width + column)[:, None] * C + channel[None, :]
    return tl.load(x + places, mask=there[:, None], other=0.0)


@triton.jit
def _store(
    total, y, places, there, block, n, beside, sums, raw, stats,
    N: tl.constexpr, BESIDE: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Write maps [M, BN], plus others of that shape beside them, into y; with SUMS also two sums over the
    pixels of a program, into sums [programs, 2, N], where ``block`` is the program's number.

    SUMS 1: of the maps and of their squares, which their normalisation has to know.
    SUMS 2: the maps are gradients behind a ReLU. Only those go on whose normalised map it let through; sums
    of them, and of them times the normalised maps. raw: the maps before normalisation, like y; stats [4, N]:
    what they are multiplied with, and what is added, for it; their mean, and one by their spread.
    """
    if BESIDE:
        total += tl.load(beside + places, mask=there[:, None], other=0.0).to(tl.float32)
    if SUMS == 2:
        v = tl.load(raw + places, mask=there[:, None], other=0.0).to(tl.float32)
        active = v * tl.load(stats + n)[None, :] + tl.load(stats + N + n)[None, :] > 0
        total = tl.where(active, total, 0.0)
    found = total.to(y.dtype.element_ty)
    tl.store(y + places, found, mask=there[:, None])
    if SUMS > 0:
        exact = tl.where(there[:, None], found.to(tl.float32), 0.0)
        factor = exact
        if SUMS == 2:
            factor = (v - tl.load(stats + 2 * N + n)[None, :]) * tl.load(stats + 3 * N + n)[None, :]
        tl.store(sums + block * 2 * N + n, tl.sum(exact, 0))
        tl.store(sums + (block * 2 + 1) * N + n, tl.sum(exact * factor, 0))


@triton.jit(do_not_specialize=["pixels"])
def convolve(
    x, weight, y, beside, sums, raw, stats, pixels, height, width, down, across,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, BACK: tl.constexpr, BESIDE: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """y [networks, pixels, N]: for each tap the pixels of x [networks, .., K] that it takes, times its
    weights [networks, N, SIDE * SIDE, K].

    BACK: weight is [networks, K, SIDE * SIDE, N], and each pixel gives to its neighbours what it took from
    them: the gradient of a convolution without strides.
    """
    n, k, network = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK), tl.program_id(2)
    m = tl.program_id(1) * M + tl.arange(0, M)
    inside = m < pixels
    m += network * pixels
    weight += network * (SIDE * SIDE * K * N)
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
    block = network * tl.num_programs(1) + tl.program_id(1)
    stats += network * (4 * N)
    _store(total, y, places, inside, block, n, beside, sums, raw, stats, N, BESIDE, SUMS)


@triton.jit(do_not_specialize=["pixels"])
def spread(
    g, weight, y, beside, sums, raw, stats, pixels, height, width, down, across,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, BESIDE: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """y [networks, images, height, width, N]: the gradient of a convolution with strides of two, of
    g [networks, pixels, K].

    Each pixel of g has a square of four in y. A program has one corner of it: those in even rows were taken
    by one line of taps, those in odd rows by two, and likewise the columns.
    """
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    m = tl.program_id(1) * M + tl.arange(0, M)
    network, corner = tl.program_id(2) // 4, tl.program_id(2) % 4
    lower, right = corner // 2, corner % 2
    inside = m < pixels
    m += network * pixels
    weight += network * (SIDE * SIDE * K * N)
    image, i, j = m // (down * across), (m // across) % down, m % across
    if SIDE == 3:
        lines, columns = 1 + lower, 1 + right
    else:
        lines, columns = 1 - lower, 1 - right
    total = tl.zeros((M, BN), tl.float32)
    for place in range(lines * columns * (K // BK)):
        which, channel = place // (K // BK), place % (K // BK) * BK + k
        below, right_of = which // columns, which % columns
        tap = 0
        if SIDE == 3:
            tap = (1 + lower * (1 - 2 * below)) * 3 + 1 + right * (1 - 2 * right_of)
        a = _taken(g, image, i + below, j + right_of, inside, channel, down, across, K)
        b = tl.load(weight + (channel[:, None] * (SIDE * SIDE) + tap) * N + n[None, :])
        total = tl.dot(a, b, total)
    row, column = 2 * i + lower, 2 * j + right
    there = inside & (row < height) & (column < width)
    places = ((image * height + row) * width + column)[:, None] * N + n[None, :]
    block = (network * tl.num_programs(1) + tl.program_id(1)) * 4 + corner
    stats += network * (4 * N)
    _store(total, y, places, there, block, n, beside, sums, raw, stats, N, BESIDE, SUMS)


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
    x, weight, y, sums, pixels, height, width, down, across,
    C: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, SIDE: tl.constexpr,
    STRIDE: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """y [networks, pixels, N] of x with few channels: all taps of all of them at once, in K columns."""
    m, k, n = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    inside, network = m < pixels, tl.program_id(1)
    m += network * pixels
    weight += network * (SIDE * SIDE * C * N)
    a = _all_taps(x, m, inside, k, height, width, down, across, C, SIDE, STRIDE)
    b = tl.load(
        weight + n[None, :] * (SIDE * SIDE * C) + k[:, None], mask=(k < SIDE * SIDE * C)[:, None], other=0.0
    )
    places = m[:, None] * N + n[None, :]
    block = network * tl.num_programs(0) + tl.program_id(0)
    _store(tl.dot(a, b), y, places, inside, block, n, y, sums, y, y, N, False, SUMS)


@triton.jit(do_not_specialize=["parts", "count"])
def finish(
    sums, weight, bias, stats, new, parts, count, eps,
    C: tl.constexpr, BC: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """stats [networks, 4, C] of maps with sums [networks, parts, 2, C] over ``count`` pixels each: factor and
    term that normalise them, by weight and bias [networks, C]; their mean, and one by their spread.

    Besides, new [networks, 2, C]: what the running statistics move to, mean and unbiased variance.
    """
    c, p, network = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, P), tl.program_id(1)
    sums += network * parts * (2 * C)
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
    scale = tl.load(weight + network * C + c) * spread
    stats += network * (4 * C)
    tl.store(stats + c, scale)
    tl.store(stats + C + c, tl.load(bias + network * C + c) - mean * scale)
    tl.store(stats + 2 * C + c, mean)
    tl.store(stats + 3 * C + c, spread)
    new += network * (2 * C)
    tl.store(new + c, mean)
    tl.store(new + C + c, var * (pixels / (pixels - 1)))


@triton.jit(do_not_specialize=["pixels", "each"])
def weight_gradient(
    x, g, out, pixels, each, height, width, down, across,
    C: tl.constexpr, D: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, M: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """out [networks, parts, D, SIDE * SIDE, C]: g [networks, pixels, D], transposed, times the pixels of x
    that each was made of.

    A program has a block of channels, a part of ``each`` pixels, and some of the taps.
    """
    which, part, network = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group, rest = which % (SIDE * SIDE // TAPS), which // (SIDE * SIDE // TAPS)
    c = (rest % (C // BC)) * BC + tl.arange(0, BC)
    d = (rest // (C // BC)) * BD + tl.arange(0, BD)
    first = network * pixels + part * each
    last = tl.minimum(first + each, (network + 1) * pixels)
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
    out += (network * tl.num_programs(1) + part) * (D * SIDE * SIDE * C)
    for number in tl.static_range(TAPS):
        tap = group * TAPS + number
        tl.store(out + (d[:, None] * (SIDE * SIDE) + tap) * C + c[None, :], totals[number])


@triton.jit(do_not_specialize=["pixels", "each"])
def weight_gradient_few(
    x, g, out, pixels, each, height, width, down, across,
    C: tl.constexpr, K: tl.constexpr, D: tl.constexpr, M: tl.constexpr, SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
):  # fmt: skip
    """The same for few channels: all taps of all of them at once, in K columns."""
    part, network = tl.program_id(0), tl.program_id(1)
    d, k = tl.arange(0, D), tl.arange(0, K)
    first = network * pixels + part * each
    last = tl.minimum(first + each, (network + 1) * pixels)
    total = tl.zeros((D, K), tl.float32)
    for start in range(first, last, M):
        m = start + tl.arange(0, M)
        inside = m < last
        b = tl.trans(tl.load(g + m[:, None] * D + d[None, :], mask=inside[:, None], other=0.0))
        a = _all_taps(x, m, inside, k, height, width, down, across, C, SIDE, STRIDE)
        total = tl.dot(b, a, total)
    out += ((network * tl.num_programs(0) + part) * D + d[:, None]) * (SIDE * SIDE * C) + k[None, :]
    tl.store(out, total, mask=(k < SIDE * SIDE * C)[None, :])
