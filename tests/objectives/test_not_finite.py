"""An embedding, a logit or a map that is not finite is seen in the loss, whatever ties and zeros may hide."""

import pytest
import torch

from refilled import objectives as of

LABELS = torch.arange(12) % 3
MARGINS = torch.tensor([-0.5, -0.2, -0.1])
MATRICES = {
    "comparison_matching": lambda s, t: of.comparison_matching(s, t, LABELS),
    "comparison_matching, margin": lambda s, t: of.comparison_matching(s, t, LABELS, margin=0.3),
    "comparison_matching, triplets": lambda s, t: of.comparison_matching(s, t, LABELS, max_impostors=1),
    "local_kd": lambda s, t: of.local_kd(s, t, LABELS),
    "kd": of.kd,
    "dkd": lambda s, t: of.dkd(s, t, LABELS),
    "dist": of.dist,
    "standardised_kd": of.standardised_kd,
    "shared_kd": lambda s, t: of.shared_kd(s, t, torch.tensor([0, 2]), torch.tensor([1, 2])),
    "rkd_distance": of.rkd_distance,
    "rkd_angle": of.rkd_angle,
    "similarity_preserving": of.similarity_preserving,
    "direction_matching": of.direction_matching,
    "asymmetric_contrastive": lambda s, t: of.asymmetric_contrastive(s, t, LABELS),
    "asymmetric_triplet": lambda s, t: of.asymmetric_triplet(s, t, LABELS),
    "similarity_distillation": lambda s, t: of.similarity_distillation(s, t, t),
    "selective_kd": lambda s, t: of.selective_kd(s, t, LABELS, tau=4.0, wrong_share=0.0),
    "jacobian_matching": of.jacobian_matching,
}
MAPS = {
    "hint": of.hint,
    "attention_transfer": of.attention_transfer,
    "neuron_selectivity": of.neuron_selectivity,
    "partial_distance": lambda s, t: of.partial_distance(s, t, MARGINS),
}


def spoilt(given: torch.Tensor, rows: slice, value: float) -> torch.Tensor:
    given = given.clone()
    given[rows] = value
    return given


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("rows", [slice(2, 3), slice(None)], ids=["one", "all"])
@pytest.mark.parametrize("name", [*MATRICES, *MAPS])
def test_what_is_not_finite_is_seen(name, rows, value):
    torch.manual_seed(0)
    shape = (12, 3) if name in MATRICES else (12, 3, 4, 4)
    student, teacher, loss = torch.randn(shape), torch.randn(shape), (MATRICES | MAPS)[name]
    assert loss(student, teacher).isfinite()
    assert not loss(spoilt(student, rows, value), teacher).isfinite()
    assert not loss(student, spoilt(teacher, rows, value)).isfinite()
