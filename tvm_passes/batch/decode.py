"""Encoded images to upright RGB pixels; whatever is wrong with an image is a `BadImage` with the reason."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from .errors import BadImage

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # some others of Pillow's run another program
SUFFIXES = frozenset(  # of these and of other photographs, which are not to be left out in silence
    (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
    + (".avif", ".heic", ".heif", ".jp2", ".jxl")
)
MAX_PIXELS = 2**30 // 12  # Pillow's own limit: 89 million
ORIENTATION = 0x0112  # a tag of EXIF
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


END_OF_JPEG = b"\xff\xd9"  # by which a truncated one does not end, as a rule


def decode(data: bytes, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The pixels of an encoded image, upright: uint8 (height, width, 3)."""
    if not data:
        raise BadImage("is empty")
    pixels = _of_plain_jpeg(data, max_pixels)
    return np.array(open_upright(io.BytesIO(data), max_pixels)) if pixels is None else pixels


def _of_plain_jpeg(data: bytes, max_pixels: int) -> np.ndarray | None:
    """The same by torchvision, for a whole JPEG in color, neither turned nor progressive; None for others.

    It has the same decoder as Pillow, and gives the same pixels; but there other threads of Python go on
    meanwhile, where Pillow keeps them waiting for half of the time.
    """
    if not data.endswith(END_OF_JPEG):
        return None
    # Not above: this import takes over a second, and most that import this file decode nothing. Not below:
    # a torchvision that does not fit this torch, which fails there, is no damage of the image.
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            width, height = image.size
            is_plain = image.mode == "RGB" and image.getexif().get(ORIENTATION, 1) == 1
            is_plain = is_plain and "progressive" not in image.info  # of damaged ones they differ
            if not is_plain or width * height > max_pixels:
                return None
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return decode_jpeg(encoded, mode=ImageReadMode.RGB).numpy().transpose(1, 2, 0)
    except Exception:  # whose reason Pillow knows
        return None


def open_upright(file: Any, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """An image file, or its path, as an RGB image, turned as its EXIF orientation says.

    Of several frames or pages it is the first one. Transparency is dropped, as torchvision does. 16 bits are
    reduced to the upper 8, as Pillow does for colors.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise BadImage(f"has {width}x{height} pixels, more than the {max_pixels} that are allowed")
            image.load()
            return _in_rgb(_turned(image))
    except UnidentifiedImageError:
        raise BadImage(f"is no image of a known format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError as error:
        raise BadImage(f"is too large: {error}") from error
    except (BadImage, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except MemoryError:
        raise BadImage("is too large for the memory that is left") from None
    except Exception as error:  # decoders raise many types
        raise BadImage(f"is truncated or damaged: {error}") from error


def _turned(image: Image.Image) -> Image.Image:
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION))
    except Exception:  # the pixels are whole even where EXIF is not
        turn = None
    return image if turn is None else image.transpose(turn)


def _in_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise BadImage("has floats as pixels, whose range is not known")
    if image.mode.startswith("I"):  # 16 bits, some of which Pillow gives as 32; its own conversion clips them
        values = np.asarray(image).astype("int64")
        if values.min() < 0 or values.max() > 0xFFFF:
            raise BadImage("has pixels of 32 bits, whose range is not known")
        image = Image.fromarray((values >> 8).astype("uint8"))
    return image.convert("RGB")
