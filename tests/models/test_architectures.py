"""Our own architectures: published parameter counts, shapes, and the contract of a network."""

import copy

import pytest
import torch
from torch import nn

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import Preprocess, load
from refilled.models.layers import initialise
from refilled.models.mobilenet import scaled
from refilled.models.wide_resnet import WideResNet

# One of each kind, at a side that its strides fit and a CPU computes quickly.
NATIVE = [
    ("wrn-16-2", 16, 128, [(32, 16), (64, 8), (128, 4)]),
    ("wrn-10-1", 32, 64, [(16, 32), (32, 16), (64, 8)]),
    ("resnet-14", 32, 64, [(16, 32), (32, 16), (64, 8)]),
    ("resnet-18", 16, 512, [(64, 16), (128, 8), (256, 4), (512, 2)]),
    ("resnet-18", 96, 512, [(64, 24), (128, 12), (256, 6), (512, 3)]),
    ("resnet-12", 16, 640, [(64, 8), (160, 4), (320, 2), (640, 1)]),
    ("mobilenet-0.5", 32, 512, [(32, 32), (64, 32), (128, 16), (256, 8), (512, 4)]),
    ("mobilenet-0.25", 96, 256, [(16, 48), (32, 24), (64, 12), (128, 6), (256, 3)]),
    ("convnet-2", 8, 64, [(64, 4), (64, 2)]),
    ("convnet-4", 84, 64, [(64, 42), (64, 21), (64, 10), (64, 5)]),
]
IDS = [f"{spec}@{side}" for spec, side, _, _ in NATIVE]


def count(parameters):
    return sum(parameter.numel() for parameter in parameters)


@pytest.mark.parametrize(
    ("spec", "classes", "published", "source"),
    [
        (
            "wrn-40-2",
            100,
            2_255_156,
            "Tian et al. (2020), Contrastive Representation Distillation, benchmark",
        ),
        ("wrn-16-2", 100, 703_284, "Tian et al. (2020), Contrastive Representation Distillation, benchmark"),
        ("resnet-32", 10, 464_154, "He et al. (2016), table 6, says 0.46 M; option A"),
        ("resnet-20", 10, 269_722, "He et al. (2016), table 6, says 0.27 M; option A"),
        ("resnet-110", 10, 1_727_962, "He et al. (2016), table 6, says 1.7 M; option A"),
        ("resnet-18", 1000, 11_689_512, "torchvision's documentation of resnet18"),
        ("resnet-34", 1000, 21_797_672, "torchvision's documentation of resnet34"),
        ("mobilenet-1", 1000, 4_231_976, "Howard et al. (2017), table 8, says 4.2 M"),
        ("mobilenet-0.5", 1000, 1_331_592, "Howard et al. (2017), table 6, says 1.3 M"),
    ],
)
def test_parameter_count(spec, classes, published, source):
    assert count(load(spec, classes).parameters()) == published, source


@pytest.mark.parametrize(
    ("spec", "published", "source"),
    [
        (
            "convnet-4",
            113_088,
            "Snell et al. (2017): four normalised 3x3 convolutions with bias, 64 channels",
        ),
        ("resnet-12", 12_424_320, "Lee et al. (2019) and Ye et al. (2020): 12.4 M below the head"),
    ],
)
def test_parameter_count_of_the_backbone(spec, published, source):
    assert count(load(spec, 5).backbone_parameters()) == published, source


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("wrn-16-2", 32),
        ("resnet-32", 32),
        ("resnet-18", 224),
        ("mobilenet-1", 224),
        ("convnet-4", 84),
        ("resnet-12", 84),
    ],
)
def test_default_size_is_the_published_one(spec, size):
    assert load(spec, 2).preprocess.size == size


