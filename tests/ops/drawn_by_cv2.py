"""Scenes drawn by OpenCV as l5kit draws them: the images that the rasterisers have to give."""

import cv2
import numpy as np

SUBPIXEL = {"lineType": cv2.LINE_AA, "shift": 9}


def corners_of(boxes):
    """Centre x and y, length, width and yaw, as l5kit computes the corners."""
    corners = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]]) * 0.5 * boxes[:, None, 2:4]
    sine, cosine = np.sin(boxes[:, 4]), np.cos(boxes[:, 4])
    turned = [product(corners, column) for column in ((cosine, -sine), (sine, cosine))]
    return np.stack(turned, -1) + boxes[:, None, :2]


def product(points, column):
    """`points @ column`, for one column or one for each first axis, each operation rounded by itself.

    NumPy's own is that of its BLAS, which on some processors rounds only once.
    """
    x, y = (np.reshape(of_axis, (-1,) + (1,) * (points.ndim - 2)) for of_axis in column)
    return points[..., 0] * x + points[..., 1] * y


def in_image(points, matrix):
    """To pixels, in 1/512 of one, truncated."""
    moved = np.stack([product(points, row[:2]) for row in matrix[:2]], -1) + matrix[:2, 2]
    return (moved * 512).astype("int64").astype("int32")


def boxes(boxes, layers, matrices, image_size):
    """One call of `fillPoly` for all boxes of a layer: (B, height, width, L), uint8."""
    images = np.zeros((len(matrices), layers.shape[1] - 1, *image_size), "uint8")
    corners = corners_of(boxes)
    for of_sample, bounds, matrix in zip(images, layers, matrices):
        for image, begin, end in zip(of_sample, bounds, bounds[1:]):
            cv2.fillPoly(
                image,
                in_image(corners[begin:end].reshape(-1, 2), matrix).reshape(-1, 4, 2),
                255,
                **SUBPIXEL,
            )
    return np.moveaxis(images, 1, 3)


def shapes(points, offsets, styles, matrices, image_size, palette, background):
    """Shape by shape, in the order of styles: (B, height, width, C), uint8."""
    images = np.empty((len(matrices), *image_size, len(background)), "uint8")
    images[:] = background
    for sample, (image, matrix) in enumerate(zip(images, matrices)):
        corners = in_image(points, matrix)
        of_shapes = [corners[begin:end] for begin, end in zip(offsets, offsets[1:])]
        for style, (color, kind) in enumerate(palette):
            drawn = (styles[sample] if styles.ndim == 2 else styles) == style
            for number in np.flatnonzero(drawn & (np.diff(offsets) > 0)):  # OpenCV takes no empty polygon
                if kind == "fill":
                    cv2.fillPoly(image, [of_shapes[number]], color, **SUBPIXEL)
                else:
                    cv2.polylines(image, [of_shapes[number]], False, color, **SUBPIXEL)
    return images
