"""What the rasterisers answer, in NumPy: shape by shape and line by line, in integers as OpenCV draws.

Places are integers, 1/65536 of a pixel each. A line goes step by step along the axis on which it is longer,
and blends three pixels across at each step. Both tables are OpenCV's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._integer_division import toward_zero

ONE = 1 << 16
HALF = ONE >> 1
SUBPIXELS = 512  # of a pixel, to which corners are truncated
MAX_COORDINATE = 16383  # pixels from the origin of an image; a corner beyond is moved there
MAX_YAW = 1e6  # radians; a box turned further is not drawn
CORNERS = ((-1, -1), (-1, 1), (1, 1), (1, -1))  # of a box, along and aside
LENGTHENING = (  # of the profile of a line, by its slope: 256 for a diagonal
    *(181, 181, 181, 182, 182, 183, 184, 185, 187, 188, 190, 192, 194, 196, 198, 201),
    *(203, 206, 209, 211, 214, 218, 221, 224, 227, 231, 235, 238, 242, 246, 250, 254),
)
PROFILE = (  # of a line, by the distance to its centre
    *(168, 177, 185, 194, 202, 210, 218, 224, 231, 236, 241, 246, 249, 252, 254, 254),
    *(254, 254, 252, 249, 246, 241, 236, 231, 224, 218, 210, 202, 194, 185, 177, 168),
    *(158, 149, 140, 131, 122, 114, 105, 97, 89, 82, 75, 68, 62, 56, 50, 45),
    *(40, 36, 32, 28, 25, 22, 19, 16, 14, 12, 11, 9, 8, 7, 5, 5),
)


# --- the operators


def rasterize_boxes(
    boxes: np.ndarray, layers: np.ndarray, matrices: np.ndarray, image_size: Sequence[int], **options: Any
) -> np.ndarray:
    """The arguments and the result of `topi_ext.rasterize_boxes`, as arrays."""
    offsets = np.arange(0, 4 * len(boxes) + 1, 4)
    return rasterize_polygons(
        box_corners(boxes).reshape(-1, 2), offsets, layers, matrices, image_size, **options
    )


def rasterize_polygons(
    points: np.ndarray,
    offsets: np.ndarray,
    layers: np.ndarray,
    matrices: np.ndarray,
    image_size: Sequence[int],
    *,
    mode: str = "union",
    **options: Any,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.rasterize_polygons`, as arrays."""
    together = mode == "parity"

    def draw(image: np.ndarray, contours: list[np.ndarray]) -> None:
        for figure in [contours] if together else [[contour] for contour in contours]:
            fill_polygon(image, figure, (255,))

    return _masks(draw, points, offsets, layers, matrices, image_size, **options)


