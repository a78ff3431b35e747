"""A frozen network made faster: batch norms that follow a convolution become part of it."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from refilled.models.network import Network
from refilled.models.wanted import EMBEDDINGS, Wanted


class Folded(nn.Module):
    """The answers of a frozen network, with every batch norm that can be folded into its convolution.

    The network itself is left as it is. Where its code cannot be traced (it branches on values, say) it is
    copied whole, and nothing is folded.

    Args:
        network: in evaluation mode.
        dtype: of the weights, the work and the answers; None: those of the network.
        wanted: which answers.
    """

    def __init__(self, network: Network, dtype: torch.dtype | None = None, wanted: Wanted = EMBEDDINGS):
        super().__init__()
        self.wanted = wanted
        self.source = [network]  # in a list, so that it is no submodule
        self.folded = 0
        """Number of batch norms that were folded."""
        body: nn.Module
        try:
            plain = _Body(copy.deepcopy(network).eval(), wanted)
            body = fx.GraphModule(plain, _Tracer().trace(plain))
            self.folded = _fold(body)
        except Exception:  # tracing fails in as many ways as there are models
            body = _Body(copy.deepcopy(network).eval(), wanted)
        self.dtype = dtype
        self.body = body.to(dtype).requires_grad_(False)
        self._compiled: list[Callable[[Tensor], Tensor]] = []

    def compile_for(self, images: Tensor) -> bool:
        """Compile it for images [B, channels, H, W] such as these; returns whether that worked. If not, it
        stays as it is."""
        self._compiled = [torch.compile(self.body)]
        try:
            self.answer(images)
        except Exception:  # no compiler on this machine, or a model that cannot be compiled
            self._compiled = []
        return self.compiled

    @property
    def compiled(self) -> bool:
        """Whether it is."""
        return bool(self._compiled)

    def answer(self, images: Tensor) -> Tensor:
        """Answers [B, width] for images [B, channels, H, W] in 0..1, without a gradient."""
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            prepared = self.source[0].prepare(images)
            if images.device.type in ("cpu", "cuda"):
                prepared = prepared.contiguous(memory_format=torch.channels_last)
            body = self._compiled[0] if self._compiled else self.body
            return body(prepared.to(self.dtype)).to(self.dtype)


class _Body(nn.Module):
    """Only what comes after the preparation of the pixels, as a forward that can be traced."""

    def __init__(self, network: Network, wanted: Wanted):
        super().__init__()
        self.network, self.wanted = network, wanted

    def forward(self, prepared: Tensor) -> Tensor:
        return self.wanted(self.network, prepared)


class _Tracer(fx.Tracer):
    """Looks into layers that consist of others, and into no other: those may do what cannot be traced."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(m.children())


def _fold(body: fx.GraphModule) -> int:
    """Fold each batch norm that is the only reader of a convolution; returns how many."""
    layers, uses, count = dict(body.named_modules()), _calls(body), 0
    for node in list(body.graph.nodes):
        norm = _layer(layers, node)
        before: Any = node.args[0] if isinstance(norm, nn.BatchNorm2d) else None
        conv = _layer(layers, before)
        if not isinstance(norm, nn.BatchNorm2d) or not isinstance(conv, nn.Conv2d) or len(before.users) > 1:
            continue
        if uses[before.target] > 1 or uses[node.target] > 1:
            continue  # a layer that is used twice cannot be two things
        body.set_submodule(before.target, fuse_conv_bn_eval(conv, norm))
        node.replace_all_uses_with(before)
        body.graph.erase_node(node)
        count += 1
    body.graph.lint()
    body.recompile()
    body.delete_all_unused_submodules()
    return count


def _layer(layers: dict[str, nn.Module], node: Any) -> nn.Module | None:
    is_layer = isinstance(node, fx.Node) and node.op == "call_module"
    return layers[str(node.target)] if is_layer else None


def _calls(body: fx.GraphModule) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in body.graph.nodes:
        if node.op == "call_module":
            counts[str(node.target)] = counts.get(str(node.target), 0) + 1
    return counts
