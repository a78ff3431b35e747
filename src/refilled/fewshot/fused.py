"""A block of T ConvNets at once, in kernels of our own (Triton).

Libraries have no convolution that is fast when every few images have weights of their own. Here a block is
six kernels, whatever T: maps lie as [T, B, H, W, C], so that every pixel of a task is a row of a matrix, and

- forward: a convolution (nine products of matrices, no copy of neighbours), which also sums what the
  normalisation needs; then normalisation, pooling and ReLU in one pass;
- backward: sums over the gradient; the gradient before the normalisation; that of the weights; that of the
  images, which is a convolution again.

Sums are float32, maps and products have the type of the images; products of float32 are three of TF32 each,
which is as exact. Channels are a power of two from 16 up; the first block has any number of them, and its
images no gradient.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from refilled.fewshot import fused_kernels as kernels

ROWS = 128
"""Pixels of a program of the convolution."""
STEP = 64
"""Pixels of a step of the weights' gradient."""
WINDOWS = 32
"""Windows of four pixels of a program of the pooling; on the way back, which needs more registers, half."""
PROGRAMS = 2048
"""Wanted for the weights' gradient, which is cut into so many parts."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Maps [T, B, H, W, C] to [T, B, H, W, D] by weights [T, 9 * C, D].

    With biases [T, D] also sums [T, 2, D] of the new maps and of their squares.
    """
    tasks, images, height, width, channels = x.shape
    outputs, pixels = weight.shape[2], images * height * width
    y = x.new_empty(tasks, images, height, width, outputs)
    programs = triton.cdiv(pixels, ROWS)
    sums = x.new_empty(tasks, programs, 2, outputs, dtype=torch.float32) if bias is not None else None
    kernels.convolve[programs, tasks](
        x, weight, weight if bias is None else bias, y, y if sums is None else sums, pixels, height, width,
        C=channels, K=_columns(channels), D=outputs, M=ROWS, FIRST=bias is not None,
    )  # fmt: skip
    return y, None if sums is None else sums.sum(dim=1)


def weight_gradient(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients float32 of weights [T, 9 * C, D] and biases [T, D], by maps x before and gradients g behind
    the convolution."""
    tasks, images, height, width, channels = x.shape
    outputs, pixels = g.shape[-1], images * height * width
    lines = 3 if channels >= 16 else 1
    parts = min(triton.cdiv(PROGRAMS, tasks * lines), triton.cdiv(pixels, 4 * STEP))
    each = triton.cdiv(triton.cdiv(pixels, parts), STEP) * STEP
    parts = triton.cdiv(pixels, each)
    out = x.new_empty(parts, tasks, 9 * channels, outputs, dtype=torch.float32)
    bias_out = x.new_empty(parts, tasks, outputs, dtype=torch.float32)
    kernels.weight_gradient[lines * parts, tasks](
        x, g, out, bias_out, pixels, each, height, width,
        C=channels, K=_columns(channels), D=outputs, M=STEP, LINES=lines,
    )  # fmt: skip
    return out.sum(dim=0), bias_out.sum(dim=0)


def pool(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Scaled and shifted [T, D] maps [T, B, H, W, D], pooled and cut at zero: [T, B, H // 2, W // 2, D]."""
    tasks, images, height, width, outputs = x.shape
    y = x.new_empty(tasks, images, height // 2, width // 2, outputs)
    windows = images * (height // 2) * (width // 2)
    kernels.pool[triton.cdiv(windows, WINDOWS), tasks](
        x, scale, shift, y, windows, images * height * width, height, width, D=outputs, P=WINDOWS
    )
    return y


def _columns(channels: int) -> int:
    return max(16, triton.next_power_of_2(9 * channels))


class Block(torch.autograd.Function):
    """Convolution, normalisation, pooling and ReLU.

    Takes maps [T, B, H, W, C], weights [T, D, C, 3, 3], biases, scales and shifts [T, D], and perhaps the
    means and variances [T, D] to normalise by; without them those of the batch are used. Returns maps
    [T, B, H // 2, W // 2, D] with the means and variances.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor,
        mean: Tensor | None, variance: Tensor | None, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Maps, means and variances."""
        raw, sums = convolve(x, _as_matrices(weight, x.dtype), bias.float().contiguous())
        ctx.known = mean is not None
        if mean is None or variance is None:
            assert sums is not None
            mean, square = (sums / (raw.numel() // sums[:, 0].numel())).unbind(dim=1)
            variance = (square - mean * mean).clamp(min=0)
        else:
            mean, variance = mean.float(), variance.float()
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
        kernels.gradient_sums[programs, tasks](
            raw, g, scale, shift, mean, spread, sums, windows, pixels, height, width, D=outputs, P=WINDOWS
        )
        of_shift, of_scale = (part.contiguous() for part in sums.sum(dim=1).unbind(dim=1))
        through = 0.0 if ctx.known else 1 / pixels  # known statistics do not move with the batch
        before = torch.empty_like(raw)
        corners = images * ((height + 1) // 2) * ((width + 1) // 2)
        kernels.gradient_before[triton.cdiv(corners, WINDOWS // 2), tasks](
            raw, g, scale, shift, mean, spread, of_shift * through, of_scale * through, before,
            pixels, images, height, width, D=outputs, P=WINDOWS // 2,
        )  # fmt: skip
        of_weight, of_bias = weight_gradient(x, before)
        of_weight = of_weight.view(tasks, 3, 3, -1, outputs).permute(0, 4, 3, 1, 2).to(weight.dtype)
        of_x = None
        if ctx.needs_input_grad[0]:  # each pixel gives to its neighbours what it took from them
            mirrored = weight.flip(3, 4).transpose(1, 2)
            of_x, _ = convolve(before, _as_matrices(mirrored, x.dtype), None)
        return of_x, of_weight, of_bias, of_scale, of_shift, None, None, None


def _as_matrices(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, D, C, 3, 3] as [T, 9 * C, D], neighbour by neighbour."""
    return weight.permute(0, 3, 4, 2, 1).to(dtype).contiguous().flatten(1, 3)
