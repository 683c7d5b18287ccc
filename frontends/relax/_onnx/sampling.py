"""Operators that read images between their pixels."""

from __future__ import annotations

import topi_ext

from tvm import relax

from .node import Convert, Node
from .resizing import resize

op = relax.op


def converters() -> dict[str, Convert]:
    return {"GridSample": _grid_sample, "Resize": resize, "RoiAlign": _roi_align}


def _roi_align(n: Node) -> relax.Expr:
    """ONNX's `max` is of weighted neighbours, not of what lies between them."""
    n.only_floats()
    if n.attribute("mode") != "avg":
        n.refuse("only the mode avg is supported")
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    images = op.astype(op.reshape(n.data(2), (-1, 1)), n.dtype(1))
    return topi_ext.roi_align(
        n.data(0),
        n.emit(op.concat([n.emit(images), n.data(1)], 1)),
        pooled_size=(n.attribute("output_height"), n.attribute("output_width")),
        spatial_scale=n.attribute("spatial_scale"),
        sampling_ratio=n.attribute("sampling_ratio"),
        aligned=n.attribute("coordinate_transformation_mode", default) == "half_pixel",
    )


GRID_METHODS = {
    **{name: name for name in ("bilinear", "nearest", "bicubic")},
    **{"linear": "bilinear", "cubic": "bicubic"},  # since opset 20
}


def _grid_sample(n: Node) -> relax.Expr:
    n.only_floats()
    method, rank = n.attribute("mode"), n.rank()
    if rank not in (4, 5) or method not in GRID_METHODS or (rank == 5 and method == "cubic"):
        n.refuse(f"the mode {method} of data of {rank} axes is not supported")
    return op.image.grid_sample(
        n.data(0),
        op.permute_dims(n.data(1), [0, rank - 1, *range(1, rank - 1)]),  # x, y and z come first
        method=GRID_METHODS[method],
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=n.attribute("padding_mode"),
        align_corners=bool(n.attribute("align_corners")),
    )
