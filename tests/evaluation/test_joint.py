import pytest
import torch

from refilled.evaluation import joint_accuracy


def logits_for(predictions: list[int], classes: int = 4) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(predictions), classes).float()


def test_accuracies_over_all_classes():
    found = joint_accuracy(
        logits_for([0, 1, 2, 3]), torch.tensor([0, 1, 1, 1]), logits_for([3, 3]), torch.tensor([3, 2])
    )
    assert (found.old, found.new, found.all) == (0.5, 0.5, 0.5)
    uneven = joint_accuracy(
        logits_for([0, 0, 0, 1]), torch.tensor([0, 0, 0, 0]), logits_for([2, 0]), torch.tensor([3, 2])
    )
    assert (uneven.old, uneven.new) == (0.75, 0.0)
    assert uneven.all == pytest.approx(3 / 6)
    assert uneven.harmonic == 0.0
    assert found.harmonic == pytest.approx(0.5)


def test_nothing_right_is_no_division_by_zero():
    wrong = joint_accuracy(logits_for([1]), torch.tensor([0]), logits_for([1]), torch.tensor([2]))
    assert wrong.harmonic == 0.0
