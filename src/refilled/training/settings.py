"""How to train, whatever the method."""

import math
import os
from dataclasses import dataclass
from typing import Literal

import torch

from refilled.checks import check_choices, check_number
from refilled.errors import UserError, unknown

DEVICES = ("cpu", "cuda", "mps", "xpu")
FRESH_LR = 0.1
"""Where a student starts from random weights."""
TRAINED_LR = 0.01
"""Where it starts from trained ones, which the other would spoil: fine-tuned, a WRN-40-2 has 40.9 and 62.6 %
with 10 and 50 images of a class, and 38.1 and 57.3 with the other (validation; results/few-images.md)."""


Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training loop; a learning rate and its schedule apply to each stage anew."""

    epochs: int = 100
    """Passes over the training images, all stages together, so that equal numbers compare fairly."""
    batch_size: int | None = None
    """Images of a step; none: 256, or as few as make 64 steps of an epoch (16 at least): few images in large
    batches are few steps."""
    lr: float | None = None
    """Learning rate at the start of each stage; none: 0.1, or 0.01 for a student that starts from trained
    weights (timm, hf, a run's, or its teacher's)."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """Pull of every weight towards 0."""
    schedule: Literal["cosine", "multistep"] = "cosine"
    """Cosine to zero over a stage, or the learning rate times `decay` at each of the `milestones`."""
    milestones: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Where a multi-step schedule steps, as fractions of a stage."""
    decay: float = 0.2
    """Factor of the learning rate at a milestone."""
    precision: Precision = "auto"
    """Autocast; auto is bfloat16 on a CUDA GPU and float32 elsewhere."""
    step: Literal["auto", "plain"] = "auto"
    """auto: as fast as the device allows (a captured CUDA graph, a folded or looked-up teacher); plain:
    forward, backward, update, and nothing else. Both do the same but for rounding."""
    compile: bool = False
    """Compile the network with torch.compile, and in stages of 40,000 steps and more the loss around it: a
    fifth to a third faster on a GPU, after up to a minute at the start. For long runs."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto is cuda where there is one, else cpu."""
    seed: int = 0
    """Decides initial weights, order of the images, augmentation and the choice of shots."""
    deterministic: bool = False
    """Only operations that give the same result every time, on a GPU too; slower."""
    keep_teacher_classes: bool = False
    """The student also learns the teacher's classes, without their images: from the teacher's predictions on
    the new ones. It then predicts the teacher's classes (names and order kept) and its own."""
    keep_weight: float = 1.0
    """Weight of the term that keeps the teacher's classes; 0: none, for ewc and fine-tune."""
    keep_tau: float = 2.0
    """Its temperature."""
    calibrate: bool = True
    """After keeping the teacher's classes, make old and new ones comparable; how, `keep_level` says."""
    keep_level: bool | None = None
    """Whether that is done by one factor for all new classes, from how far the best logits stand out for the
    training images; only where all of them are new. Otherwise as in the paper: the head's biases are dropped
    and all class weights get one length. none: by the factor for methods whose classifier is matched to the
    teacher's class centres, which need it (results/keeping.md), as in the paper for others."""
    validate_every: int | None = None
    """Epochs between validations; none: ten times in a stage."""
    checkpoint_seconds: float = 20.0
    """Least time between two checkpoints; one is also written at the end of every stage."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("epochs", self.epochs, least=1, whole=True)
        check_number("batch_size", self.batch_size, least=2, whole=True)
        check_number("lr", self.lr, above=0, most=1e38)
        check_number("momentum", self.momentum, least=0, below=1)
        check_number("weight_decay", self.weight_decay, least=0, most=1e38)
        check_number("decay", self.decay, above=0)
        check_number("seed", self.seed, least=0, below=2**63, whole=True)
        check_number("keep_weight", self.keep_weight, least=0)
        check_number("keep_tau", self.keep_tau, above=0)
        check_number("validate_every", self.validate_every, least=1, whole=True)
        check_number("checkpoint_seconds", self.checkpoint_seconds, least=0)

    def batch_of(self, images: int) -> int:
        """Images of a step for a training set of that many."""
        return self.batch_size or min(256, max(16, images // 64))

    @property
    def first_lr(self) -> float:
        """Learning rate at the start of each stage."""
        return FRESH_LR if self.lr is None else self.lr

    def learning_rate(self, progress: float) -> float:
        """Learning rate at a point of a stage, from 0 (its start) to 1 (its end)."""
        if self.schedule == "cosine":
            return self.first_lr * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.first_lr * self.decay ** sum(progress >= milestone for milestone in self.milestones)

    def autocast_dtype(self, device: torch.device) -> torch.dtype | None:
        """Type of the autocast on that device, or None for plain float32."""
        return autocast_dtype(self.precision, device)


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Type of the autocast of a precision on a device, or None for plain float32."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    return torch.bfloat16 if precision == "bfloat16" else None


def bfloat16_would_pay(device: torch.device) -> bool:
    """Whether this is a CPU with matrix units for bfloat16 (Intel's AMX), where it halves the time."""
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return device.type == "cpu" and ask is not None and bool(ask())


def pick_device(name: str) -> torch.device:
    """The device of that name, checked to be there; ``auto`` takes a CUDA GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.lower() == "gpu":
        raise UserError(
            "device 'gpu' is called cuda here (NVIDIA, AMD), mps (Apple) or xpu (Intel); see --device"
        )
    if name.partition(":")[0] not in DEVICES:
        raise unknown("device", name, ("auto", *DEVICES))
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ImportError):
        raise UserError(f"device {name!r} is not available here; use --device cpu, or auto") from None
    return device


def make_deterministic(strict: bool) -> None:
    """Ask PyTorch for reproducible operations, or (``strict=False``) for its usual fast ones."""
    if strict:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(strict)
    torch.backends.cudnn.benchmark = not strict
