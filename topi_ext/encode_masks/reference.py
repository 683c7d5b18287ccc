"""What `encode_masks` answers, in NumPy, and what the answer stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..paste_masks import reference
from .kernel import default_capacity


def encode_masks(
    masks: np.ndarray,
    boxes: np.ndarray,
    image_size: Sequence[int],
    *,
    threshold: float = 0.5,
    form: str = "rle",
    capacity: int | None = None,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.encode_masks`, as arrays."""
    images = reference.paste_masks(masks, boxes, image_size, threshold=threshold)[:, 0]
    return encoded(images, form, capacity)


def encoded(images: np.ndarray, form: str = "rle", capacity: int | None = None) -> np.ndarray:
    """Images (N, height, width) of 0 and 1 in a form of `encode_masks`."""
    if form == "bits":
        return np.packbits(images, axis=2)
    capacity = default_capacity(images.shape[2]) if capacity is None else capacity
    result = np.zeros((len(images), capacity), "uint8")
    for row, image in zip(result, images):
        string = _string(image)
        if len(string) <= capacity:
            row[: len(string)] = list(string)
    return result


def _string(image: np.ndarray) -> bytes:
    """COCO's compressed run lengths of one image."""
    pixels = image.ravel(order="F")
    return string_of_changes(np.flatnonzero(np.diff(pixels, prepend=0)), pixels.size)


def string_of_changes(changes: np.ndarray, pixels: int) -> bytes:
    """COCO's compressed run lengths: of how many pixels, and which of them differ from the one before."""
    counts = np.diff(changes, prepend=0, append=pixels).tolist()
    result = bytearray()
    for index, count in enumerate(counts):
        number = count - counts[index - 2] if index > 2 else count
        while True:
            five, number = number & 31, number >> 5
            is_last = number == (-1 if five & 16 else 0)
            result.append(48 + five + (0 if is_last else 32))
            if is_last:
                break
    return bytes(result)


def decoded(rows: np.ndarray, image_size: Sequence[int], form: str = "rle") -> np.ndarray:
    """The images (N, height, width), uint8, that a result of `encode_masks` stands for.

    Those of masks that did not fit are zeros.
    """
    height, width = image_size
    if form == "bits":
        return np.unpackbits(rows, axis=2, count=width)
    result = np.zeros((len(rows), width, height), "uint8")
    for image, row in zip(result, rows):
        counts = counts_of_string(row[row != 0].tolist()) or [height * width]
        values = np.arange(len(counts), dtype="uint8") & 1
        image[:] = np.repeat(values, counts).reshape(width, height)
    return result.transpose(0, 2, 1)


def counts_of_string(string: Iterable[int]) -> list[int]:
    """The lengths of runs of zeros and ones in turn, from COCO's compressed form."""
    counts: list[int] = []
    number = shift = 0
    for byte in string:
        five, more = (byte - 48) & 31, (byte - 48) & 32
        number |= five << shift
        shift += 5
        if not more:
            number -= (five & 16) << (shift - 4)  # its sign
            counts.append(number + counts[-2] if len(counts) > 2 else number)
            number = shift = 0
    return counts