def rasterize_polylines(
    points: np.ndarray,
    offsets: np.ndarray,
    layers: np.ndarray,
    matrices: np.ndarray,
    image_size: Sequence[int],
    **options: Any,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.rasterize_polylines`, as arrays."""

    def draw(image: np.ndarray, contours: list[np.ndarray]) -> None:
        for contour in contours:
            draw_polyline(image, contour, (255,))

    return _masks(draw, points, offsets, layers, matrices, image_size, **options)


def rasterize_map(
    points: np.ndarray,
    offsets: np.ndarray,
    styles: np.ndarray,
    matrices: np.ndarray,
    image_size: Sequence[int],
    *,
    palette: Sequence[tuple[Sequence[int], str]],
    background: Sequence[int] = (255, 255, 255),
    **options: Any,
) -> np.ndarray:
    """The arguments and the result of `topi_ext.rasterize_map`, as arrays."""
    images = np.empty((len(matrices), *image_size, len(background)), "uint8")
    images[:] = background
    for sample, (image, matrix) in enumerate(zip(images, matrices)):
        contours = contours_in_image(points, offsets, matrix)
        own = styles[sample] if styles.ndim == 2 else styles
        for style, (color, kind) in enumerate(palette):
            for contour in (contours[i] for i in np.flatnonzero(own == style)):
                if kind == "fill":
                    fill_polygon(image, [contour], color)
                else:
                    draw_polyline(image, contour, color)
    return _finished(images, **options)


def _masks(
    draw: Callable[[np.ndarray, list[np.ndarray]], None],
    points: np.ndarray,
    offsets: np.ndarray,
    layers: np.ndarray,
    matrices: np.ndarray,
    image_size: Sequence[int],
    **options: Any,
) -> np.ndarray:
    count = layers.shape[1] - 1
    images = np.zeros((len(matrices), count, *image_size, 1), "uint8")
    for sample, matrix in enumerate(matrices):
        contours = contours_in_image(points, offsets, matrix)
        begins = np.clip(layers[sample], 0, len(contours))
        for layer in range(count):
            draw(images[sample, layer], contours[begins[layer] : begins[layer + 1]])
    return _finished(np.moveaxis(images[..., 0], 1, -1), **options)


def _finished(images: np.ndarray, layout: str = "NHWC", dtype: str = "float32") -> np.ndarray:
    images = images if dtype == "uint8" else images.astype("float32") / np.float32(255)
    return np.ascontiguousarray(images if layout == "NHWC" else np.moveaxis(images, -1, 1))


# --- where things are


def box_corners(boxes: np.ndarray) -> np.ndarray:
    """The four corners of boxes of centre x and y, length, width, and yaw or its cosine and sine."""
    x, y, length, width, *turn = boxes.astype("float64").T
    with np.errstate(invalid="ignore", over="ignore"):
        if len(turn) == 1:
            yaw = np.where(np.abs(turn[0]) <= MAX_YAW, turn[0], np.nan)
            turn = [np.cos(yaw), np.sin(yaw)]
        cosine, sine = turn
        along, aside = length / 2 * np.array([cosine, sine]), width / 2 * np.array([-sine, cosine])
        places = np.stack([np.array([x, y]) + i * along + j * aside for i, j in CORNERS])
    return places.transpose(2, 0, 1)


def contours_in_image(points: np.ndarray, offsets: np.ndarray, matrix: np.ndarray) -> list[np.ndarray]:
    """Each contour's corners, truncated as l5kit does; none of one with a corner that is not finite."""
    points, matrix = points.astype("float64"), matrix.astype("float64")
    with np.errstate(over="ignore", invalid="ignore"):
        # Not a matrix product: its last bits would depend on the machine.
        places = points[:, :1] * matrix[:2, 0] + points[:, 1:] * matrix[:2, 1] + matrix[:2, 2]
    finite = np.isfinite(places).all(axis=1)
    places = np.clip(np.where(finite[:, None], places, 0), -MAX_COORDINATE, MAX_COORDINATE) * SUBPIXELS
    places = np.trunc(places).astype("int64")
    bounds = np.clip(offsets, 0, len(points)).tolist()
    spans = [slice(begin, end) for begin, end in zip(bounds, bounds[1:])]
    return [places[span] if finite[span].all() else places[:0] for span in spans]


# --- polygons


def fill_polygon(image: np.ndarray, contours: Sequence[np.ndarray], color: Sequence[int]) -> None:
    """`cv2.fillPoly` with these corners, LINE_AA: outlines on whole rows, then what is inside."""
    contours = [np.stack([c[:, 0] * (ONE // SUBPIXELS), c[:, 1] + SUBPIXELS // 2 >> 9], 1) for c in contours]
    for corners in contours:
        for p, q in zip(np.roll(corners, 1, axis=0), corners):
            draw_line(image, p * [1, ONE], q * [1, ONE], color)
    image[inside(contours, image.shape[:2])] = color


def inside(contours: Sequence[np.ndarray], image_size: Sequence[int]) -> np.ndarray:
    """The pixels that lie on, or between, an odd and the next even crossing of their row."""
    height, width = image_size
    crossings, on_edge = np.zeros((height, width + 1), "int64"), np.zeros((height, width), bool)
    for corners in contours:
        for (x0, y0), (x1, y1) in zip(np.roll(corners, 1, axis=0).tolist(), corners.tolist()):
            if y0 != y1:
                slope = toward_zero(x1 - x0, y1 - y0)
                x, top, bottom = (x0, y0, y1) if y0 < y1 else (x1, y1, y0)
                rows = np.arange(max(top, 0), min(bottom, height))
                at = x + (rows - top) * slope
                np.add.at(crossings, (rows, np.clip((at >> 16) + 1, 0, width)), 1)
                exact = (at % ONE == 0) & (at >= 0) & (at >> 16 < width)
                on_edge[rows[exact], at[exact] >> 16] = True
    return (crossings.cumsum(axis=1)[:, :width] % 2 == 1) | on_edge


# --- lines


def draw_polyline(image: np.ndarray, corners: np.ndarray, color: Sequence[int]) -> None:
    """`cv2.polylines` with these corners, open, LINE_AA."""
    corners = corners * (ONE // SUBPIXELS)
    for p, q in zip(corners, corners[1:]):
        draw_line(image, p, q, color)


def draw_line(image: np.ndarray, p: np.ndarray, q: np.ndarray, color: Sequence[int]) -> None:
    """A line between two places, one pixel wide, blended into the image."""
    height, width, _ = image.shape
    clipped = clip_line([*p.tolist(), *q.tolist()], width * ONE - 1, height * ONE - 1)
    if clipped is None:
        return
    x1, y1, x2, y2 = clipped
    flat = abs(x2 - x1) > abs(y2 - y1)
    # along the line and across it
    u1, v1, u2, v2 = (x1, y1, x2, y2) if flat else (y1, x1, y2, x2)
    if u2 < u1:
        u1, v1, u2, v2 = u2, v2, u1, v1
    step = toward_zero(v2 - v1 << 16, u2 - u1 | 1)
    u2 += ONE
    last = (u2 >> 16) - (u1 >> 16)
    k = np.arange(last + 1)
    at = v1 + (-(u1 % ONE) * step >> 16) + HALF + k * step
    distance = at >> 11 & 31
    profile = np.array(PROFILE)[np.stack([distance + 32, distance, 63 - distance], 1)]
    alpha = (_strength(u1, u2, step, k, last)[:, None] * profile >> 8) & 0xFF
    u, v = np.broadcast_arrays(((u1 >> 16) + k)[:, None], (at >> 16)[:, None] + [-1, 0, 1])
    rows, columns = (v, u) if flat else (u, v)
    seen = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    rows, columns, alpha = rows[seen], columns[seen], alpha[seen][:, None]
    for _ in range(2):  # OpenCV blends each pixel twice
        before = image[rows, columns].astype("int64")
        image[rows, columns] = before + ((color - before) * alpha + 127 >> 8)


def _strength(u1: int, u2: int, step: int, k: np.ndarray, last: int) -> np.ndarray:
    """How strong the line is at each of its steps: less at both ends, by how much of a pixel they cover."""
    slope = step >> 11 & 63
    slope = slope ^ 63 if step < 0 else slope
    full = 256 if slope & 32 else LENGTHENING[slope]
    i, j = (u1 >> 9) & 0x78, (u2 >> 9) & 0x78
    head, tail, both = (0x78 - i | 4) * full, (j | 4) * full, j - i
    # by the number of steps before and after, up to 2
    table = [
        [0, (both & 0x78 | 4) * full, head],
        [(both & 0x78 | 4) * full, (both + 0x80 | 4) * full, head + full * 128],
        [tail, tail + full * 128, full << 8],
    ]
    return (np.array(table) >> 8 & 0x1FF)[np.minimum(k, 2), np.minimum(last - k, 2)]


def clip_line(ends: Sequence[int], right: int, bottom: int) -> tuple[int, int, int, int] | None:
    """The part of a line in the image, as OpenCV rounds it; None where there is none."""
    x1, y1, x2, y2 = ends

    def beyond_sides(x: int) -> int:
        return (x < 0) + 2 * (x > right)

    def beyond(x: int, y: int) -> int:
        return beyond_sides(x) + 4 * (y < 0) + 8 * (y > bottom)

    first, second = beyond(x1, y1), beyond(x2, y2)
    if first & second == 0 and first | second:
        if first & 12:
            edge = 0 if first < 8 else bottom
            x1, y1 = x1 + toward_zero((edge - y1) * (x2 - x1), y2 - y1), edge
            first = beyond_sides(x1)
        if second & 12:
            edge = 0 if second < 8 else bottom
            x2, y2 = x2 + toward_zero((edge - y2) * (x2 - x1), y2 - y1), edge
            second = beyond_sides(x2)
        if first & second == 0 and first | second:
            if first:
                edge = 0 if first == 1 else right
                x1, y1 = edge, y1 + toward_zero((edge - x1) * (y2 - y1), x2 - x1)
                first = 0
            if second:
                edge = 0 if second == 1 else right
                x2, y2 = edge, y2 + toward_zero((edge - x2) * (y2 - y1), x2 - x1)
                second = 0
    return None if first | second else (x1, y1, x2, y2)
