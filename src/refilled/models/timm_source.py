"""Models of timm (https://github.com/huggingface/pytorch-image-models).

``timm:NAME`` has timm's pretrained weights, ``timm:NAME@FILE.safetensors`` those of a file, and
``timm:NAME@random`` fresh ones.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from refilled.errors import UserError, unknown
from refilled.labels import LabelSpace
from refilled.models.adopted import check_split, drop_head, give_head, take_out, try_out
from refilled.models.extras import import_extra
from refilled.models.names import made_unique, numbered
from refilled.models.network import IMAGENET_MEAN, IMAGENET_STD, Network, Preprocess
from refilled.models.timm_file import TimmFile, read_timm_file
from refilled.models.weights import fit_weights


class TimmNetwork(Network):
    """A timm model; its classifier is the head, what reaches the classifier is the embedding.

    Args:
        spec: what :func:`refilled.load` was given.
        name: timm's name of the model.
        model: the model; its classifier is moved out of it.
        classes: names of the classes.
        preprocess: how the pixels are prepared.
    """

    def __init__(self, spec: str, name: str, model: Any, classes: LabelSpace, preprocess: Preprocess):
        head = model.get_classifier()
        if not isinstance(head, nn.Linear):
            raise UserError(f"{spec}: its classifier is a {type(head).__name__}, not one linear layer")
        super().__init__(spec, head.in_features, classes, preprocess)
        take_out(model, head)
        self.name = name
        self.model = model
        self.head = head

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """Maps [B, C, H, W] after each stage, of the models from which timm can take them."""
        if not hasattr(self.model, "forward_intermediates"):
            return super().feature_maps(prepared)
        return list(self.model.forward_intermediates(prepared, intermediates_only=True))

    def embed_prepared(self, prepared: Tensor) -> Tensor:
        """Embeddings [B, dim]: what timm calls pre-logits."""
        return self.model.forward_head(self.model.forward_features(prepared), pre_logits=True)

    def maps_and_embedding(self, prepared: Tensor) -> tuple[list[Tensor], Tensor]:
        """Maps after each stage, and pre-logits of what comes after the last one."""
        if not hasattr(self.model, "forward_intermediates"):
            return super().maps_and_embedding(prepared)
        final, maps = self.model.forward_intermediates(prepared)
        return list(maps), self.model.forward_head(final, pre_logits=True)

    def architecture(self) -> dict[str, Any]:
        """The spec, and timm's name of the model."""
        return {**super().architecture(), "model": self.name}


@dataclass
class _Found:
    """A model with its weights; its classes are None when the weights have no classifier."""

    model: Any
    classes: LabelSpace | None
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_timm(
    spec: str,
    classes: LabelSpace | None,
    image_size: int | None,
    channels: int,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> TimmNetwork:
    """Build what the spec says; the arguments are those of :func:`refilled.models.load`."""
    timm = import_extra("timm", "timm")
    name, _, origin = spec.removeprefix("timm:").partition("@")
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise UserError(f"{spec}: {error} timm.list_pretrained() lists the names with their tags") from error

    if origin == "random":
        found = _random(timm, spec, name, classes, channels)
    elif origin:
        found = _from_file(timm, spec, name, read_timm_file(Path(origin).expanduser()), classes, channels)
    else:
        found = _pretrained(timm, spec, name, classes, channels)

    settings = {**found.model.pretrained_cfg, **found.settings}
    side = image_size or _side(spec, settings)
    preprocess = Preprocess(
        side,
        mean or _per_channel(settings.get("mean", IMAGENET_MEAN), channels),
        std or _per_channel(settings.get("std", IMAGENET_STD), channels),
    )
    _resize(spec, found.model, side)
    prepared, logits = try_out(spec, found.model.eval(), preprocess)
    own = found.classes or numbered(found.model.num_classes)
    network = TimmNetwork(spec, name, found.model, own, preprocess).eval()
    check_split(network, prepared, logits)
    network.notes += found.notes
    if classes is not None and classes != found.classes:
        give_head(network, classes)
    if classes is None and found.classes is None:
        drop_head(network)
    return network.train(origin == "random")


def rebuild_timm(architecture: dict[str, Any], classes: LabelSpace, preprocess: Preprocess) -> TimmNetwork:
    """The network that ``architecture()`` described; its weights are still to be loaded."""
    timm = import_extra("timm", "timm")
    spec, name = architecture["spec"], architecture["model"]
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    model = timm.create_model(name, pretrained=False, num_classes=len(classes), in_chans=preprocess.channels)
    if preprocess.size is not None:
        _resize(spec, model, preprocess.size)
    return TimmNetwork(spec, name, model, classes, preprocess)


def _random(timm: Any, spec: str, name: str, classes: LabelSpace | None, channels: int) -> _Found:
    """Fresh weights."""
    if classes is None:
        raise UserError(f"{spec}: random weights know no classes; say which ones the model shall have")
    model = timm.create_model(name, pretrained=False, num_classes=len(classes), in_chans=channels)
    return _Found(model, classes)


def _pretrained(timm: Any, spec: str, name: str, classes: LabelSpace | None, channels: int) -> _Found:
    """timm's own weights."""
    published = timm.get_pretrained_cfg(name)
    if published is None or not published.has_weights:  # for some of these timm only warns and goes on
        raise UserError(
            f"{spec}: timm has no weights for this model; give a file ({spec}@FILE.safetensors) "
            f"or start from scratch ({spec}@random)"
        )
    try:
        model = timm.create_model(name, pretrained=True, in_chans=channels)
    except Exception as error:  # the hub's client raises errors of many libraries
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{spec}: could not get the pretrained weights ({reason}); without a connection give "
            f"a file: {spec}@FILE.safetensors"
        ) from error
    if not model.num_classes:
        model.reset_classifier(_replaced(classes))
        return _Found(model, None)
    names = published.label_names or _imagenet_names(timm, model.num_classes)
    return _Found(model, made_unique(names) if names else numbered(model.num_classes))


