"""Convolutions per channel (3x3, as MobileNets have them) in kernels of our own.

They are bound by memory, and libraries are far from that bound, above all on the way back. Here the way back
is one pass, which gives both gradients. The kernels need Triton and a CUDA device; everything else goes
through the library as before.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHANNELS = 64
"""Most channels of a program: a whole cache line or two of a pixel."""
TILE, TILE_BACK = 1024, 512
"""Numbers that a program has at hand of each neighbour, forward and back: 8 or 4 in each thread, which it
loads at once. On the way back nine sums and nine weights go with each of them; more would fill registers."""
PROGRAMS, PROGRAMS_BACK = 2112, 1056
"""Wanted: 16 or 8 for each processor of an H200, of which 4 run at a time."""
LEAST_TILES, LEAST_TILES_BACK = 2, 4
"""Of a program, lest loading the weights, and on the way back storing their sums, outweigh the maps."""
FEWEST_CHANNELS = 8
_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_MOST_PIXELS = 2**30  # they are counted in 32 bits


def available() -> bool:
    """Whether the kernels can run: with Triton, on a CUDA device or (slowly, for tests) its interpreter."""
    return find_spec("triton") is not None and (torch.cuda.is_available() or _interpreted())


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


class Depthwise(torch.autograd.Function):
    """A convolution of each channel with a kernel of 3x3, zeros around the map.

    Takes maps [B, C, H, W], weights [C, 1, 3, 3] of any floating type, which are rounded to that of the maps,
    and a stride of 1 or 2. Maps [B, C, (H - 1) // stride + 1, (W - 1) // stride + 1] come back in the memory
    format channels_last and in the type of those given; the gradient of the weights has their own type.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        """Maps behind the convolution."""
        from refilled.training import depthwise_kernels as kernels

        x, weight = x.contiguous(memory_format=torch.channels_last), weight.contiguous()
        images, channels, height, width = x.shape
        y = torch.empty(
            (images, channels, (height - 1) // stride + 1, (width - 1) // stride + 1),
            dtype=x.dtype, device=x.device, memory_format=torch.channels_last,
        )  # fmt: skip
        pixels = y.numel() // channels
        block, tile = _block(channels, TILE)
        blocks, chunks, each = _chunks(pixels, channels, block, tile, PROGRAMS, LEAST_TILES)
        kernels.convolve[(blocks * chunks,)](
            x, weight, y, pixels, each, height, width,
            C=channels, STRIDE=stride, P=tile, C_BLOCK=block, num_warps=4,
        )  # fmt: skip
        ctx.stride, ctx.shape = stride, x.shape
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Of maps and weights."""
        from refilled.training import depthwise_kernels as kernels

        x, weight = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        _, channels, height, width = ctx.shape
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        pixels = g.numel() // channels
        block, tile = _block(channels, TILE_BACK)
        blocks, chunks, each = _chunks(pixels, channels, block, tile, PROGRAMS_BACK, LEAST_TILES_BACK)
        of_x = of_parts = None
        if wants_x:
            of_x = torch.empty(
                ctx.shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last
            )  # fmt: skip
        if wants_weight:
            of_parts = torch.empty((chunks, channels, 9), dtype=torch.float32, device=g.device)
        kernel = kernels.gradients if ctx.stride == 1 else kernels.halved_gradients
        kernel[(blocks * chunks,)](
            g if x is None else x, weight, g, g if of_x is None else of_x,
            weight if of_parts is None else of_parts, pixels, each, height, width,
            C=channels, OF_X=wants_x, OF_WEIGHT=wants_weight, P=tile, C_BLOCK=block, num_warps=4,
        )  # fmt: skip
        of_weight = None if of_parts is None else of_parts.sum(dim=0).view(weight.shape).to(weight.dtype)
        return of_x, of_weight, None


def _block(channels: int, numbers: int) -> tuple[int, int]:
    """Channels of a program, a power of two, and pixels of its tile of so many numbers."""
    block = min(CHANNELS, 1 << (channels - 1).bit_length())
    if channels % block and channels % 32 == 0:
        block = 32  # e.g. 96: three full blocks rather than one and a half
    return block, numbers // block


def _chunks(pixels: int, channels: int, block: int, tile: int, programs: int, tiles: int) -> tuple[int, ...]:
    """Blocks of channels, chunks of pixels, and the pixels of each, which are so many tiles or more."""
    blocks = _parts(channels, block)
    chunks = min(_parts(programs, blocks), _parts(pixels, tile * tiles))
    each = _parts(_parts(pixels, chunks), tile) * tile
    return blocks, _parts(pixels, each), each


def _parts(number: int, size: int) -> int:
    return -(-number // size)


@contextmanager
def quick_depthwise(network: nn.Module) -> Iterator[None]:
    """Let the network's convolutions per channel use :class:`Depthwise` while the context is open.

    Modules, parameters and names stay as they are. Where the kernels are not :func:`available`, or for maps
    that they are not made for, the library does what it did before.
    """
    changed = [module for module in network.modules() if _is_depthwise(module)] if available() else []
    for module in changed:
        module.__dict__["forward"] = MethodType(_forward, module)
    try:
        yield
    finally:
        for module in changed:
            del module.__dict__["forward"]


def _is_depthwise(module: nn.Module) -> bool:
    """Whether it is a plain convolution that the kernels can do, and has no forward of its own yet."""
    return (
        type(module) is nn.Conv2d
        and "forward" not in module.__dict__
        and module.groups == module.in_channels == module.out_channels >= FEWEST_CHANNELS
        and module.kernel_size == (3, 3)
        and module.padding == (1, 1)
        and module.dilation == (1, 1)
        and module.stride in ((1, 1), (2, 2))
        and module.bias is None
        and module.padding_mode == "zeros"
    )


def _forward(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Instead of a convolution's own forward."""
    if not _suits(conv, x):
        return nn.Conv2d.forward(conv, x)
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    elif x.dtype != conv.weight.dtype:
        return nn.Conv2d.forward(conv, x)  # which says what is wrong
    y: Tensor = Depthwise.apply(x, conv.weight, conv.stride[0])
    return y


def _suits(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether the kernels take these maps, and where they are."""
    if x.dim() != 4 or x.shape[1] != conv.in_channels or x.device != conv.weight.device:
        return False
    if x.is_cuda:
        here = x.device.index == torch.cuda.current_device()
    else:
        here = x.device.type == "cpu" and _interpreted()
    types = [x.dtype, conv.weight.dtype]  # also with autocast, which leaves float64 alone
    if torch.is_autocast_enabled(x.device.type):
        types.append(torch.get_autocast_dtype(x.device.type))
    known = all(each in _TYPES for each in types)
    return here and known and 0 < x.numel() // x.shape[1] < _MOST_PIXELS
