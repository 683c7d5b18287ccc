"""The Relay operator `topi_ext.batched_nms`: its arguments, types, shapes, and the kernels that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, no_type_check

from .. import _register
from .._tvm import (
    Attrs,
    Expr,
    TensorType,
    TupleType,
    TVMError,
    Type,
    call,
    const,
    convert,
    script,
    shared_extent,
    te,
    tir,
    zeros_like,
)
from .._types import IntExpr
from .._whole import whole

if TYPE_CHECKING:
    from .._types import const_range, int64, output_tensor

NAME = "topi_ext.batched_nms"
FLOATS = ("float32", "float16", "bfloat16")
ARGUMENTS = {  # the axes and the types of each; without a batch there is no axis B
    "boxes": ("B N 4", FLOATS),
    "scores": ("B N", FLOATS),
    "class_ids": ("B N", ("int32", "int64")),
    "valid_count": ("B", ("int32",)),
    "iou_threshold": ("", ("float32",)),
    "score_threshold": ("", ("float32",)),
}
OPTIONAL = ("valid_count", "score_threshold")  # an attribute `has_...` says whether they count


def batched_nms(
    boxes: Expr,
    scores: Expr,
    class_ids: Expr,
    iou_threshold: float | Expr,
    *,
    score_threshold: float | Expr | None = None,
    max_output_size: int | None = None,
    valid_count: Expr | None = None,
) -> Expr:
    """Greedy non-maximum suppression within each class.

    The boxes of each batch item are visited in descending order of score, those of equal score in order of
    index. A box is kept unless its IoU with a kept box of its own class is greater than the threshold.

    Parameters
    ----------
    boxes : Expr
        (N, 4) or (B, N, 4), float32, float16 or bfloat16. N and B may be 0, and known only at run time.
    scores : Expr
        (N,) or (B, N), any of these types.
    class_ids : Expr
        (N,) or (B, N), int32 or int64, of any value, negative ones included.
    iou_threshold : float or Expr
        As an expression, a float32 scalar.
    score_threshold : float or Expr, optional
        Boxes with a score that is not greater are ignored.
    max_output_size : int, optional
        Keep no more than this many boxes of a batch item, the first ones.
    valid_count : Expr, optional
        int32, () or (B,): the number of valid boxes of each batch item, which come first; clipped to 0..N.

    Returns
    -------
    indices_and_count : Expr
        A tuple. The indices of the kept boxes, int64, (K,) or (B, K), in the order in which they were
        visited, then -1; K is `max_output_size`, or else N. The number of kept boxes, int32, () or (B,).

    Convention
    ----------
    - Corners are x1, y1, x2, y2; the width is x2 - x1, without a 1 added. They are never sorted: a box with
      x2 < x1 has a negative width, and overlaps nothing.
    - Both thresholds are float32, both comparisons strict: an IoU equal to the threshold suppresses nothing.
    - Areas and IoU are computed in float32 whatever the input, as
      `intersection / ((area of the kept box + area of the other) - intersection)`, each operation rounded
      once, so that results are bit-identical on all targets.
    - An IoU of NaN suppresses nothing: identical boxes without area are all kept, and so is a box with a
      coordinate of NaN.
    - A score of NaN is greater than any other, as in `torch.sort`; but with a score threshold such a box is
      ignored. -0.0 equals 0.0.

    These are also the conventions of torchvision's `nms`. Its `batched_nms` shifts the boxes of each class
    away from those of other classes, which costs bits of the coordinates; here, classes are compared.

    >>> from topi_ext.batched_nms import reference
    >>> boxes = np.float32([[0, 0, 10, 10], [1, 1, 10, 10], [1, 1, 10, 10]])
    >>> scores, class_ids = np.float32([0.7, 0.8, 0.9]), np.array([5, 5, 6])
    >>> indices, count = reference.batched_nms(boxes, scores, class_ids, iou_threshold=0.5)
    >>> print(indices, count)
    [ 2  1 -1] 2
    """
    if max_output_size is not None and max_output_size < 0:
        raise ValueError(f"batched_nms: max_output_size must be at least 0, not {max_output_size}")
    count = const(0, "int32") if valid_count is None else valid_count
    thresholds = [
        _threshold("iou_threshold", iou_threshold),
        _threshold("score_threshold", 0 if score_threshold is None else score_threshold),
    ]
    return call(
        NAME,
        [boxes, scores, class_ids, count, *thresholds],
        max_output_size=-1
        if max_output_size is None
        else whole("batched_nms: max_output_size", max_output_size),
        has_valid_count=int(valid_count is not None),
        has_score_threshold=int(score_threshold is not None),
    )


def _threshold(name: str, value: float | Expr) -> Expr:
    if isinstance(value, Expr):
        return value
    try:
        return const(value, "float32")
    except (TypeError, ValueError):
        raise TypeError(f"batched_nms: {name} must be a number or an expression, not {value!r}") from None


def nms(boxes: Expr, scores: Expr, iou_threshold: float | Expr, **options: Any) -> Expr:
    """`batched_nms` of boxes of a single class, with the same arguments, result and conventions.

    >>> import torch
    >>> from topi_ext.torch import nms
    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    >>> indices, count = nms(boxes, torch.tensor([0.7, 0.8, 0.9]), 0.5)
    >>> print(indices.numpy(), int(count))
    [ 2  1 -1] 2
    """
    return batched_nms(boxes, scores, one_class(scores), iou_threshold, **options)


def one_class(scores: Expr) -> Expr:
    """Class ids that are all the same."""
    return zeros_like(scores, "int32")


# --- types and shapes


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TupleType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    batched = len(types[0].shape) == 3
    extents = {"4": {"": 4}, "N": {}, "B": {}}  # of each axis, what the tensors say it is
    for (name, (all_axes, dtypes)), type_ in zip(ARGUMENTS.items(), types):
        if name == "valid_count" and not attrs["has_valid_count"]:
            continue
        axes = [axis for axis in all_axes.split() if axis != "B" or batched]
        if len(type_.shape) != len(axes):
            beside = "" if name == "boxes" else f" beside boxes of rank {len(types[0].shape)}"
            shapes = "(N, 4) or (B, N, 4)" if name == "boxes" else f"({', '.join(axes)})"
            _refuse(f"{name} must have the shape {shapes}{beside}, not {type_.shape}")
        if type_.dtype not in dtypes:
            _refuse(f"{name} must be of type {' or '.join(dtypes)}, not {type_.dtype}")
        for axis, extent in zip(axes, type_.shape):
            extents[axis][name] = extent
        if name == "boxes" and _register.known(type_.shape[-1]) not in (4, None):
            _refuse(f"boxes must have the shape (N, 4) or (B, N, 4), not {type_.shape}")
    common = {axis: _common(axis, of_axis) for axis, of_axis in extents.items() if of_axis}
    batch = [common["B"]] if batched else []
    size = common["N"] if attrs["max_output_size"] < 0 else attrs["max_output_size"]
    return TupleType([TensorType([*batch, size], "int64"), TensorType(batch, "int32")])


def _common(axis: str, extents: dict[str, IntExpr]) -> IntExpr:
    """The common extent of an axis."""
    known = {name: int(extent) for name, extent in extents.items() if isinstance(extent, (int, tir.IntImm))}
    if len(set(known.values())) > 1:
        found = ", ".join(f"{name} has {extent}" for name, extent in known.items() if name)
        _refuse(f"all tensors must agree on the axis {axis}: {found}")
    return shared_extent(NAME, list(extents.values()))


def _refuse(reason: str) -> NoReturn:
    raise TVMError(f"{NAME}: {reason}")


@script
@no_type_check
def _shapes(boxes, scores, class_ids, batched, max_output_size):
    indices = output_tensor((batched + 1,), "int64")
    count = output_tensor((batched,), "int64")
    for i in const_range(batched + 1):
        assert boxes[i] == scores[i], "topi_ext.batched_nms: the shapes of boxes and scores differ"
        assert boxes[i] == class_ids[i], "topi_ext.batched_nms: the shapes of boxes and class_ids differ"
        indices[i] = boxes[i]
    for i in const_range(batched):
        count[i] = boxes[i]
    if max_output_size >= 0:
        indices[batched] = int64(max_output_size)
    return indices, count


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    batched = int(inputs[0].shape[0]) - 2
    return _shapes(*inputs[:3], convert(batched), convert(attrs["max_output_size"]))


# --- kernels


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    given = dict(zip(ARGUMENTS, inputs))
    for name in OPTIONAL:
        if not attrs[f"has_{name}"]:
            del given[name]
    return kernels.batched_nms(given, int(attrs["max_output_size"]))


_register.register(
    NAME,
    "Greedy non-maximum suppression within each class.",
    {
        name: f"Axes: {axes or 'none'}. Type: {' or '.join(dtypes)}."
        for name, (axes, dtypes) in ARGUMENTS.items()
    },
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
