"""scikit-learn's handwritten digits: 1,797 real images of 8x8 pixels that need no download."""

import numpy as np

from evclplus.benchmarks.holdout import Sides, sides


def digits(validation_fraction: float, holdout_seed: int) -> Sides:
    """The digits as bytes 0..16 in one channel, a fifth of them held out as the test side."""
    # Imported here: scikit-learn is slow to import and only this dataset needs it.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = images.astype(np.uint8).reshape(-1, 1, 8, 8)
    made = sides(
        (pixels, labels.astype(np.int64)),
        test=None,
        validation=None,
        test_fraction=0.2,
        validation_fraction=validation_fraction,
        seed=holdout_seed,
        what="digits",
    )
    return Sides(made.train, made.validation, made.test, largest=16.0)
