"""Photographs to decode, without a camera."""

import io

import numpy as np
from PIL import Image


def photos(number, height, width):
    """JPEGs of smooth noise, as large as photographs of this size are."""
    rng = np.random.default_rng(0)
    for _ in range(number):
        coarse = Image.fromarray(rng.integers(0, 255, (height // 8, width // 8, 3), dtype="uint8"))
        file = io.BytesIO()
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        yield file.getvalue()
