"""FEAT: Ye, Hu, Zhan, Sha: Few-Shot Learning via Embedding Adaptation with Set-to-Set Functions, 2020
(https://arxiv.org/abs/1812.03664).

Class means are adapted to their task by self-attention among them (the paper's transformer: one layer, one
head, residual, layer normalisation); a query belongs to the nearest adapted mean.
"""

import math

import torch
from torch import Tensor, nn

from refilled.checks import check_number
from refilled.data import Progress
from refilled.data.randomness import mixed_seed
from refilled.fewshot.classifiers import TaskClassifier, centres, nearest
from refilled.fewshot.meta import EpisodeLoss, MetaTraining, meta_train
from refilled.fewshot.protonet import distance_loss
from refilled.fewshot.views import Pool
from refilled.models import Network


class SetToSet(nn.Module):
    """Sets [T, n, dim] to adapted sets [T, n, dim]; the order of a set does not matter.

    Args:
        dim: of the embeddings.
        dropout: of the attention's output, and of the weights of attention, while training.
    """

    def __init__(self, dim: int, dropout: float = 0.5):
        super().__init__()
        self.ask, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.normalise = nn.LayerNorm(dim)
        self.attention_dropout, self.dropout = nn.Dropout(0.1), nn.Dropout(dropout)
        for layer in (self.ask, self.key, self.value):
            nn.init.normal_(layer.weight, std=math.sqrt(1 / dim))
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, sets: Tensor) -> Tensor:
        """Each element with what it finds in the others."""
        scores = self.ask(sets) @ self.key(sets).mT / math.sqrt(sets.shape[-1])
        found = self.attention_dropout(scores.softmax(dim=-1)) @ self.value(sets)
        return self.normalise(sets + self.dropout(self.out(found)))


def feat_loss(adapt: SetToSet, temperature: float = 64.0, balance: float = 0.1) -> EpisodeLoss:
    """Cross-entropy of the queries by the adapted means, and the paper's contrastive term.

    That adapts each class's images among themselves: images should be near the mean of their own class
    so adapted, far from the others'.

    Args:
        adapt: the set function.
        temperature: squared distances are divided by it, in both terms.
        balance: weight of the second term.
    """
    check_number("temperature", temperature, above=0)
    check_number("balance", balance, least=0)

    def loss(support: Tensor, queries: Tensor) -> Tensor:
        means = adapt(support.mean(dim=1)[None])[0]
        images = torch.cat([support, queries], dim=1)  # [ways, shots + queries, dim]: a set for each class
        own = adapt(images).mean(dim=1)
        contrast = distance_loss(own, images, temperature)
        return distance_loss(means, queries, temperature) + balance * contrast

    return loss


def train_feat(
    network: Network,
    seen: Pool,
    settings: MetaTraining | None = None,
    *,
    temperature: float = 64.0,
    balance: float = 0.1,
    progress: Progress | None = None,
) -> SetToSet:
    """Train the network's embedding in place, and a set function beside it, on tasks of the seen classes."""
    settings = settings or MetaTraining()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(mixed_seed(settings.seed))
        adapt = SetToSet(network.dim).to(network.device)
    meta_train(network, [adapt], seen, feat_loss(adapt, temperature, balance), settings, progress)
    return adapt


def feat(adapt: SetToSet) -> TaskClassifier:
    """The nearest adapted mean, on embeddings of the network that was trained with the set function."""

    @torch.no_grad()
    def classify(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        return nearest(adapt.eval()(centres(support, labels)), queries)

    return classify
