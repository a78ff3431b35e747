"""Fixed views of a pool: the first is the image itself, the others are those of the augmentation."""

import pytest
import torch

from refilled.data.augment import show
from refilled.fewshot import Views, embed_pool

from .world import small_network

NAMES = ("none", "crop", "crop-flip", "resized-crop-flip")


@pytest.mark.parametrize("name", NAMES)
def test_first_view_is_the_image(pool, name):
    views = Views(pool, name, 3)
    rows = torch.tensor([[4, 9], [0, 4]])
    torch.testing.assert_close(views.show(rows, torch.zeros_like(rows)), views.plain(rows), atol=1e-6, rtol=0)
    torch.testing.assert_close(views.plain(rows)[1, 0], pool.images[0] / 255)


@pytest.mark.parametrize("name", NAMES)
def test_other_views(pool, name):
    views = Views(pool, name, 3, seed=5)
    again = Views(pool, name, 3, seed=5)
    assert views.count == 4
    assert torch.equal(views.shown, again.shown)
    shown = views.show(torch.tensor([2]), torch.tensor([3]))
    torch.testing.assert_close(shown, show(pool.images[2:3], name, views.shown[2:3, 3]))
    assert (name == "none") == torch.equal(views.shown, Views(pool, name, 3, seed=6).shown)


def test_embeddings_of_views(pool):
    network, views = small_network(), Views(pool, "crop-flip", 2)
    found = views.embed(network)
    assert found.shape == (len(pool), 3, 64)
    assert not found.requires_grad
    image = views.show(torch.tensor([5]), torch.tensor([2]))
    torch.testing.assert_close(found[5, 2], network.embed(image)[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(embed_pool(network, pool), found[:, 0], atol=1e-5, rtol=1e-5)
