"""Kernels (Triton) of 3x3 convolutions per channel, in maps that lie as [B, H, W, C].

A program has a block of channels and a chunk of pixels in a row, which it walks through in tiles of P pixels:
what a tile needs of the rows above it is in the cache from the tiles before. Sums are float32; maps are
loaded and stored in their own type, and weights [C, 9] rounded to it. With a stride of 2 the maps behind have
``down = (height + 1) // 2`` rows and ``across = (width + 1) // 2`` columns, and every pixel of them stands
for a window of four pixels before.

``c`` are a program's channels and C is all of them, a constant, so that the compiler sees how rows are
aligned.
"""

import triton
import triton.language as tl

_SIZES = ["pixels", "each", "height", "width"]


@triton.jit
def _block(C: tl.constexpr, C_BLOCK: tl.constexpr):
    """The chunk and the channels [C_BLOCK] of this program; blocks of one chunk follow each other."""
    blocks: tl.constexpr = (C + C_BLOCK - 1) // C_BLOCK
    program = tl.program_id(0)
    return program // blocks, (program % blocks) * C_BLOCK + tl.arange(0, C_BLOCK)


@triton.jit
def _mask(there, c, C: tl.constexpr, C_BLOCK: tl.constexpr):
    """Pixels there [P] and channels that exist: [P, C_BLOCK], or [P, 1] where all of them do."""
    if C % C_BLOCK == 0:
        mask = there[:, None]
    else:
        mask = there[:, None] & (c < C)[None, :]
    return mask


