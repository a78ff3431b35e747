"""What the tests of models share."""

import pytest
import torch


@pytest.fixture(scope="session")
def working_torchvision():
    """Let torchvision be imported, also beside a torch that its wheel was not built for.

    timm and transformers import it, but use none of its compiled operators. Beside a CPU-only torch its
    import fails for two operators that were not registered; their schemas are enough.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401

        yield library  # schemas live as long as the library that defined them
    else:
        yield None


@pytest.fixture
def images():
    """Four colour images of 32 pixels in 0..1."""
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