@pytest.mark.parametrize(("spec", "side", "dim", "maps"), NATIVE, ids=IDS)
class TestContract:
    def test_shapes(self, spec, side, dim, maps):
        network = load(spec, 7, image_size=side).eval()
        pixels = torch.rand(2, 3, side, side)
        with torch.no_grad():
            features = network.features(pixels)
            embeddings, logits = network(pixels)
        assert network.spec == spec
        assert [tuple(map_.shape) for map_ in features] == [(2, c, s, s) for c, s in maps]
        assert network.dim == dim
        assert embeddings.shape == (2, dim)
        assert logits.shape == (2, 7)

    def test_forward_is_embed_then_classify(self, spec, side, dim, maps):
        network = load(spec, 3, image_size=side).eval()
        pixels = torch.rand(2, 3, side, side)
        with torch.no_grad():
            embeddings, logits = network(pixels)
            assert torch.equal(embeddings, network.embed(pixels))
            assert torch.equal(logits, network.classify(embeddings))
            assert torch.equal(embeddings, network.features(pixels)[-1].mean(dim=(2, 3)))

    def test_maps_and_embeddings_in_one_pass(self, spec, side, dim, maps):
        network = load(spec, 3, image_size=side).eval()
        pixels = torch.rand(2, 3, side, side)
        with torch.no_grad():
            features, embeddings = network.features_and_embedding(pixels)
            assert torch.equal(embeddings, network.embed(pixels))
            assert all(torch.equal(a, b) for a, b in zip(features, network.features(pixels)))

    def test_maps_before_their_activation(self, spec, side, dim, maps):
        """A wide ResNet's groups end before an activation that is the next group's; the others' with one."""
        network = load(spec, 3, image_size=side).eval()
        for layer in network.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                torch.nn.init.normal_(layer.bias)
        pixels = torch.rand(2, 3, side, side)
        with torch.no_grad():
            responses, embeddings = network.responses_and_embedding(pixels)
            features = network.features(pixels)
            assert torch.allclose(embeddings, network.embed(pixels), atol=1e-6)
        assert [response.shape for response in responses] == [feature.shape for feature in features]
        assert all(response.min() < 0 < response.max() for response in responses)
        ends_with_activation = slice(-1, None) if spec.startswith("wrn") else slice(None)
        for response, feature in list(zip(responses, features))[ends_with_activation]:
            assert torch.allclose(network.activation(response), feature, atol=1e-6)

    def test_both_kinds_of_maps_move_the_statistics_once(self, spec, side, dim, maps):
        pixels = torch.rand(2, 3, side, side)
        states = []
        for look in ("features", "responses_and_embedding"):
            torch.manual_seed(0)
            network = load(spec, 3, image_size=side)
            getattr(network, look)(pixels)
            states.append(network.state_dict())
        assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])

    def test_gradient_reaches_every_parameter(self, spec, side, dim, maps):
        network = load(spec, 3, image_size=side)
        assert network.training
        _, logits = network(torch.rand(4, 3, side, side))
        logits.square().sum().backward()
        dead = [
            name
            for name, parameter in network.named_parameters()
            if parameter.grad is None or not parameter.grad.abs().sum() > 0
        ]
        # A bias before batch normalisation has no effect, so its gradient is zero up to rounding.
        assert [name for name in dead if not (spec.startswith("convnet") and name.endswith("0.bias"))] == []

    def test_backbone_is_everything_but_the_head(self, spec, side, dim, maps):
        network = load(spec, 3, image_size=side)
        assert isinstance(network.head, nn.Linear)
        assert count(network.backbone_parameters()) == count(network.parameters()) - 3 * (dim + 1)
        network.head = nn.Linear(dim, 11)
        assert network(torch.rand(2, 3, side, side))[1].shape == (2, 11)

    def test_takes_one_channel(self, spec, side, dim, maps):
        network = load(spec, 3, image_size=side, channels=1).eval()
        with torch.no_grad():
            assert network.embed(torch.rand(2, 1, side, side)).shape == (2, dim)
        assert network.preprocess == Preprocess(side, (0.5,), (0.5,))

    def test_copy_is_independent(self, spec, side, dim, maps):
        network = load(spec, 3, image_size=side)
        other = copy.deepcopy(network)
        nn.init.zeros_(other.head.weight)
        assert network.head.weight.abs().sum() > 0
        assert other.classes == network.classes


