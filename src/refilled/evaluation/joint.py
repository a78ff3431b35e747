"""How well one classifier tells old and new classes apart, all at once."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Joint:
    """Accuracies over the union of old and new classes, shares from 0 to 1."""

    old: float
    """Of images of old classes."""
    new: float
    """Of images of new classes."""
    all: float
    """Of all images, each class set counted with the images it has."""

    @property
    def harmonic(self) -> float:
        """Harmonic mean of old and new: high only where both are."""
        return 2 * self.old * self.new / (self.old + self.new) if self.old + self.new else 0.0


def joint_accuracy(old_logits: Tensor, old_labels: Tensor, new_logits: Tensor, new_labels: Tensor) -> Joint:
    """Accuracies of one classifier on images of old and of new classes.

    Args:
        old_logits: [N, C] over all classes, of images of old ones.
        old_labels: int64 [N], among all classes.
        new_logits: [M, C], of images of new classes.
        new_labels: int64 [M].
    """
    old, new = old_logits.argmax(dim=1) == old_labels, new_logits.argmax(dim=1) == new_labels
    right, count = int(old.sum()) + int(new.sum()), len(old) + len(new)
    return Joint(old.double().mean().item(), new.double().mean().item(), right / count)
