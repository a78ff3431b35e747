"""Another library's classifier as a network of ours: its last linear layer becomes the head.

The layer is moved out of the model, which keeps an identity in its place. So the weights are stored once,
``network.head`` may be replaced like any other, and nothing is left to intercept when the model runs.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models.network import Network, Preprocess


def take_out(model: nn.Module, layer: nn.Module) -> None:
    """Put an identity in the place of ``layer`` in ``model``."""
    name = next(name for name, module in model.named_modules() if module is layer)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, nn.Identity())


def give_head(network: Network, classes: LabelSpace) -> None:
    """Give the network a fresh linear head for other classes, and a note that says so."""
    old = network.head
    biased = not network.has_head or getattr(old, "bias", None) is not None
    head = nn.Linear(network.dim, len(classes), bias=biased)
    # Small weights: the first gradients that reach a trained backbone should not tear it apart.
    nn.init.normal_(head.weight, std=0.01)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    parameter = next(network.parameters())
    network.head = head.to(parameter.device, parameter.dtype).train(network.training)
    network.classes = classes
    network.notes.append(f"{network.spec}: the head is new, for {len(classes)} classes; it needs training")


def drop_head(network: Network) -> None:
    """Let the network be one of embeddings alone, and a note that says so: its weights have no classifier."""
    network.head, network.classes = nn.Identity(), LabelSpace(())
    network.notes.append(
        f"{network.spec}: the weights have no classifier; its embedding alone counts, and it shares no class"
    )


def try_out(spec: str, model: Callable[[Tensor], Tensor], preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """Two prepared images of noise [2, channels, S, S], and the model's logits [2, classes] for them.

    Args:
        spec: name of the model, for messages.
        model: the whole model, in evaluation mode.
        preprocess: what it takes.
    """
    side = preprocess.size or 32
    generator = torch.Generator().manual_seed(0)  # the caller's random numbers stay as they are
    prepared = torch.randn(2, preprocess.channels, side, side, generator=generator)
    try:
        with torch.no_grad():
            return prepared, model(prepared)
    except (RuntimeError, ValueError, AssertionError) as error:
        shape = f"{preprocess.channels} x {side} x {side}"
        raise UserError(f"{spec} does not take images of {shape}: {error}") from error


def check_split(network: Network, prepared: Tensor, logits: Tensor) -> None:
    """Refuse a network whose embedding and head do not make up the model that they were taken from.

    Args:
        network: in evaluation mode.
        prepared: images [B, channels, S, S] as the network's ``prepare`` returns them.
        logits: what the whole model said about them, [B, classes].
    """
    with torch.no_grad():
        embeddings = network.embed_prepared(prepared)
        fits = embeddings.shape == (len(prepared), network.dim)
        ours = network.classify(embeddings) if fits else torch.empty(0)
    tolerance = 1e-5 * max(1.0, logits.abs().max().item())
    if ours.shape != logits.shape or not torch.allclose(ours, logits, rtol=1e-4, atol=tolerance):
        raise UserError(
            f"{network.spec}: its logits are not one linear layer of one embedding, so it cannot "
            f"be used here (embedding {tuple(embeddings.shape)}, logits {tuple(logits.shape)})"
        )
