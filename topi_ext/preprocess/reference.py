"""What `preprocess` answers, in NumPy: in float64, rounded once at the end."""

import numpy as np


def preprocess(
    image,
    size,
    padded_size=None,
    *,
    mean,
    std,
    swap_channels=False,
    image_layout="NHWC",
    layout="NCHW",
    dtype="float32",
):
    """The arguments and the result of `topi_ext.preprocess`, as arrays."""
    pictures = image.astype("float64")
    if image_layout == "NCHW":
        pictures = np.moveaxis(pictures, 1, 3)
    if swap_channels:
        pictures = pictures[..., ::-1]
    pictures = (_resized(_resized(pictures, 1, size[0]), 2, size[1]) - mean) / np.float64(std)
    height, width = padded_size or size
    sides = [(0, 0), (0, height - size[0]), (0, width - size[1]), (0, 0)]
    pictures = np.pad(pictures, sides)
    if layout == "NCHW":
        pictures = np.moveaxis(pictures, 3, 1)
    return np.ascontiguousarray(pictures.astype(dtype))


def _resized(pictures, axis, length):
    given = pictures.shape[axis]
    source = np.maximum((np.arange(length) + 0.5) * given / length - 0.5, 0)
    low = source.astype("int64")
    fraction = (source - low).reshape([-1 if at == axis else 1 for at in range(pictures.ndim)])
    below, above = (pictures.take(at, axis) for at in (low, np.minimum(low + 1, given - 1)))
    return below * (1 - fraction) + above * fraction