def _from_file(
    timm: Any, spec: str, name: str, file: TimmFile, classes: LabelSpace | None, channels: int
) -> _Found:
    """Weights of a file, every one of them; only a classifier may lack, which is then replaced or dropped."""
    blank = timm.create_model(name, pretrained=False, in_chans=channels)
    last = blank.get_classifier()
    classifier = next((layer for layer, module in blank.named_modules() if module is last), None)
    weight = file.weights.get(f"{classifier}.weight")
    count = _replaced(classes) if weight is None else len(weight)
    model = timm.create_model(name, pretrained=False, num_classes=count, in_chans=channels)
    # The file's images may have another side than timm's; the shapes of some weights depend on it.
    side = _side(spec, {**model.pretrained_cfg, **file.settings})
    _resize(spec, model, side)
    may_lack = (f"{classifier}.weight", f"{classifier}.bias") if weight is None else ()
    fit_weights(model, file.weights, file.path, f"timm's {name}", may_lack)
    if weight is None:
        return _Found(model, None, file.settings)
    if file.names is not None:
        if len(file.names) != count:
            raise UserError(
                f"{file.path}: there are {len(file.names)} class names, but its classifier has "
                f"{count} outputs"
            )
        return _Found(model, made_unique(file.names), file.settings)
    names = _imagenet_names(timm, count)
    if names is None:
        note = (
            f"{file.path} names no classes, so that no other model shares its {count}; they are taken from "
            f'{file.path.with_suffix(".json")}, {{"classes": [...]}}, where that is there'
        )
        return _Found(model, numbered(count), file.settings, [note])
    note = f"{spec}: names no classes; as there are {count}, they are taken for ImageNet's"
    return _Found(model, made_unique(names), file.settings, [note])


def _replaced(classes: LabelSpace | None) -> int:
    """Outputs of a classifier that has no weights: it is replaced by one for these classes, or dropped."""
    return 1 if classes is None else len(classes)


def _imagenet_names(timm: Any, count: int) -> list[str] | None:
    """The names of ImageNet's classes if one of its usual sets has that many."""
    subset = timm.data.infer_imagenet_subset({"num_classes": count})
    return timm.data.ImageNetInfo(subset).label_descriptions() if subset else None


def _side(spec: str, settings: dict[str, Any]) -> int:
    """Side of the images in pixels; timm writes [channels, height, width]."""
    size = settings.get("input_size", (3, 224, 224))
    height, width = (size, size) if isinstance(size, int) else size[-2:]
    if height != width:
        raise UserError(f"{spec} takes images of {height} x {width} pixels; only square ones are supported")
    return int(height)


def _per_channel(values: Any, channels: int) -> tuple[float, ...]:
    """One value per channel; for another number of channels than given, their average."""
    values = tuple(float(value) for value in values)
    return values if len(values) == channels else (sum(values) / len(values),) * channels


def _resize(spec: str, model: Any, side: int) -> None:
    """Prepare a model whose weights depend on the image size (position embeddings) for another one."""
    published = _side(spec, model.pretrained_cfg)
    if hasattr(model, "set_input_size"):
        try:
            model.set_input_size(img_size=side)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise UserError(f"{spec} does not take images of {side} pixels: {error}") from error
    elif side != published and model.pretrained_cfg.get("fixed_input_size"):
        raise UserError(f"{spec} takes images of {published} pixels only, not {side}")
