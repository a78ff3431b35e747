"""Kernels of :mod:`refilled.fewshot.fused`. Maps lie as [T, pixels, channels]; a program is one task's."""

import triton
import triton.language as tl


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
def convolve(
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
            total = tl.dot(a, b, total, input_precision="tf32x3")
    else:
        k = tl.arange(0, K)
        a = _neighbour_rows(x, m, inside, k, height, width, C, K)
        b = tl.load(weight + k[:, None] * D + o[None, :], mask=(k < 9 * C)[:, None], other=0.0)
        total = tl.dot(a, b, input_precision="tf32x3")
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
def weight_gradient(
    x, g, out, bias_out, pixels, each, height, width,
    C: tl.constexpr, K: tl.constexpr, D: tl.constexpr, M: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """out [parts, T, 9 * C, D]: neighbours of x [T, pixels, C], transposed, times g [T, pixels, D]; each part
    of ``each`` pixels. bias_out [parts, T, D]: sums of g.

    A program has one of three LINES of neighbours, where C is not small: g is read once for three of them.
    """
    line, part = tl.program_id(0) % LINES, tl.program_id(0) // LINES
    task = tl.program_id(1).to(tl.int64)
    x += task * pixels * C
    g += task * pixels * D
    place = part * tl.num_programs(1) + task
    d, first = tl.arange(0, D), part * each
    last = tl.minimum(first + each, pixels)
    sums = tl.zeros((D,), tl.float32)
    if C >= 16:
        k = tl.arange(0, C)
        left, middle, right = (
            tl.zeros((C, D), tl.float32), tl.zeros((C, D), tl.float32), tl.zeros((C, D), tl.float32)
        )  # fmt: skip
        for start in range(first, last, M):
            m = start + tl.arange(0, M)
            inside = m < last
            b = tl.load(g + m[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
            a = _neighbour(x, m, inside, 3 * line, k, height, width, C)
            left = tl.dot(tl.trans(a), b, left, input_precision="tf32x3")
            a = _neighbour(x, m, inside, 3 * line + 1, k, height, width, C)
            middle = tl.dot(tl.trans(a), b, middle, input_precision="tf32x3")
            a = _neighbour(x, m, inside, 3 * line + 2, k, height, width, C)
            right = tl.dot(tl.trans(a), b, right, input_precision="tf32x3")
            sums += tl.sum(b.to(tl.float32), 0)
        out += place * 9 * C * D + 3 * line * C * D
        places = k[:, None] * D + d[None, :]
        tl.store(out + places, left)
        tl.store(out + C * D + places, middle)
        tl.store(out + 2 * C * D + places, right)
    else:
        k = tl.arange(0, K)
        total = tl.zeros((K, D), tl.float32)
        for start in range(first, last, M):
            m = start + tl.arange(0, M)
            inside = m < last
            b = tl.load(g + m[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
            a = _neighbour_rows(x, m, inside, k, height, width, C, K)
            total = tl.dot(tl.trans(a), b, total, input_precision="tf32x3")
            sums += tl.sum(b.to(tl.float32), 0)
        tl.store(out + (place * 9 * C + k)[:, None] * D + d[None, :], total, mask=(k < 9 * C)[:, None])
    tl.store(bias_out + place * D + d, sums, mask=(d >= 0) & (line == 0))


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
def pool(x, scale, shift, y, windows, pixels, height, width, D: tl.constexpr, P: tl.constexpr):
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
def gradient_sums(
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
def gradient_before(
    x, g, scale, shift, mean, spread, first, second, out, pixels, images, height, width,
    D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """out [T, pixels, D]: the gradient before normalisation; first and second are means over pixels of what
    :func:`gradient_sums` sums. Windows at an odd border are incomplete: pooling leaves them out."""
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
