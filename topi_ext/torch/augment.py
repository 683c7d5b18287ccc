"""Random affine maps of training data: images, and the boxes, label masks and points that go with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Union

import torch
from torch import nn

from .functions import warp_affine

Targets = Union[torch.Tensor, Sequence[torch.Tensor]]  # a tensor for all images, or one for each


class AffineWarp(nn.Module):
    """Warps images, boxes, label masks and points by the same matrices, one per image.

    Parameters
    ----------
    out_size : (int, int), optional
        Height and width of the results, by default those of the images.
    layout, mode
        As for `warp_affine`.
    interpolation, border_mode, border_value
        As for `warp_affine`, for the images.
    out_dtype : torch.dtype, optional
        The type of the resulting images: a float type.
    mask_value : int
        The value of masks outside the original image.

    It is called with images (N, C, H, W) or (N, H, W, C), matrices (N, 2, 3) that map their pixels to those
    of the result, and any of

    - boxes, (N, K, 4), or N tensors (K, 4): x1, y1, x2, y2. A warped box is the bounding box of its warped
      corners, clipped to the image. None is dropped: one that leaves the image has no area, and is for the
      caller to drop with its label;
    - masks, (N, H, W), or of the images' layout, of an integer type or bool: warped by the nearest pixel;
    - points, (N, K, 2), or N tensors (K, 2): x and y, also outside the image.

    It returns the images alone, or a tuple of the images and each of these that was given, in this order.

    Matrices have (0, 0) at the center of the first pixel, as in `warp_affine`. Boxes and points have it at
    the corner of the image, as in detection, where the box of the first pixel is 0, 0, 1, 1.
    """

    def __init__(
        self,
        out_size: tuple[int, int] | None = None,
        *,
        layout: str = "NCHW",
        mode: str = "exact",
        interpolation: str = "bilinear",
        border_mode: str = "constant",
        border_value: float | Sequence[float] = 0,
        out_dtype: torch.dtype | None = None,
        mask_value: int = 0,
    ) -> None:
        super().__init__()
        self.out_size, self.layout, self.mask_value = out_size, layout, mask_value
        self._options: dict[str, Any] = {
            "layout": layout,
            "mode": mode,
            "interpolation": interpolation,
            "border_mode": border_mode,
            "border_value": border_value,
            "out_dtype": out_dtype and str(out_dtype).replace("torch.", ""),
        }

    def forward(
        self,
        images: torch.Tensor,
        matrices: torch.Tensor,
        boxes: Targets | None = None,
        masks: torch.Tensor | None = None,
        points: Targets | None = None,
    ) -> Targets | tuple[Targets, ...]:
        height, width = size = self.size_of_result(images)
        on_device = matrices.to(images.device)
        results: list[Targets] = [warp_affine(images, on_device, size, **self._options)]
        if boxes is not None:
            _check_targets("boxes", 4, boxes, len(matrices))
            results.append(
                _each(lambda box, matrix: _move_boxes(box, matrix, height, width), boxes, matrices)
            )
        if masks is not None:
            self._check_masks(masks, images)
            results.append(self._warp_masks(masks, on_device, size))
        if points is not None:
            _check_targets("points", 2, points, len(matrices))
            results.append(_each(_move, points, matrices))
        if len(results) == 1:
            return results[0]
        return tuple(results)

    def size_of(self, images: torch.Tensor) -> tuple[int, ...]:
        """Height and width."""
        shape = images.shape if isinstance(images, torch.Tensor) else None  # which torch.compile can follow
        if shape is None or len(shape) != 4:
            given = type(images).__name__ if shape is None else f"one of the shape {tuple(shape)}"
            raise ValueError(f"AffineWarp: images must be a tensor of four axes, {self.layout}, not {given}")
        return tuple(images.shape[1:3] if self.layout == "NHWC" else images.shape[2:])

    def size_of_result(self, images: torch.Tensor) -> tuple[int, ...]:
        return self.out_size or self.size_of(images)

    def _check_masks(self, masks: torch.Tensor, images: torch.Tensor) -> None:
        found = tuple(masks.shape[1:]) if masks.dim() == 3 else self.size_of(masks)
        if found != self.size_of(images):
            raise ValueError(f"AffineWarp: masks of {found} for images of {self.size_of(images)}")

    def _warp_masks(self, masks: torch.Tensor, matrices: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        channel = 3 if self.layout == "NHWC" else 1
        whole = masks.unsqueeze(channel) if masks.dim() == 3 else masks
        whole = whole.view(torch.uint8) if masks.dtype == torch.bool else whole
        options = {"layout": self.layout, "mode": self._options["mode"], "border_value": int(self.mask_value)}
        whole = warp_affine(whole, matrices, size, interpolation="nearest", **options).view(masks.dtype)
        return whole.squeeze(channel) if masks.dim() == 3 else whole


class RandomAffine(nn.Module):
    """Rotates, scales, shears, shifts and flips each image at random, and its boxes, masks and points alike.

    Each parameter is drawn uniformly from a range (min, max), or from (-x, x) if it is given as x. All but
    the shift are about the center of the image, which is then moved to the center of the result.

    Parameters
    ----------
    degrees : float or (float, float)
        The angle, from x towards y, which is clockwise as y points down.
    translate : (float, float)
        The maximum shifts in x and y, as fractions of the width and height of the result.
    scale : (float, float)
        The range of the factor, drawn uniformly in its logarithm.
    shear : float or (float, float)
        The angle in degrees, along x.
    flip : float
        The probability of a horizontal flip.
    vertical_flip : float
        The probability of a vertical flip.
    generator : torch.Generator, optional
        A generator of the CPU, by default torch's own.
    **options
        As for `AffineWarp`.

    It is called with images and the same optional arguments as an `AffineWarp`, and returns the same.
    """

    def __init__(
        self,
        degrees: float | tuple[float, float] = 0.0,
        translate: tuple[float, float] = (0.0, 0.0),
        scale: tuple[float, float] = (1.0, 1.0),
        shear: float | tuple[float, float] = 0.0,
        flip: float = 0.0,
        vertical_flip: float = 0.0,
        *,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if min(scale) <= 0:
            raise ValueError(f"RandomAffine: scale must be above 0, not {scale}")
        self.warp, self.generator = AffineWarp(**options), generator
        self.degrees, self.shear = _range(degrees), _range(shear)
        self.scale, self.translate, self.flips = scale, translate, (flip, vertical_flip)

    def forward(
        self,
        images: torch.Tensor,
        boxes: Targets | None = None,
        masks: torch.Tensor | None = None,
        points: Targets | None = None,
    ) -> Targets | tuple[Targets, ...]:
        sizes = self.warp.size_of(images), self.warp.size_of_result(images)
        return self.warp(images, self.draw(len(images), *sizes), boxes, masks, points)

    def draw(self, count: int, size: tuple[int, ...], out_size: tuple[int, ...]) -> torch.Tensor:
        """Matrices (count, 2, 3), float64, on the CPU; the sizes are heights and widths."""
        turn, shear = (self._between(range_, count).deg2rad() for range_ in (self.degrees, self.shear))
        scale = self._between([math.log(side) for side in self.scale], count).exp()
        across, down = (
            torch.where(self._between((0, 1), count) < likely, -scale, scale) for likely in self.flips
        )
        zero, one = torch.zeros_like(scale), torch.ones_like(scale)
        linear = _square(turn.cos(), -turn.sin(), turn.sin(), turn.cos())
        linear = linear @ _square(one, shear.tan(), zero, one) @ _square(across, zero, zero, down)
        centre, out_centre = (
            torch.tensor([width - 1, height - 1], dtype=torch.float64) / 2
            for height, width in (size, out_size)
        )
        shifts = (
            self._between(_range(part * side), count) for part, side in zip(self.translate, out_size[::-1])
        )
        offset = out_centre + torch.stack([*shifts], dim=1) - linear @ centre
        return torch.cat([linear, offset[..., None]], dim=2)

    def _between(self, range_: Sequence[float], count: int) -> torch.Tensor:
        least, most = range_
        drawn = torch.rand(count, dtype=torch.float64, generator=self.generator)
        return least + (most - least) * drawn


def _move(points: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Points warped by a matrix, which has the center of the first pixel at (0, 0)."""
    matrix = matrix.to(points.device, torch.float64)
    linear, offset = matrix[..., :2], matrix[..., 2].unsqueeze(-2)
    moved = (points.double() - 0.5) @ linear.transpose(-1, -2) + offset + 0.5
    return _of_type(moved, points)


