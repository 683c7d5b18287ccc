"""Draw the detections of a network on the image.

found = detections_in(model(image))
draw_detections(image, found, labels).save("found.png")
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any, SupportsInt

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..batch.found import Found, detections_in

__all__ = ["at_least", "detections_in", "draw_detections", "label_name", "scaled"]

MIN_SCORE = 0.5
MASK_OPACITY = 0.45
Colour = tuple[int, int, int]

GOLDEN = 0.618034  # of the color wheel: consecutive classes get very different hues


def at_least(found: Found, score: float) -> Found:
    """The detections with at least this score, best first."""
    order = np.argsort(-found["scores"].astype("float32"), kind="stable")
    order = order[found["scores"][order] >= score]
    return {name: array[order] for name, array in found.items()}


def scaled(found: Found, factor: Sequence[float]) -> Found:
    """Detections of a resized image in pixels of the original: coordinates (x, y) multiplied by `factor`."""
    result = dict(found, boxes=found["boxes"] * np.tile(np.array(factor, "float32"), 2))
    if "keypoints" in found:
        result["keypoints"] = found["keypoints"] * np.array([*factor, 1], "float32")
    return result


def label_name(label: int, labels: Sequence[str] = ()) -> str:
    """The name of a class, or its number if it has no name."""
    return str(labels[label]) if 0 <= label < len(labels) else str(label)


def draw_detections(
    image: Image.Image, found: Found, labels: Sequence[str] = (), min_score: float = MIN_SCORE
) -> Image.Image:
    """A copy of a PIL image with masks, boxes, keypoints, and class names with scores.

    Masks are probabilities of shape (n, 1, height, width), as torchvision returns them: of the whole image,
    to which they are resized, or, if they are square and small, of the detection's box.
    """
    found = at_least(found, min_score)
    image = image.convert("RGB")
    for mask, box, label in reversed(list(zip(found.get("masks", ()), found["boxes"], found["labels"]))):
        image = _with_mask(image, mask[0], box, _colour(label))
    drawing = ImageDraw.Draw(image)
    thickness = max(1, round(min(image.size) / 250))
    font = _font(max(10, round(min(image.size) / 40)))
    for index in reversed(range(len(found["boxes"]))):
        box, label, score = (found[name][index] for name in ("boxes", "labels", "scores"))
        colour = _colour(label)
        left, top, right, bottom = _within(box, image.size)
        drawing.rectangle((left, top, right, bottom), outline=colour, width=thickness)
        text = f"{label_name(int(label), labels)} {score:.2f}"
        _, _, width, height = drawing.textbbox((0, 0), text, font=font)
        above = top - height - 2
        top = above if above >= 0 else top
        left = max(0, min(left, image.size[0] - width - 4))
        drawing.rectangle((left, top, left + width + 3, top + height + 2), fill=colour)
        drawing.text((left + 2, top), text, fill="white", font=font)
    for points, label in zip(found.get("keypoints", ()), found["labels"]):
        for x, y, is_seen in points:
            if is_seen > 0 and np.isfinite((x, y)).all():
                radius = 2 * thickness
                drawing.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_colour(label))
    return image


def _with_mask(image: Image.Image, mask: np.ndarray, box: np.ndarray, colour: Colour) -> Image.Image:
    left, top, right, bottom = _within(box, image.size)
    probability = Image.fromarray(np.nan_to_num(mask).astype("float32"))
    if (
        mask.shape[0] == mask.shape[1] and max(mask.shape) < min(image.size) // 2
    ):  # of the box, not pasted yet
        whole = Image.new("F", image.size)
        size = max(1, round(right - left)), max(1, round(bottom - top))
        whole.paste(probability.resize(size, Image.BILINEAR), (round(left), round(top)))
        probability = whole
    elif probability.size != image.size:
        probability = probability.resize(image.size, Image.BILINEAR)
    covered = np.asarray(probability) >= 0.5
    opacity = Image.fromarray((covered * (255 * MASK_OPACITY)).astype("uint8"))
    return Image.composite(Image.new("RGB", image.size, colour), image, opacity)


def _within(box: np.ndarray, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """A box with its corners sorted and clipped to the image; NaN becomes 0."""
    limits = np.tile(np.array(size, "float32"), 2) - 1
    left, top, right, bottom = np.clip(np.nan_to_num(box.astype("float32")), 0, limits).tolist()
    return left, top, max(left, right), max(top, bottom)


def _colour(label: SupportsInt) -> Colour:
    red, green, blue = colorsys.hls_to_rgb(int(label) * GOLDEN % 1, 0.42, 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)


def _font(size: int) -> Any:
    try:
        return ImageFont.load_default(size)
    except TypeError:  # Pillow before 10.1 has one size
        return ImageFont.load_default()
