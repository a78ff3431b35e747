"""Image classifiers of transformers, tiny ones made on the spot."""

import copy
import json

import pytest
import torch

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import Preprocess, load, read_network, save_network
from refilled.models.hf_preprocess import hf_preprocess

pytestmark = pytest.mark.usefixtures("working_torchvision")

NAMES = ["crane", "owl", "crane", "dog", "cat"]
UNIQUE = LabelSpace(["crane", "owl", "crane (2)", "dog", "cat"])
PROCESSOR = {
    "do_normalize": True,
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
}


def make(kind):
    """A tiny model of a kind, in evaluation mode."""
    import transformers

    torch.manual_seed(4)
    id2label = dict(enumerate(NAMES))
    if kind == "vit":
        config = transformers.ViTConfig(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=32,
            patch_size=8,
            id2label=id2label,
        )
    else:
        config = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", id2label=id2label
        )
    model = transformers.AutoModelForImageClassification.from_config(config)
    torch.nn.init.normal_(last_linear(model).weight)
    return model.eval()


def last_linear(model):
    return [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)][-1]


def write(model, folder, processor=PROCESSOR):
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"hf:{folder}"


@pytest.fixture(params=["vit", "resnet"])
def kind(request):
    return request.param


def test_a_teacher_says_what_its_model_says(tmp_path, kind):
    model = make(kind)
    network = load(write(model, tmp_path))
    assert network.classes == UNIQUE
    assert network.preprocess == Preprocess(32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    assert network.dim == {"vit": 24, "resnet": 16}[kind]
    assert network.notes == []
    assert not network.training
    pixels = torch.rand(3, 3, 32, 32)
    mean, std = (torch.tensor(PROCESSOR[key]).view(1, 3, 1, 1) for key in ("image_mean", "image_std"))
    with torch.no_grad():
        embeddings, logits = network(pixels)
        theirs = model(pixel_values=(pixels - mean) / std).logits
    assert embeddings.shape == (3, network.dim)
    assert logits.std() > 0.1
    assert torch.allclose(logits, theirs, atol=1e-5)


def test_nothing_is_left_over_between_calls(tmp_path, kind):
    network = load(write(make(kind), tmp_path))
    one, other = torch.rand(2, 3, 32, 32), torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        first = network.embed(one)
        network(other)
        assert torch.equal(network.embed(one), first)
        assert torch.equal(copy.deepcopy(network).embed(one), first)
    copied = copy.deepcopy(network)
    torch.nn.init.zeros_(copied.head.weight)
    assert network.head.weight.abs().sum() > 0


def test_gradients_flow_to_the_whole_student(tmp_path, kind):
    network = load(write(make(kind), tmp_path), ["x", "y"]).train()
    _, logits = network(torch.rand(4, 3, 32, 32))
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert len(network.backbone_parameters()) == len(list(network.parameters())) - 2


def test_features_are_maps_or_an_error(tmp_path):
    maps = load(write(make("resnet"), tmp_path / "resnet")).features(torch.rand(2, 3, 32, 32))
    assert [map_.shape[1] for map_ in maps] == [8, 8, 16]
    network, pixels = load(f"hf:{tmp_path / 'resnet'}"), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(network.features_and_embedding(pixels)[1], network.embed(pixels), atol=1e-6)
    with pytest.raises(ValueError, match="has no feature maps"):
        load(write(make("vit"), tmp_path / "vit")).features(torch.rand(2, 3, 32, 32))


def test_same_classes_keep_the_head_and_others_get_a_new_one(tmp_path, kind):
    model = make(kind)
    spec = write(model, tmp_path)
    same, other = load(spec, UNIQUE), load(spec, ["x", "y"])
    assert torch.equal(same.head.weight, last_linear(model).weight)
    assert same.notes == []
    assert other.head.weight.shape == (2, same.dim)
    assert list(other.classes) == ["x", "y"]
    assert any("head is new" in note for note in other.notes)
    assert all(torch.equal(a, b) for a, b in zip(same.backbone_parameters(), other.backbone_parameters()))


@pytest.mark.parametrize("classes", [None, ["x", "y"]])
def test_round_trip(tmp_path, kind, classes):
    network = load(write(make(kind), tmp_path / "model"), classes)
    save_network(network, tmp_path / "run")
    (tmp_path / "model" / "config.json").unlink()  # a run folder stands alone
    back = read_network(tmp_path / "run")
    mine, theirs = network.state_dict(), back.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (back.classes, back.preprocess, back.dim) == (network.classes, network.preprocess, network.dim)
    pixels = torch.rand(2, 3, 40, 40)
    with torch.no_grad():
        assert torch.equal(network(pixels)[1], back(pixels)[1])


def test_a_headless_checkpoint_is_an_embedding_unless_a_head_is_asked_for(tmp_path, capfd):
    whole = make("vit")
    spec = write(whole.vit, tmp_path)
    network, pixels = load(spec), torch.rand(2, 3, 32, 32)
    assert "classifier" not in "".join(capfd.readouterr())  # transformers has a table of what is missing
    assert (len(network.classes), network.has_head) == (0, False)
    assert "no classifier; its embedding alone counts" in network.notes[0]
    with torch.no_grad():
        states = whole.vit(pixel_values=network.prepare(pixels)).last_hidden_state
        assert torch.allclose(network.embed(pixels), states[:, 0], atol=1e-5)
    # Even the very names that its configuration has: the head would be random.
    network = load(spec, UNIQUE)
    assert any("head is new" in note for note in network.notes)


def test_a_checkpoint_with_gaps_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    spec = write(make("vit"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("cls_token"))]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for classes in (None, 3):
        with pytest.raises(UserError, match=r"lacks 1 tensors of the model, among them .*cls_token"):
            load(spec, classes)


def test_a_head_of_another_size_is_refused(tmp_path):
    spec = write(make("vit"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="hf:"):
        load(spec)


def test_damaged_weights(tmp_path):
    spec = write(make("vit"), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="cannot load it"):
        load(spec)


@pytest.mark.parametrize("spec", ["hf:", "hf:./nowhere", "hf:/no/such/folder", "hf:a/b/c"])
def test_no_such_folder(spec):
    with pytest.raises(UserError, match="there is no folder"):
        load(spec)


def test_a_model_of_two_heads_is_refused(tmp_path, monkeypatch):
    """A model whose logits are no linear function of one embedding must not pass for one."""
    from transformers import ViTForImageClassification

    spec = write(make("vit"), tmp_path)
    forward = ViTForImageClassification.forward

    def squared(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        output.logits = output.logits.square()
        return output

    monkeypatch.setattr(ViTForImageClassification, "forward", squared)
    with pytest.raises(UserError, match="not one linear layer of one embedding"):
        load(spec)


def test_half_precision_is_loaded_as_single(tmp_path):
    network = load(write(make("vit").half(), tmp_path))
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_without_a_preprocessor_the_assumption_is_told(tmp_path):
    network = load(write(make("vit"), tmp_path, processor=None))
    assert network.preprocess == Preprocess(32)
    assert any("preprocessor_config.json" in note for note in network.notes)


def test_arguments_replace_the_preprocessing(tmp_path):
    spec = write(make("resnet"), tmp_path)
    network = load(spec, image_size=48, mean=(0.1, 0.1, 0.1), std=(0.9, 0.9, 0.9))
    assert network.preprocess == Preprocess(48, (0.1, 0.1, 0.1), (0.9, 0.9, 0.9))


def test_a_size_that_the_model_does_not_take(tmp_path):
    with pytest.raises(UserError, match="does not take images of 3 x 48 x 48"):
        load(write(make("vit"), tmp_path), image_size=48)


class Config:
    num_channels = 3


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({"size": 200}, 200),
        ({"size": {"height": 64, "width": 64}}, 64),
        ({"size": {"shortest_edge": 96}}, 96),
        ({"size": {"shortest_edge": 9}, "do_center_crop": True, "crop_size": {"height": 8, "width": 8}}, 8),
        ({"size": {"shortest_edge": 256}, "do_center_crop": False, "crop_size": 224}, 256),
        ({}, 224),
    ],
)
def test_side_of_the_images(told, size):
    assert hf_preprocess("hf:x", told, Config()).size == size


@pytest.mark.parametrize(
    ("told", "pixel", "seen"),
    [
        ({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}, 1.0, 2.0),
        ({"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "do_normalize": False}, 0.3, 0.3),
        ({"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "rescale_factor": 1 / 255}, 0.5, 0.0),
        ({"image_mean": [127.5] * 3, "image_std": [127.5] * 3, "do_rescale": False}, 1.0, 1.0),
        (
            {
                "image_mean": [0] * 3,
                "image_std": [1] * 3,
                "rescale_factor": 1 / 127.5,
                "rescale_offset": True,
            },
            0.25,
            -0.5,
        ),
        ({"do_rescale": True}, 0.7, 0.7),
    ],
)
def test_what_the_model_sees_of_a_pixel(told, pixel, seen):
    made = hf_preprocess("hf:x", told, Config())
    assert (pixel - made.mean[0]) / made.std[0] == pytest.approx(seen)


def test_preprocessing_that_cannot_be_done_is_refused():
    with pytest.raises(UserError, match="blue, green, red"):
        hf_preprocess("hf:x", {"do_flip_channel_order": True}, Config())
    with pytest.raises(UserError, match="only square"):
        hf_preprocess("hf:x", {"size": {"height": 32, "width": 64}}, Config())
