import torch

from refilled.evaluation import silent_dimensions


def test_dimensions_that_are_the_same_for_all_images_are_counted():
    embeddings = torch.rand(6, 5)
    assert silent_dimensions(embeddings) == 0
    embeddings[:, 1], embeddings[:, 3] = 0.0, 0.7
    assert silent_dimensions(embeddings) == 2
    assert silent_dimensions(embeddings.bfloat16()) == 2
    assert silent_dimensions(1e-3 * embeddings) == 2  # whatever the scale
    embeddings[2, 1] = 1e-3
    assert silent_dimensions(embeddings) == 1


def test_without_differences_all_are_silent_and_without_images_none():
    assert silent_dimensions(torch.zeros(4, 3)) == 3
    assert silent_dimensions(torch.ones(1, 3)) == 3
    assert silent_dimensions(torch.zeros(0, 3)) == 0
