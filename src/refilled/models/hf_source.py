"""Image classifiers of transformers: ``hf:FOLDER`` or ``hf:OWNER/NAME`` on the Hugging Face hub."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from refilled.errors import UserError
from refilled.files import read_json
from refilled.labels import LabelSpace
from refilled.models.adopted import check_split, drop_head, give_head, take_out, try_out
from refilled.models.extras import import_extra
from refilled.models.hf_preprocess import hf_preprocess
from refilled.models.names import made_unique
from refilled.models.network import Network, Preprocess


class HuggingFaceNetwork(Network):
    """A classifier of transformers; its last linear layer is the head, that layer's input the embedding.

    Args:
        spec: what :func:`refilled.load` was given.
        model: a model for image classification; its classifier is moved out of it.
        classes: names of the classes.
        preprocess: how the pixels are prepared.
    """

    def __init__(self, spec: str, model: Any, classes: LabelSpace, preprocess: Preprocess):
        head = model.get_submodule(classifier_name(spec, model))
        super().__init__(spec, head.in_features, classes, preprocess)
        take_out(model, head)
        self.model = model
        self.head = head

    def embed_prepared(self, prepared: Tensor) -> Tensor:
        """Embeddings [B, dim]: without its last layer, the model's "logits" are what that layer was given."""
        return self.model(pixel_values=prepared, return_dict=True).logits

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """Hidden states of convolutional models, [B, C, H, W] each; those of transformers are no maps."""
        return self.maps_and_embedding(prepared)[0]

    def maps_and_embedding(self, prepared: Tensor) -> tuple[list[Tensor], Tensor]:
        """Hidden states, and what the last layer is given."""
        told = self.model(pixel_values=prepared, return_dict=True, output_hidden_states=True)
        states = told.hidden_states
        if not states or any(state.ndim != 4 for state in states):
            super().feature_maps(prepared)  # says that it has none
        return list(states), told.logits

    def architecture(self) -> dict[str, Any]:
        """The spec, and the model's whole configuration with the classes that it has now."""
        config = json.loads(self.model.config.to_json_string(use_diff=False))
        config.pop("_name_or_path", None)
        config["id2label"] = {str(label): name for label, name in enumerate(self.classes)}
        config["label2id"] = {name: label for label, name in enumerate(self.classes)}
        return {**super().architecture(), "config": config}


def load_hf(
    spec: str,
    classes: LabelSpace | None,
    image_size: int | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> HuggingFaceNetwork:
    """Load the model of a folder or of the hub; the arguments are those of :func:`refilled.models.load`."""
    transformers = import_extra("transformers", "hf")
    source = spec.removeprefix("hf:")
    if source.startswith("~"):
        source = str(Path(source).expanduser())
    looks_like_a_path = source.startswith((".", "/")) or source.count("/") > 1
    if not source or (looks_like_a_path and not Path(source).is_dir()):  # not for the hub to search in vain
        raise UserError(f"{spec}: there is no folder {source!r}")
    classifiers = transformers.AutoModelForImageClassification
    logging = transformers.utils.logging
    usual = logging.get_verbosity()
    logging.set_verbosity_error()  # what is missing we say ourselves, in a line
    try:
        model, info = classifiers.from_pretrained(source, output_loading_info=True)
    except Exception as error:  # of the hub's client, of safetensors, of transformers itself
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{spec}: transformers cannot load it as an image classifier: {reason}") from error
    finally:
        logging.set_verbosity(usual)
    model = model.float().eval()  # some are stored in half precision
    head = classifier_name(spec, model)
    # transformers fills gaps with random weights; only a head may have some: it is replaced or dropped.
    gaps = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    of_backbone = [name for name in gaps if not name.startswith(f"{head}.")]
    if of_backbone:
        raise UserError(
            f"{spec}: the checkpoint lacks {len(of_backbone)} tensors of the model, among them "
            f"{of_backbone[0]}"
        )

    told = _read_preprocessor(source)
    own = hf_preprocess(spec, told, model.config)
    preprocess = Preprocess(image_size or own.size, mean or own.mean, std or own.std)
    prepared, logits = try_out(
        spec, lambda images: model(pixel_values=images, return_dict=True).logits, preprocess
    )
    id2label = {int(label): name for label, name in model.config.id2label.items()}
    names = made_unique(name for _, name in sorted(id2label.items()))
    network = HuggingFaceNetwork(spec, model, names, preprocess).eval()
    check_split(network, prepared, logits)
    if told is None:
        network.notes.append(f"{spec}: has no preprocessor_config.json; ImageNet's mean and std are assumed")
    if classes is not None and (gaps or classes != names):
        give_head(network, classes)
    if classes is None and gaps:
        drop_head(network)
    return network


def rebuild_hf(
    architecture: dict[str, Any], classes: LabelSpace, preprocess: Preprocess
) -> HuggingFaceNetwork:
    """The network that ``architecture()`` described; its weights are still to be loaded."""
    transformers = import_extra("transformers", "hf")
    spec, settings = architecture["spec"], dict(architecture["config"])
    try:
        config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
        model = transformers.AutoModelForImageClassification.from_config(config)
    except Exception as error:  # configurations check themselves with errors of many kinds
        release = transformers.__version__
        raise UserError(f"{spec}: transformers {release} cannot build it again: {error}") from error
    return HuggingFaceNetwork(spec, model.float(), classes, preprocess)


def classifier_name(spec: str, model: Any) -> str:
    """Name, inside the model, of its last linear layer with one output per class."""
    labels = model.config.num_labels
    names = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == labels
    ]
    if not names:
        raise UserError(f"{spec}: the model has no linear layer with one output for each of {labels} classes")
    return names[-1]


def _read_preprocessor(source: str) -> dict[str, Any] | None:
    """Contents of the model's ``preprocessor_config.json``, None if it has none."""
    from transformers.utils import cached_file

    path = cached_file(
        source,
        "preprocessor_config.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return read_json(Path(path)) if path else None
