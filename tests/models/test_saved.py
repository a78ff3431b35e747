"""Networks in run folders: written whole, read back exactly, refused clearly."""

import json

import pytest
import torch
from torch import nn

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import Preprocess, load, read_network, save_network
from refilled.models.wide_resnet import WideResNet


def trained(spec, **settings):
    """A network whose running statistics are no longer those of the start."""
    network = load(spec, ["Katze", "Hund", "Überraschung"], **settings)
    network(torch.rand(4, network.preprocess.channels, 16, 16))
    return network.eval()


def same_weights(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture
def folder(tmp_path):
    save_network(trained("convnet-2", image_size=16), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("wrn-10-1", {"image_size": 16}),
        ("resnet-8", {"image_size": 8, "channels": 1}),
        ("resnet-18", {"image_size": 16}),
        ("resnet-18", {"image_size": 65}),
        ("mobilenet-0.3", {"image_size": 32}),
        ("convnet-3", {"image_size": 8, "mean": (0.1, 0.2, 0.3), "std": (1 / 3, 0.7, 0.9)}),
    ],
)
def test_round_trip_is_exact(tmp_path, spec, settings):
    network = trained(spec, **settings)
    save_network(network, tmp_path)
    back = read_network(tmp_path)
    assert same_weights(network, back)
    assert (back.spec, back.classes, back.preprocess, back.dim) == (
        network.spec,
        network.classes,
        network.preprocess,
        network.dim,
    )
    assert not back.training
    pixels = torch.rand(2, network.preprocess.channels, 20, 20)
    with torch.no_grad():
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(network(pixels), back(pixels)))


def test_dropout_is_kept(tmp_path):
    save_network(WideResNet(10, 1, LabelSpace(["a"]), Preprocess(8), dropout=0.3), tmp_path)
    assert read_network(tmp_path).groups[0][0].dropout.p == 0.3


def test_files_are_as_described(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["student.json", "student.safetensors"]
    described = json.loads((folder / "student.json").read_text(encoding="utf-8"))
    assert described == {
        "format": 1,
        "architecture": {"spec": "convnet-2"},
        "classes": ["Katze", "Hund", "Überraschung"],
        "preprocess": {"size": 16, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        "dim": 64,
    }


def test_a_failed_write_leaves_the_old_files(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("refilled.models.weights.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_network(trained("convnet-2", image_size=16), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_load_takes_run_and_plain_paths(folder, monkeypatch):
    assert same_weights(load(f"run:{folder}"), read_network(folder))
    assert same_weights(load(str(folder)), read_network(folder))
    monkeypatch.chdir(folder.parent)
    assert same_weights(load("run"), read_network(folder))


def test_other_classes_get_a_new_head_on_the_same_backbone(folder):
    own, other = load(f"run:{folder}"), load(f"run:{folder}", ["cat", "dog"])
    assert other.classes == LabelSpace(["cat", "dog"])
    assert other.head.weight.shape == (2, 64)
    assert any("head is new" in note for note in other.notes)
    assert all(torch.equal(a, b) for a, b in zip(own.backbone_parameters(), other.backbone_parameters()))
    kept = load(f"run:{folder}", own.classes)
    assert same_weights(kept, own)
    assert kept.notes == []


def test_a_run_keeps_its_image_size(folder):
    network = load(f"run:{folder}", image_size=32)
    assert network.preprocess.size == 16
    assert any("16 pixels" in note for note in network.notes)


def test_no_folder(tmp_path):
    for spec in (f"run:{tmp_path / 'none'}", str(tmp_path / "none")):
        with pytest.raises(UserError, match=r"there is no run folder .*none"):
            load(spec)


def test_not_a_run_folder(tmp_path):
    with pytest.raises(UserError, match="is no run folder"):
        read_network(tmp_path)


def test_run_that_has_not_finished(tmp_path):
    (tmp_path / "config.json").write_text('{"student": "wrn-16-2"}')
    with pytest.raises(UserError, match="no finished student yet"):
        read_network(tmp_path)


def test_folder_of_transformers_is_recognised(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(UserError, match="write hf:"):
        read_network(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_weights(folder, keep):
    path = folder / "student.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"student\.safetensors is damaged"):
        read_network(folder)


def test_missing_weights(folder):
    (folder / "student.safetensors").unlink()
    with pytest.raises(UserError, match=r"no file of weights .*student\.safetensors"):
        read_network(folder)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "cannot read .* as JSON"),
        ("[]", "JSON object"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1}', "incomplete"),
    ],
)
def test_damaged_description(folder, text, word):
    (folder / "student.json").write_text(text)
    with pytest.raises(UserError, match=word):
        read_network(folder)


def describe(folder, **changes):
    path = folder / "student.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}))


def test_other_shapes_name_the_tensor_and_both_shapes(folder):
    describe(folder, classes=["a", "b"])
    message = r"'head\.weight' has shape \(3, 64\) in .*, but \(2, 64\) in convnet-2"
    with pytest.raises(UserError, match=message):
        read_network(folder)


@pytest.mark.parametrize(
    ("spec", "tensor"),
    [
        ("convnet-3", r"no tensor 'blocks\.2\.0\.weight'"),
        ("convnet-1", r"a tensor 'blocks\.1\.0\.(weight|bias)'"),
    ],
)
def test_deeper_and_shallower_architectures_are_refused(folder, spec, tensor):
    describe(folder, architecture={"spec": spec})
    with pytest.raises(UserError, match=tensor):
        read_network(folder)


def test_unknown_architecture(folder):
    describe(folder, architecture={"spec": "future-7"})
    with pytest.raises(UserError, match="future-7"):
        read_network(folder)


def test_weights_on_another_memory_are_saved_once_each(tmp_path):
    network = load("convnet-1", 64, image_size=8)
    network.head.weight = nn.Parameter(network.head.weight.t())  # not contiguous
    save_network(network, tmp_path)
    assert torch.equal(read_network(tmp_path).head.weight, network.head.weight)
