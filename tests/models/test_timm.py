"""Models of timm, with weights made on the spot."""

import copy
import json

import pytest
import torch
from safetensors.torch import save_file

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import load, read_network, save_network
from refilled.models.timm_source import _imagenet_names

pytestmark = pytest.mark.usefixtures("working_torchvision")

NAMES = ["crane", "owl", "crane", "dog", "cat"]
UNIQUE = LabelSpace(["crane", "owl", "crane (2)", "dog", "cat"])


def tiny(name, classes=5, **settings):
    """A model of timm whose head and statistics are none that a fresh one could have."""
    import timm

    torch.manual_seed(3)
    model = timm.create_model(name, pretrained=False, num_classes=classes, **settings)
    head = model.get_classifier()
    torch.nn.init.normal_(head.weight)
    torch.nn.init.normal_(head.bias)
    with torch.no_grad():
        side = settings.get("img_size", 160)
        model.train()(torch.rand(2, settings.get("in_chans", 3), side, side))
    return model.eval()


def write(model, path, classes=None, sidecar=None, leave_out=()):
    """Write a model's weights as a user would have them; the path as a spec wants it."""
    metadata = {"classes": json.dumps(classes)} if classes else None
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in leave_out}
    save_file(weights, path, metadata=metadata)
    if sidecar:
        path.with_suffix(".json").write_text(json.dumps(sidecar))
    return path


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet", "test_convnext"])
def test_a_teacher_from_a_file_says_what_timm_says(tmp_path, name):
    model = tiny(name)
    spec = f"timm:{name}@{write(model, tmp_path / 'm.safetensors', NAMES)}"
    network = load(spec)
    cfg = model.pretrained_cfg
    assert (network.spec, network.classes, network.training) == (spec, UNIQUE, False)
    assert network.preprocess.size == 160
    assert network.preprocess.mean == tuple(cfg["mean"])
    assert network.preprocess.std == tuple(cfg["std"])
    assert network.notes == []
    pixels = torch.rand(2, 3, 160, 160)
    mean, std = (torch.tensor(cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        embeddings, logits = network(pixels)
        theirs = model((pixels - mean) / std)
    assert embeddings.shape == (2, network.dim)
    assert logits.std() > 0.1
    assert torch.allclose(logits, theirs, atol=1e-4)


def test_features_of_a_convolutional_model():
    network = load("timm:test_resnet@random", 3).eval()
    with torch.no_grad():
        maps = network.features(torch.rand(1, 3, 160, 160))
    assert len(maps) >= 4
    assert all(map_.ndim == 4 for map_ in maps)
    assert maps[-1].shape[-1] < maps[0].shape[-1]


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
def test_maps_and_embeddings_in_one_pass(name):
    network = load(f"timm:{name}@random", 3).eval()
    pixels = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        maps, embeddings = network.features_and_embedding(pixels)
        assert torch.allclose(embeddings, network.embed(pixels), atol=1e-5)
        assert all(torch.equal(a, b) for a, b in zip(maps, network.features(pixels)))
    assert all(map_.ndim == 4 for map_ in maps)


def test_maps_before_their_activation_are_refused():
    with pytest.raises(ValueError, match="test_resnet@random does not tell its feature maps before"):
        load("timm:test_resnet@random", 3).responses_and_embedding(torch.rand(1, 3, 160, 160))


def test_features_that_timm_cannot_give_are_refused():
    with pytest.raises(ValueError, match="has no feature maps"):
        load("timm:test_nfnet@random", 3).features(torch.rand(1, 3, 160, 160))


def test_names_and_preprocessing_of_a_sidecar(tmp_path):
    told = {"label_names": NAMES, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_size": [3, 96, 96]}
    network = load(f"timm:test_resnet@{write(tiny('test_resnet'), tmp_path / 'm.safetensors', sidecar=told)}")
    assert network.classes == UNIQUE
    assert network.preprocess.to_json() == {"size": 96, "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}


def test_metadata_and_arguments_come_first(tmp_path):
    told = {"classes": list("abcde"), "mean": [0, 0, 0]}
    path = write(tiny("test_resnet"), tmp_path / "m.safetensors", NAMES, told)
    network = load(f"timm:test_resnet@{path}", mean=(0.3, 0.3, 0.3), image_size=64)
    assert network.classes == UNIQUE
    assert network.preprocess.mean == (0.3, 0.3, 0.3)
    assert network.preprocess.size == 64


def test_unnamed_classes_are_numbered(tmp_path):
    network = load(f"timm:test_resnet@{write(tiny('test_resnet'), tmp_path / 'm.safetensors')}")
    assert list(network.classes) == [f"class {label}" for label in range(5)]
    (note,) = network.notes
    assert "m.safetensors names no classes, so that no other model shares its 5" in note
    assert f'{tmp_path / "m.json"}, {{"classes": [...]}}' in note


def test_a_thousand_unnamed_classes_are_taken_for_imagenets_and_it_is_said(tmp_path):
    network = load(f"timm:test_resnet@{write(tiny('test_resnet', 1000), tmp_path / 'm.safetensors')}")
    assert network.classes[0] == "tench, Tinca tinca"
    assert len(network.classes) == 1000
    assert any("ImageNet" in note for note in network.notes)


def test_imagenets_names_only_for_its_sizes():
    import timm

    assert _imagenet_names(timm, 999) is None
    assert len(_imagenet_names(timm, 11821)) == 11821


def test_other_classes_get_a_new_head_and_a_note(tmp_path):
    model = tiny("test_resnet")
    spec = f"timm:test_resnet@{write(model, tmp_path / 'm.safetensors', NAMES)}"
    network = load(spec, ["x", "y"])
    assert list(network.classes) == ["x", "y"]
    assert network.head.weight.shape == (2, network.dim)
    assert [note for note in network.notes if "head is new" in note]
    same = load(spec, UNIQUE)
    assert all(torch.equal(a, b) for a, b in zip(network.backbone_parameters(), same.backbone_parameters()))
    assert torch.equal(same.head.weight, model.get_classifier().weight)
    assert same.notes == []


def test_a_headless_file_is_an_embedding_unless_a_head_is_asked_for(tmp_path):
    model = tiny("test_resnet")
    spec = f"timm:test_resnet@{write(model, tmp_path / 'm.safetensors', leave_out=('fc.weight', 'fc.bias'))}"
    network, pixels = load(spec), torch.rand(2, 3, 160, 160)
    assert (len(network.classes), network.has_head) == (0, False)
    assert "no classifier; its embedding alone counts" in network.notes[0]
    whole = load(f"timm:test_resnet@{write(model, tmp_path / 'w.safetensors', NAMES)}")
    assert torch.equal(network.embed(pixels), whole.embed(pixels))
    network = load(spec, 3)
    assert network.has_head
    assert network.head.weight.shape == (3, network.dim)
    assert network.head.bias is not None
    assert any("head is new" in note for note in network.notes)


def test_a_head_without_its_bias_is_refused(tmp_path):
    path = write(tiny("test_resnet"), tmp_path / "m.safetensors", leave_out=("fc.bias",))
    with pytest.raises(UserError, match=r"no tensor 'fc\.bias'"):
        load(f"timm:test_resnet@{path}", 3)


def test_a_file_of_another_model_is_refused(tmp_path):
    path = write(tiny("test_resnet"), tmp_path / "m.safetensors")
    with pytest.raises(UserError, match="another architecture than timm's test_vit"):
        load(f"timm:test_vit@{path}", 3)


def test_names_that_do_not_fit_the_head_are_refused(tmp_path):
    path = write(tiny("test_resnet"), tmp_path / "m.safetensors", ["a", "b"])
    with pytest.raises(UserError, match="2 class names, but its classifier has 5"):
        load(f"timm:test_resnet@{path}")


def test_a_pickle_is_refused(tmp_path):
    torch.save({}, tmp_path / "m.pth")
    with pytest.raises(UserError, match=r"\.safetensors files, not from"):
        load(f"timm:test_resnet@{tmp_path / 'm.pth'}")


def test_random_weights_train_from_scratch():
    network = load("timm:test_resnet@random", ["a", "b"], image_size=32)
    assert network.training
    assert network.notes == []
    _, logits = network(torch.rand(4, 3, 32, 32))
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert len(network.backbone_parameters()) == len(list(network.parameters())) - 2
    with pytest.raises(UserError, match="random weights know no classes"):
        load("timm:test_resnet@random")


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_one_channel_and_another_size(name, tmp_path):
    network = load(f"timm:{name}@random", 3, image_size=64, channels=1)
    assert network.preprocess.channels == 1
    assert network.embed(torch.rand(2, 1, 28, 28)).shape == (2, network.dim)
    save_network(network.eval(), tmp_path)
    back = read_network(tmp_path)
    pixels = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        assert torch.equal(back(pixels)[1], network(pixels)[1])
    assert back.architecture() == network.architecture()


def test_a_transformer_from_a_file_of_another_size(tmp_path):
    model = tiny("test_vit", img_size=96)
    path = write(model, tmp_path / "m.safetensors", NAMES, {"input_size": [3, 96, 96]})
    network = load(f"timm:test_vit@{path}")
    assert torch.equal(network.model.pos_embed, model.pos_embed)
    smaller = load(f"timm:test_vit@{path}", image_size=64)
    assert smaller.embed(torch.rand(1, 3, 64, 64)).shape == (1, network.dim)


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match="does not take images of 1 pixels"):
        load("timm:test_vit@random", 3, image_size=1)


def test_round_trip_with_a_new_head(tmp_path):
    path = write(tiny("test_efficientnet"), tmp_path / "m.safetensors", NAMES)
    network = load(f"timm:test_efficientnet@{path}", ["x", "y", "z"])
    save_network(network, tmp_path / "run")
    path.unlink()  # a run folder stands alone
    back = load(f"run:{tmp_path / 'run'}")
    mine, theirs = network.state_dict(), back.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert back.classes == network.classes


def test_a_copy_is_independent(images):
    network = load("timm:test_resnet@random", 3, image_size=32).eval()
    other = copy.deepcopy(network)
    torch.nn.init.zeros_(other.head.weight)
    assert network(images)[1].std() > 0


def test_fresh_weights_follow_the_seed():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append(load("timm:test_resnet@random", 3, image_size=32).head.weight)
    assert torch.equal(*drawn)


def test_unknown_models_and_tags():
    with pytest.raises(UserError, match="unknown timm model 'resnet1o'; did you mean"):
        load("timm:resnet1o")
    with pytest.raises(UserError, match="Invalid pretrained tag"):
        load("timm:resnet18.nonsense@random", 3)


def test_models_without_published_weights_are_no_random_teachers():
    import timm

    unpublished = next(
        name for name in timm.list_models("resnet*") if not timm.get_pretrained_cfg(name).has_weights
    )
    with pytest.raises(UserError, match="timm has no weights"):
        load(f"timm:{unpublished}")


def test_weights_that_cannot_be_fetched(monkeypatch):
    import timm

    def offline(*args, **kwargs):
        raise OSError("no route to the hub\nmore")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UserError, match=r"could not get the pretrained weights \(no route to the hub\)"):
        load("timm:test_resnet")


def test_pretrained_models_have_imagenets_names(monkeypatch):
    import timm

    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **rest: create(name, **rest))
    network = load("timm:test_resnet")
    assert network.classes[1] == "goldfish, Carassius auratus"
    assert network.notes == []
    assert not network.training


def test_a_classifier_that_is_no_linear_layer_is_refused():
    with pytest.raises(UserError, match="not one linear layer"):
        load("timm:levit_128s@random", 3)
