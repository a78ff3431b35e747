"""A network's outputs for a whole set of images, batched and without gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refilled.data import Batches
from refilled.models import Network


@dataclass(frozen=True)
class Outputs:
    """What a network says about N images: embeddings [N, dim], logits [N, classes], labels [N]."""

    embeddings: Tensor
    logits: Tensor
    labels: Tensor


@torch.no_grad()
def predict(
    network: Network, batches: Batches, *, batch_size: int = 512, autocast_dtype: torch.dtype | None = None
) -> Outputs:
    """Run the network, in evaluation mode, over all images in order; its mode is put back afterwards."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    embeddings, logits = [], []
    try:
        with torch.autocast(
            batches.labels.device.type, dtype=autocast_dtype, enabled=autocast_dtype is not None
        ):
            for batch in batches.ordered(batch_size):
                z, scores = network(batch.images)
                embeddings.append(z.float())
                logits.append(scores.float())
    finally:
        for module, training in modes.items():
            module.training = training
    return Outputs(torch.cat(embeddings), torch.cat(logits), batches.labels)