def _move_boxes(boxes: torch.Tensor, matrix: torch.Tensor, height: int, width: int) -> torch.Tensor:
    corners = torch.stack([boxes[..., [x, y]] for x in (0, 2) for y in (1, 3)], dim=-2)  # (..., K, 4, 2)
    moved = _move(corners.flatten(-3, -2).double(), matrix).unflatten(-2, corners.shape[-3:-1])
    most = torch.tensor([width, height], dtype=moved.dtype, device=moved.device)
    sides = [side.clamp(min=torch.zeros_like(most), max=most) for side in (moved.amin(-2), moved.amax(-2))]
    return _of_type(torch.cat(sides, dim=-1), boxes)


def _each(
    move: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], targets: Targets, matrices: torch.Tensor
) -> Targets:
    """The boxes or points of each image, warped; one tensor for all images, or one per image."""
    if isinstance(targets, torch.Tensor):
        return move(targets, matrices)
    return [move(target, matrix) for target, matrix in zip(targets, matrices)]


def _check_targets(name: str, numbers: int, targets: Targets, images: int) -> None:
    """Whatever else they have, such as labels in further columns, would be lost."""
    if len(targets) != images:
        raise ValueError(f"AffineWarp: {len(targets)} tensors of boxes or points for {images} images")
    if isinstance(targets, torch.Tensor):
        shapes, rank, wanted = [targets.shape], 3, f"(N, K, {numbers})"
    else:
        shapes, rank, wanted = [each.shape for each in targets], 2, f"(K, {numbers}) for each image"
    for shape in shapes:
        if len(shape) != rank or shape[-1] != numbers:
            raise ValueError(f"AffineWarp: {name} must have the shape {wanted}, not {tuple(shape)}")


def _of_type(moved: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return moved.to(given.dtype if given.is_floating_point() else torch.float32)


def _square(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return torch.stack([a, b, c, d], dim=1).reshape(-1, 2, 2)


def _range(value: float | tuple[float, ...] | list[float]) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (-value, value)
