"""The Relay operator `topi_ext.heatmaps_to_keypoints`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, no_type_check

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, TupleType, Type, call, results, script, shared_extent, te, tir

if TYPE_CHECKING:
    from .._types import int64, output_tensor

NAME = "topi_ext.heatmaps_to_keypoints"
FLOATS = ("float32", "float16")
ARGUMENTS = {
    "maps": "(N, K, H, W), float32 or float16.",
    "rois": "(N, 4): x1, y1, x2, y2; float32 or float16.",
}


def heatmaps_to_keypoints(maps: Expr, rois: Expr) -> Expr:
    """The keypoints of each object: the maxima of its heatmaps, scaled to its roi.

    Parameters
    ----------
    maps : Expr
        (N, K, H, W), float32 or float16: a heatmap for each object and keypoint. All extents may be known
        only at run time; N may be 0.
    rois : Expr
        (N, 4), float32 or float16: the corners x1, y1, x2, y2 of the objects in the image.

    Returns
    -------
    keypoints_and_scores : Expr
        A tuple: (N, K, 3), float32, the position x, y of each keypoint in the image and a 1; and (N, K),
        float32, the value of the scaled heatmap there.

    Convention
    ----------
    - As torchvision's `heatmaps_to_keypoints`: a side of a roi is at least 1 long, and a map is scaled to the
      size of its roi, rounded up to whole pixels, by torch's bicubic interpolation (a = -0.75,
      `align_corners=False`, borders replicated), in float32.
    - The keypoint is the center of the pixel with the largest value; of equal ones, the first in row-major
      order. NaN is greater than any number.
    - A map is scaled to at most 4096 pixels in height or width: on a longer side, each of its pixels covers
      more than one of the image.
    - For a roi with a coordinate that is NaN or beyond 1e9, at which torchvision mostly fails, all keypoints
      and scores are 0.

    >>> from topi_ext.heatmaps_to_keypoints import reference
    >>> maps = np.zeros((1, 1, 4, 4), "float32")
    >>> maps[0, 0, 1, 2] = 1
    >>> keypoints, scores = reference.heatmaps_to_keypoints(maps, np.float32([[10, 20, 18, 28]]))
    >>> print(keypoints[0, 0], scores.round(3))
    [14.5 22.5  1. ] [[0.772]]
    """
    return results(call(NAME, [maps, rois]), 2)


def _type_relation(types: Sequence[Type], _attrs: Attrs) -> TupleType | None:
    """The types of the results, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    maps, rois = types
    for name, type_ in zip(ARGUMENTS, types):
        if type_.dtype not in FLOATS:
            _refuse(f"{name} must be of type {' or '.join(FLOATS)}, not {type_.dtype}")
    if len(maps.shape) != 4 or 0 in map(known, maps.shape[1:]):
        _refuse(f"maps must have the shape (N, K, H, W) with K, H and W above 0, not {maps.shape}")
    if len(rois.shape) != 2 or known(rois.shape[1]) not in (4, None):
        _refuse(f"rois must have the shape (N, 4), not {rois.shape}")
    counts = [known(type_.shape[0]) for type_ in types]
    if None not in counts and counts[0] != counts[1]:
        _refuse(f"maps and rois must have the same number of objects, not {counts[0]} and {counts[1]}")
    count = shared_extent(NAME, [type_.shape[0] for type_ in types])
    keypoints = maps.shape[1]
    return TupleType([TensorType(shape, "float32") for shape in ([count, keypoints, 3], [count, keypoints])])


def _refuse(reason: str) -> NoReturn:
    _register.refuse(NAME, reason)


@script
@no_type_check
def _shapes(maps, rois):
    places = output_tensor((3,), "int64")
    scores = output_tensor((2,), "int64")
    assert maps[0] == rois[0], (
        "topi_ext.heatmaps_to_keypoints: maps and rois differ in their number of objects"
    )
    for axis in range(1, 4):
        assert maps[axis] > int64(0), "topi_ext.heatmaps_to_keypoints: maps must have K, H and W above 0"
    assert rois[1] == int64(4), "topi_ext.heatmaps_to_keypoints: rois must have the shape (N, 4)"
    places[0] = maps[0]
    places[1] = maps[1]
    places[2] = int64(3)
    scores[0] = maps[0]
    scores[1] = maps[1]
    return places, scores


def _shape_function(_attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    return list(_shapes(*inputs))


def _compute(kernels: ModuleType, _attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    return kernels.heatmaps_to_keypoints(*inputs)


_register.register(
    NAME,
    "The keypoints of each object: the maxima of its heatmaps, scaled to its roi.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
