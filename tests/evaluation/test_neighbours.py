"""Nearest class mean and nearest neighbour against scikit-learn and slow loops, on l2-normalised rows."""

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.preprocessing import normalize
from torch.nn import functional as F

from refilled.evaluation import nearest_class_mean, nearest_neighbour


def embeddings(seed, train=80, test=150, dim=6, classes=5, offset=0.0, spread=1.0):
    """Training and test embeddings of loose clusters of very different lengths, and training labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator, dtype=torch.float64)

    def rows(labels):
        noise = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
        length = 0.1 + 10 * torch.rand(len(labels), 1, generator=generator, dtype=torch.float64)
        return (length * (offset + spread * (centres[labels] + 0.6 * noise))).float()

    labels = torch.cat(
        [torch.arange(classes), torch.randint(0, classes, (train - classes,), generator=generator)]
    )
    return rows(labels), labels, rows(torch.randint(0, classes, (test,), generator=generator))


def loop_ncm(train, labels, test, num_classes):
    """One image and one class at a time, in float64."""
    train, test = (F.normalize(x.double(), dim=1) for x in (train, test))
    centres = {c: train[labels == c].mean(0) for c in range(num_classes) if (labels == c).any()}
    return [min(centres, key=lambda c: ((row - centres[c]) ** 2).sum().item()) for row in test]


def loop_1nn(train, labels, test):
    train, test = (F.normalize(x.double(), dim=1) for x in (train, test))
    return [labels[((train - row) ** 2).sum(1).argmin()].item() for row in test]


# --- nearest class mean -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_ncm_equals_scikit_learn_and_the_loop(seed):
    train, labels, test = embeddings(seed)
    model = NearestCentroid().fit(normalize(train.double().numpy()), labels.numpy())
    expected = model.predict(normalize(test.double().numpy())).tolist()
    found = nearest_class_mean(train, labels, test, 5)
    assert found.dtype == torch.int64
    assert found.tolist() == expected == loop_ncm(train, labels, test, 5)


def test_ncm_never_predicts_a_class_without_training_images():
    train, labels, test = embeddings(7, classes=4)
    labels = torch.tensor([0, 2, 5, 6])[labels]
    found = nearest_class_mean(train, labels, test, 9)
    assert found.tolist() == loop_ncm(train, labels, test, 9)
    assert set(found.tolist()) <= {0, 2, 5, 6}
    # The absent class's centre, 0, is nearest of all to images that look like no class there is.
    lone = nearest_class_mean(torch.tensor([[1.0, 0.0]]), torch.tensor([2]), torch.tensor([[-1.0, 0.0]]), 4)
    assert lone.tolist() == [2]


def test_ncm_tie_goes_to_the_lower_class():
    train = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    labels = torch.tensor([2, 1, 0])
    assert nearest_class_mean(train, labels, torch.tensor([[5.0, 0.0], [1.0, 1.0]]), 3).tolist() == [0, 0]


def test_ncm_takes_means_of_directions_not_of_lengths():
    """One long embedding does not pull its class's centre along."""
    train = torch.tensor([[100.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 0, 1])
    # Class 0 is (1/3, 2/3), class 1 (-1, 0).
    assert nearest_class_mean(train, labels, torch.tensor([[-0.5, 1.0]]), 2).tolist() == [0]
    assert nearest_class_mean(train, labels, torch.tensor([[-1.0, 0.3]]), 2).tolist() == [1]


def test_ncm_centres_are_not_normalised_again():
    """A scattered class has a short centre: plain Euclidean distance, as in scikit-learn."""
    train = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
    labels = torch.tensor([0, 0, 0, 1])
    test = torch.tensor([[1.0, 1.04]])  # by direction alone it is nearer to class 0
    expected = NearestCentroid().fit(train.numpy(), labels.numpy()).predict(normalize(test.numpy()))
    assert nearest_class_mean(train, labels, test, 2).tolist() == expected.tolist() == [1]


# --- nearest neighbour --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_1nn_equals_scikit_learn_and_the_loop(seed):
    train, labels, test = embeddings(seed)
    model = KNeighborsClassifier(1, algorithm="brute").fit(normalize(train.double().numpy()), labels.numpy())
    expected = model.predict(normalize(test.double().numpy())).tolist()
    found = nearest_neighbour(train, labels, test)
    assert found.dtype == torch.int64
    assert found.tolist() == expected == loop_1nn(train, labels, test)


@pytest.mark.parametrize("chunk", [1, 2, 7, 149, 150, 151, 10_000])
def test_chunks_change_nothing(chunk):
    train, labels, test = embeddings(3)
    assert torch.equal(
        nearest_neighbour(train, labels, test, chunk=chunk), nearest_neighbour(train, labels, test)
    )


def test_1nn_tie_goes_to_the_first_training_image():
    train = torch.tensor([[0.0, 2.0], [1.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([3, 2, 1, 0])
    assert nearest_neighbour(train, labels, torch.tensor([[7.0, 0.0], [0.0, 7.0]])).tolist() == [2, 3]


def test_1nn_finds_the_training_images_themselves():
    train, labels, _ = embeddings(5)
    assert torch.equal(nearest_neighbour(train, labels, train), labels)


def test_1nn_ignores_lengths():
    train = torch.tensor([[10.0, 1.0], [0.1, 0.1]])
    labels = torch.tensor([0, 1])
    assert nearest_neighbour(train, labels, torch.tensor([[9.0, 7.0], [0.01, 0.0]])).tolist() == [1, 0]


# --- both ---------------------------------------------------------------------------------------------


def test_no_test_images():
    train, labels, _ = embeddings(0)
    none = torch.zeros(0, 6)
    assert nearest_class_mean(train, labels, none, 5).shape == (0,)
    assert nearest_neighbour(train, labels, none).shape == (0,)
    assert nearest_neighbour(train, labels, none).dtype == torch.int64


def test_one_training_image():
    train, labels, test = embeddings(1)
    assert set(nearest_class_mean(train[:1], labels[:1] + 3, test, 5).tolist()) == {3}
    assert set(nearest_neighbour(train[:1], labels[:1] + 3, test).tolist()) == {3}


def test_zero_embeddings_are_no_error():
    train, labels, test = embeddings(2)
    test[:3], train[:2] = 0.0, 0.0
    for found in (nearest_class_mean(train, labels, test, 5), nearest_neighbour(train, labels, test)):
        assert found.shape == (len(test),)
        assert found.min() >= 0
        assert found.max() < 5


def test_half_precision_embeddings():
    train, labels, test = (x.to(torch.bfloat16) if x.is_floating_point() else x for x in embeddings(4))
    assert nearest_neighbour(train, labels, test).tolist() == loop_1nn(train, labels, test)
    assert nearest_class_mean(train, labels, test, 5).tolist() == loop_ncm(train, labels, test, 5)


@pytest.mark.parametrize("offset", [10.0, 100.0])
def test_narrow_cones(offset):
    """Embeddings that all point almost the same way, as those of an untrained or collapsed network do."""
    train, labels, test = embeddings(6, offset=offset)
    ncm = nearest_class_mean(train, labels, test, 5)
    nearest = nearest_neighbour(train, labels, test)
    assert (ncm == torch.tensor(loop_ncm(train, labels, test, 5))).double().mean() > 0.98
    assert (nearest == torch.tensor(loop_1nn(train, labels, test))).double().mean() > 0.98
