"""What `encode_masks` answers, in NumPy, and what the answer stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..paste_masks import reference
from .kernel import BITS, MAX_BYTES, default_capacity


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
    numbers = np.diff(changes, prepend=0, append=pixels)
    numbers[3:] -= numbers[1:-2].copy()
    shifted = numbers[:, None] >> (BITS * np.arange(MAX_BYTES))
    five = shifted & 31
    is_last = shifted >> BITS == np.where(five & 16, -1, 0)
    last = is_last.argmax(axis=1)[:, None]
    byte = np.arange(MAX_BYTES)
    return bytes((48 + five + np.where(byte < last, 32, 0)).astype("uint8")[byte <= last])


def decoded(rows: np.ndarray, image_size: Sequence[int], form: str = "rle") -> np.ndarray:
    """The images (N, height, width), uint8, that a result of `encode_masks` stands for.

    Those of masks that did not fit are zeros.
    """
    height, width = image_size
    if form == "bits":
        return np.unpackbits(rows, axis=2, count=width)
    result = np.zeros((len(rows), width, height), "uint8")
    for image, row in zip(result, rows):
        counts = counts_of_string(row[row != 0])
        counts = counts if len(counts) else np.array([height * width])
        values = np.arange(len(counts), dtype="uint8") & 1
        image[:] = np.repeat(values, counts).reshape(width, height)
    return result.transpose(0, 2, 1)


def counts_of_string(string: bytes | np.ndarray) -> np.ndarray:
    """The lengths of runs of zeros and ones in turn, from COCO's compressed form."""
    five = np.frombuffer(string, "uint8").astype("int64") - 48
    ends = np.flatnonzero(five & 32 == 0) + 1
    begins = np.append(0, ends)[:-1]
    if not len(ends):
        return ends
    shift = BITS * (np.arange(len(five)) - np.repeat(begins, ends - begins))
    counts = np.add.reduceat((five & 31) << shift, begins)
    counts -= ((five[ends - 1] & 16) << 1) << (BITS * (ends - begins - 1))  # the sign
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    return counts