@pytest.mark.parametrize(
    "spec",
    [
        "wrn-10-1",
        "resnet-8",
        "resnet-18",
        "resnet-12",
        "mobilenet-0.25",
        "convnet-1",
        "convnet-3",
        "convnet-6",
    ],
)
def test_digits_of_8_pixels(spec):
    network = load(spec, 10, image_size=8, channels=1).eval()
    with torch.no_grad():
        assert network(torch.rand(2, 1, 8, 8))[1].shape == (2, 10)


def test_pools_only_maps_larger_than_a_pixel():
    network = load("convnet-5", 2, image_size=8).eval()
    with torch.no_grad():
        assert [map_.shape[-1] for map_ in network.features(torch.rand(1, 3, 8, 8))] == [4, 2, 1, 1, 1]


@pytest.mark.parametrize(("size", "kernel", "stride"), [(64, 3, 1), (65, 7, 2), (224, 7, 2)])
def test_stem_of_resnet_18_depends_on_the_image_size(size, kernel, stride):
    stem = load("resnet-18", 2, image_size=size).stem
    assert stem[0].kernel_size == (kernel, kernel)
    assert stem[0].stride == (stride, stride)
    assert any(isinstance(layer, nn.MaxPool2d) for layer in stem) == (size > 64)


def test_shortcut_without_parameters_takes_every_second_pixel():
    block = load("resnet-8", 2).stages[1][0]
    maps = torch.rand(1, 16, 8, 8)
    beside = block.shortcut(maps)
    assert count(block.shortcut.parameters()) == 0
    assert torch.equal(beside[:, :16], maps[:, :, ::2, ::2])
    assert beside.shape == (1, 32, 4, 4)
    assert not beside[:, 16:].any()


@pytest.mark.parametrize(
    ("channels", "width", "rounded"),
    [(32, 1, 32), (32, 0.25, 8), (32, 0.01, 8), (64, 0.3, 16), (1024, 0.35, 360), (512, 1.4, 720)],
)
def test_widths_are_rounded_to_multiples_of_eight(channels, width, rounded):
    assert scaled(channels, width) == rounded


@pytest.mark.parametrize(
    ("spec", "plain"),
    [("mobilenet-1.0", "mobilenet-1"), ("mobilenet-0.350", "mobilenet-0.35"), ("mobilenet-2", "mobilenet-2")],
)
def test_a_width_has_one_spelling(spec, plain):
    with torch.device("meta"):
        assert load(spec, 2).spec == plain


def test_initialisation_counts_the_outputs_of_a_group():
    torch.manual_seed(0)
    plain, depthwise = nn.Conv2d(64, 64, 3), nn.Conv2d(512, 512, 3, groups=512)
    norm = nn.BatchNorm2d(4)
    nn.init.constant_(norm.weight, 3.0)
    initialise(nn.ModuleList([plain, depthwise, norm]))
    assert plain.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert depthwise.weight.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.05)
    assert not plain.bias.any()
    assert norm.weight.tolist() == [1.0] * 4


def test_dropout_of_a_wide_resnet_drops_only_in_training():
    network = WideResNet(10, 1, LabelSpace(["a", "b"]), Preprocess(16), dropout=0.5)
    pixels = torch.rand(2, 3, 16, 16)
    assert not torch.equal(network.embed(pixels), network.embed(pixels))
    network.eval()
    assert torch.equal(network.embed(pixels), network.embed(pixels))


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("wrn-15-2", "6n + 4"),
        ("wrn-16", "wrn-DEPTH-WIDTH"),
        ("wrn-16-0", "width"),
        ("wrn-4-2", "6n + 4"),
        ("resnet-33", "6n + 2"),
        ("resnet-2", "6n + 2"),
        ("resnet-x", "resnet-DEPTH"),
        ("resnet", "resnet-DEPTH"),
        ("mobilenet-0", "above 0"),
        ("mobilenet--1", "mobilenet-WIDTH"),
        ("mobilenet-inf", "mobilenet-WIDTH"),
        ("convnet-99", "1 to 6"),
        ("convnet-0", "1 to 6"),
        ("convnet-4.5", "convnet-BLOCKS"),
    ],
)
def test_a_malformed_name_is_refused_with_the_rule(spec, rule):
    with pytest.raises(UserError) as refused:
        load(spec, 2)
    assert rule in str(refused.value)
    assert spec in str(refused.value)
