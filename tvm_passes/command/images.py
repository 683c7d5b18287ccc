"""Image files, and the image inputs and outputs of networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..batch.decode import open_upright
from ..batch.errors import BadImage
from ..batch.image_input import ImageInput
from .errors import CommandError, writing

__all__ = ["ImageInput", "check_is_image", "image_of", "read_image", "write_image"]


def read_image(path: str | Path) -> Image.Image:
    """Read an image file as RGB, turned upright."""
    if Path(path).exists() and not Path(path).is_file():  # to open a pipe may wait for ever
        raise CommandError(f"cannot read an image from {path}, which is not a file: give one")
    try:
        return open_upright(path)
    except FileNotFoundError:
        raise CommandError(f"there is no image {path}") from None
    except BadImage as reason:
        raise CommandError(f"cannot read an image from {path}: it {reason}") from reason
    except OSError as error:
        raise CommandError(f"cannot read an image from {path}: {error}") from error


def check_is_image(path: str | Path, also: Sequence[str] = ()) -> None:
    """Check this before anything that takes time: a name says the format."""
    suffix = Path(path).suffix.lower()
    if suffix not in also and Image.registered_extensions().get(suffix) not in Image.SAVE:
        names = " or ".join(f"out{each}" for each in (".png", *also))
        raise CommandError(f"cannot write {path}, which names no format of images: give such as {names}")


def write_image(image: Image.Image, path: str | Path) -> None:
    """Write an image file; its name says the format."""
    with writing(path):
        try:
            image.save(path)
        except (ValueError, OSError) as error:
            if getattr(error, "errno", None):  # of the disk, else of the format
                raise
            raise CommandError(f"cannot write {path} ({error}): give a name such as out.png") from error


def image_of(output: Any, original: Image.Image) -> Image.Image | None:
    """The output of a network as an image; None if it is not one.

    A single channel is taken as luminance, and combined with the colors of the original.
    """
    output = np.asarray(output)
    if output.ndim not in (3, 4) or output.dtype.kind != "f" or output.shape[-3] not in (1, 3):
        return None
    if output.ndim == 4 and output.shape[0] != 1:
        return None
    values = np.nan_to_num(output.reshape(output.shape[-3:]).astype("float32"))
    pixels = (values.clip(0, 1) * 255 + 0.5).astype("uint8")
    if len(pixels) == 3:
        return Image.fromarray(pixels.transpose(1, 2, 0))
    size = pixels.shape[2], pixels.shape[1]
    _, blue, red = original.convert("YCbCr").split()
    colours = [channel.resize(size, Image.BICUBIC) for channel in (blue, red)]
    return Image.merge("YCbCr", [Image.fromarray(pixels[0]), *colours]).convert("RGB")