@triton.jit
def _load(maps, place, there, c, C: tl.constexpr, C_BLOCK: tl.constexpr):
    """Pixels at a place [P], float32 [P, C_BLOCK]; zero where they are not there."""
    mask = _mask(there, c, C, C_BLOCK)
    return tl.load(maps + place[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(maps, place, there, c, values, C: tl.constexpr, C_BLOCK: tl.constexpr):
    """Write values [P, C_BLOCK] to pixels at a place [P] that are there."""
    mask = _mask(there, c, C, C_BLOCK)
    tl.store(maps + place[:, None] * C + c[None, :], values.to(maps.dtype.element_ty), mask=mask)


@triton.jit
def _weight(weight, c, like, C: tl.constexpr, TAP: tl.constexpr):
    """The weights of one tap, rounded to the type of maps ``like``: float32 [1, C_BLOCK]."""
    found = tl.load(weight + c * 9 + TAP, mask=c < C, other=0.0)
    return found.to(like.dtype.element_ty).to(tl.float32)[None, :]


@triton.jit
def _store_sums(out, c, sums, C: tl.constexpr, TAP: tl.constexpr):
    """Sum [P, C_BLOCK] over pixels, for one tap of out [C, 9]."""
    tl.store(out + c * 9 + TAP, tl.sum(sums, 0), mask=c < C)


@triton.jit
def _advance(image, row, column, height, width, P: tl.constexpr):
    """Where the P-th pixels after these are; without a division by what is not the same for all of them."""
    column += P % width
    over = column >= width
    column = tl.where(over, column - width, column)
    row += (P // width) % height + over.to(tl.int32)
    over = row >= height
    row = tl.where(over, row - height, row)
    image += P // width // height + over.to(tl.int32)
    return image, row, column


@triton.jit(do_not_specialize=_SIZES)
def convolve(
    x, weight, y, pixels, each, height, width,
    C: tl.constexpr, STRIDE: tl.constexpr, P: tl.constexpr, C_BLOCK: tl.constexpr,
):  # fmt: skip
    """y [pixels, C] of x [B, height, width, C], in chunks of ``each`` pixels of y."""
    chunk, c = _block(C, C_BLOCK)
    down, across = (height - 1) // STRIDE + 1, (width - 1) // STRIDE + 1
    first = chunk * each
    last = tl.minimum(first + each, pixels)
    w0, w1, w2 = _weight(weight, c, x, C, 0), _weight(weight, c, x, C, 1), _weight(weight, c, x, C, 2)
    w3, w4, w5 = _weight(weight, c, x, C, 3), _weight(weight, c, x, C, 4), _weight(weight, c, x, C, 5)
    w6, w7, w8 = _weight(weight, c, x, C, 6), _weight(weight, c, x, C, 7), _weight(weight, c, x, C, 8)
    m = first + tl.arange(0, P)
    image, row, column = m // across // down, (m // across) % down, m % across
    for start in range(first, last, P):
        m = start + tl.arange(0, P)
        inside = m < last
        if STRIDE == 1:
            place = m.to(tl.int64)
        else:
            place = (image.to(tl.int64) * height + row * STRIDE) * width + column * STRIDE
        above, below = inside & (row > 0), inside & (row * STRIDE + 1 < height)
        left, right = column > 0, column * STRIDE + 1 < width
        total = _load(x, place - width - 1, above & left, c, C, C_BLOCK) * w0
        total += _load(x, place - width, above, c, C, C_BLOCK) * w1
        total += _load(x, place - width + 1, above & right, c, C, C_BLOCK) * w2
        total += _load(x, place - 1, inside & left, c, C, C_BLOCK) * w3
        total += _load(x, place, inside, c, C, C_BLOCK) * w4
        total += _load(x, place + 1, inside & right, c, C, C_BLOCK) * w5
        total += _load(x, place + width - 1, below & left, c, C, C_BLOCK) * w6
        total += _load(x, place + width, below, c, C, C_BLOCK) * w7
        total += _load(x, place + width + 1, below & right, c, C, C_BLOCK) * w8
        _store(y, m.to(tl.int64), inside, c, total, C, C_BLOCK)
        image, row, column = _advance(image, row, column, down, across, P)


@triton.jit(do_not_specialize=_SIZES)
def gradients(
    x, weight, g, of_x, of_weight, pixels, each, height, width,
    C: tl.constexpr, OF_X: tl.constexpr, OF_WEIGHT: tl.constexpr, P: tl.constexpr, C_BLOCK: tl.constexpr,
):  # fmt: skip
    """Both gradients for a stride of 1, by gradients g [B, height, width, C] behind: of_x [pixels, C], and
    of_weight float32 [chunks, C, 9], each chunk's own.

    What a pixel of x gave to its neighbours behind comes back from them, and the same nine neighbours times
    the pixel are its part of the weights' gradient. OF_X and OF_WEIGHT say which of both is wanted.
    """
    chunk, c = _block(C, C_BLOCK)
    first = chunk * each
    last = tl.minimum(first + each, pixels)
    w0, w1, w2 = _weight(weight, c, g, C, 0), _weight(weight, c, g, C, 1), _weight(weight, c, g, C, 2)
    w3, w4, w5 = _weight(weight, c, g, C, 3), _weight(weight, c, g, C, 4), _weight(weight, c, g, C, 5)
    w6, w7, w8 = _weight(weight, c, g, C, 6), _weight(weight, c, g, C, 7), _weight(weight, c, g, C, 8)
    zero = tl.zeros((P, C_BLOCK), tl.float32)
    s0, s1, s2, s3, s4, s5, s6, s7, s8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    m = first + tl.arange(0, P)
    image, row, column = m // width // height, (m // width) % height, m % width
    for start in range(first, last, P):
        m = start + tl.arange(0, P)
        inside = m < last
        place = m.to(tl.int64)
        above, below = inside & (row > 0), inside & (row + 1 < height)
        left, right = column > 0, column + 1 < width
        # The first tap looks up and to the left: the pixel behind that used this one is below, to the right.
        g0 = _load(g, place + width + 1, below & right, c, C, C_BLOCK)
        g1 = _load(g, place + width, below, c, C, C_BLOCK)
        g2 = _load(g, place + width - 1, below & left, c, C, C_BLOCK)
        g3 = _load(g, place + 1, inside & right, c, C, C_BLOCK)
        g4 = _load(g, place, inside, c, C, C_BLOCK)
        g5 = _load(g, place - 1, inside & left, c, C, C_BLOCK)
        g6 = _load(g, place - width + 1, above & right, c, C, C_BLOCK)
        g7 = _load(g, place - width, above, c, C, C_BLOCK)
        g8 = _load(g, place - width - 1, above & left, c, C, C_BLOCK)
        if OF_X:
            total = g0 * w0 + g1 * w1 + g2 * w2 + g3 * w3 + g4 * w4 + g5 * w5 + g6 * w6 + g7 * w7 + g8 * w8
            _store(of_x, place, inside, c, total, C, C_BLOCK)
        if OF_WEIGHT:
            own = _load(x, place, inside, c, C, C_BLOCK)
            s0, s1, s2 = s0 + own * g0, s1 + own * g1, s2 + own * g2
            s3, s4, s5 = s3 + own * g3, s4 + own * g4, s5 + own * g5
            s6, s7, s8 = s6 + own * g6, s7 + own * g7, s8 + own * g8
        image, row, column = _advance(image, row, column, height, width, P)
    if OF_WEIGHT:
        of_weight += chunk * C * 9
        _store_sums(of_weight, c, s0, C, 0)
        _store_sums(of_weight, c, s1, C, 1)
        _store_sums(of_weight, c, s2, C, 2)
        _store_sums(of_weight, c, s3, C, 3)
        _store_sums(of_weight, c, s4, C, 4)
        _store_sums(of_weight, c, s5, C, 5)
        _store_sums(of_weight, c, s6, C, 6)
        _store_sums(of_weight, c, s7, C, 7)
        _store_sums(of_weight, c, s8, C, 8)


@triton.jit(do_not_specialize=_SIZES)
def halved_gradients(
    x, weight, g, of_x, of_weight, pixels, each, height, width,
    C: tl.constexpr, OF_X: tl.constexpr, OF_WEIGHT: tl.constexpr, P: tl.constexpr, C_BLOCK: tl.constexpr,
):  # fmt: skip
    """The same for a stride of 2, by g [B, down, across, C]: of_x [B, height, width, C].

    Here a pixel m of all ``pixels`` of g is a window of four pixels of x, its upper left one in the middle of
    what m saw. The window gave to m, to the pixel on its right, to that below and to that below on the right,
    through nine taps in all.
    """
    chunk, c = _block(C, C_BLOCK)
    down, across = (height - 1) // 2 + 1, (width - 1) // 2 + 1
    first = chunk * each
    last = tl.minimum(first + each, pixels)
    w0, w1, w2 = _weight(weight, c, g, C, 0), _weight(weight, c, g, C, 1), _weight(weight, c, g, C, 2)
    w3, w4, w5 = _weight(weight, c, g, C, 3), _weight(weight, c, g, C, 4), _weight(weight, c, g, C, 5)
    w6, w7, w8 = _weight(weight, c, g, C, 6), _weight(weight, c, g, C, 7), _weight(weight, c, g, C, 8)
    zero = tl.zeros((P, C_BLOCK), tl.float32)
    s0, s1, s2, s3, s4, s5, s6, s7, s8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    m = first + tl.arange(0, P)
    image, row, column = m // across // down, (m // across) % down, m % across
    for start in range(first, last, P):
        m = start + tl.arange(0, P)
        inside = m < last
        behind = m.to(tl.int64)
        place = (image.to(tl.int64) * height + 2 * row) * width + 2 * column
        below, right = inside & (2 * row + 1 < height), 2 * column + 1 < width
        has_below, has_right = inside & (row + 1 < down), column + 1 < across
        g4 = _load(g, behind, inside, c, C, C_BLOCK)
        g3 = _load(g, behind + 1, inside & has_right, c, C, C_BLOCK)
        g1 = _load(g, behind + across, has_below, c, C, C_BLOCK)
        g0 = _load(g, behind + across + 1, has_below & has_right, c, C, C_BLOCK)
        if OF_X:
            _store(of_x, place, inside, c, g4 * w4, C, C_BLOCK)
            _store(of_x, place + 1, inside & right, c, g4 * w5 + g3 * w3, C, C_BLOCK)
            _store(of_x, place + width, below, c, g4 * w7 + g1 * w1, C, C_BLOCK)
            corner = g4 * w8 + g3 * w6 + g1 * w2 + g0 * w0
            _store(of_x, place + width + 1, below & right, c, corner, C, C_BLOCK)
        if OF_WEIGHT:
            own = _load(x, place, inside, c, C, C_BLOCK)
            s4 += own * g4
            own = _load(x, place + 1, inside & right, c, C, C_BLOCK)
            s5, s3 = s5 + own * g4, s3 + own * g3
            own = _load(x, place + width, below, c, C, C_BLOCK)
            s7, s1 = s7 + own * g4, s1 + own * g1
            own = _load(x, place + width + 1, below & right, c, C, C_BLOCK)
            s8, s6, s2, s0 = s8 + own * g4, s6 + own * g3, s2 + own * g1, s0 + own * g0
        image, row, column = _advance(image, row, column, down, across, P)
    if OF_WEIGHT:
        of_weight += chunk * C * 9
        _store_sums(of_weight, c, s0, C, 0)
        _store_sums(of_weight, c, s1, C, 1)
        _store_sums(of_weight, c, s2, C, 2)
        _store_sums(of_weight, c, s3, C, 3)
        _store_sums(of_weight, c, s4, C, 4)
        _store_sums(of_weight, c, s5, C, 5)
        _store_sums(of_weight, c, s6, C, 6)
        _store_sums(of_weight, c, s7, C, 7)
        _store_sums(of_weight, c, s8, C, 8)
