"""scikit-learn's handwritten digits: 1,797 gray images of 8 x 8, there without a download."""

import numpy as np
import torch

from refilled.data.images import ImageSet, Splits
from refilled.data.pixels import TensorPixels
from refilled.data.splits import describe_parts, three_parts
from refilled.labels import LabelSpace

TEST_FRACTION = 0.2


def read_digits(*, split_seed: int = 0, val_fraction: float = 0.1) -> Splits:
    """The digits "0" to "9" as uint8 [N, 1, 8, 8]; 20 % of each class are the test part.

    Args:
        split_seed: which images are test and validation.
        val_fraction: share of each class for validation; 0 for none.
    """
    from sklearn.datasets import load_digits  # here: the library must import without scikit-learn

    bunch = load_digits()
    gray = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # their values are 0 to 16
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    whole = ImageSet(TensorPixels(torch.from_numpy(gray)[:, None]), labels, LabelSpace(map(str, range(10))))
    train, val, test = three_parts(labels, val_fraction, TEST_FRACTION, split_seed)
    return Splits(
        name="digits",
        train=whole.select(train),
        val=whole.select(val),
        test=whole.select(test),
        image_size=8,
        channels=1,
        augment="crop",
        note=f"digits has no parts of its own: {describe_parts(val_fraction, TEST_FRACTION, split_seed)}",
    )
