"""Find a model by its name, wherever it comes from."""

from collections.abc import Sequence
from pathlib import Path

from refilled.errors import UserError, unknown
from refilled.labels import LabelSpace
from refilled.models import native
from refilled.models.adopted import give_head
from refilled.models.hf_source import load_hf
from refilled.models.names import Classes, as_label_space
from refilled.models.network import IMAGENET_MEAN, IMAGENET_STD, Network, Preprocess
from refilled.models.saved import read_network
from refilled.models.timm_source import load_timm

EXAMPLES = (
    *native.EXAMPLES,
    "timm:NAME",
    "timm:NAME@FILE.safetensors",
    "timm:NAME@random",
    "hf:FOLDER-or-REPO",
    "run:FOLDER",
)


def load(
    spec: str,
    classes: Classes | None = None,
    *,
    image_size: int | None = None,
    channels: int = 3,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Network:
    """A network by its name.

    - ``wrn-16-2``, ``resnet-32``, ``resnet-18``, ``resnet-12``, ``mobilenet-0.5``, ``convnet-4``: ours, with
      fresh weights.
    - ``timm:NAME``, ``timm:NAME@FILE.safetensors``, ``timm:NAME@random``: a model of timm with its pretrained
      weights, with those of a file, with fresh ones.
    - ``hf:FOLDER`` or ``hf:OWNER/NAME``: an image classifier of transformers, or its backbone.
    - ``run:FOLDER``, or just the folder: the student of a finished run.

    Networks with fresh weights come in training mode, all others in evaluation mode.

    Args:
        spec: the name.
        classes: a label space, a list of names, or how many there are. Fresh weights need it. A model that
            has classes of its own keeps its head if these are the same names in the same order, and gets a
            new head otherwise (``network.notes`` says so); without ``classes`` its head is never touched.
            Weights that have none, such as those of self-supervised models, then make a network of
            embeddings alone, which knows no classes: a teacher all the same.
        image_size: side in pixels to which images are brought; by default the published one. The student of
            a run keeps the size that it was trained with.
        channels: colour channels of the network's input. Models of ``hf:`` and ``run:`` keep theirs.
        mean: mean of each channel of the pixels, which are from 0 to 1; by default the model's own, and
            ImageNet's (one channel: 0.5) where it has none.
        std: standard deviation of each channel, likewise.
    """
    if image_size is not None and image_size < 1:
        raise UserError(f"an image size is a number of pixels, not {image_size}")
    if channels < 1:
        raise UserError(f"images have at least one channel, not {channels}")
    for what, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != channels:
            raise UserError(f"{what} needs one value for each of {channels} channels, not {len(values)}")
    if std is not None and min(std) <= 0:
        raise UserError(f"standard deviations are above 0, not {min(std)}")
    space = None if classes is None else as_label_space(classes)
    means = None if mean is None else tuple(float(value) for value in mean)
    stds = None if std is None else tuple(float(value) for value in std)

    if spec.startswith("timm:"):
        return load_timm(spec, space, image_size, channels, means, stds)
    if spec.startswith("hf:"):
        return load_hf(spec, space, image_size, means, stds)
    if spec.startswith("run:"):
        return _load_run(spec, Path(spec.removeprefix("run:")), space, image_size)
    if space is None and (Path(spec) / "student.json").is_file():  # a run that is called like a model
        return _load_run(spec, Path(spec), space, image_size)
    if native.is_native(spec):
        size = image_size or native.published_size(spec)
        if space is None:
            raise UserError(
                f"{spec} starts from fresh weights, which know no classes: a teacher must be trained first "
                f"(refilled train ... --out RUN), and a student needs to be told its classes"
            )
        usual = (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
        return native.build(spec, space, Preprocess(size, means or usual[0], stds or usual[1]))
    if "/" in spec or Path(spec).is_dir():
        return _load_run(spec, Path(spec), space, image_size)
    problem = unknown("model", spec, EXAMPLES)
    # Who has no classes to give wants a network that knows some: most likely that of a run.
    raise problem if space is not None else UserError(f"there is no run folder {spec}: {problem}")


def _load_run(spec: str, folder: Path, classes: LabelSpace | None, image_size: int | None) -> Network:
    """The student of a run; with other classes, its backbone under a new head."""
    network = read_network(folder.expanduser())
    own = network.preprocess.size
    if image_size not in (None, own):
        # Its strides and what it has learned belong to its own size.
        network.notes.append(f"{spec}: keeps its image size of {own} pixels, not {image_size}")
    if classes is not None and classes != network.classes:
        give_head(network, classes)
    return network
