"""What the tests of models share."""

import pytest
import torch


@pytest.fixture
def images():
    """Four colour images of 32 pixels in 0..1."""
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
