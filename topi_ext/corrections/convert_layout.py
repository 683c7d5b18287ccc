"""Let TVM's ConvertLayout pass operators that have a layout, but no layout rule or a poor one.

nn.depth_to_space and nn.space_to_depth have none, and that of nn.prelu keeps its channel axis. Regions are
pooled from maps of any layout, and images of any are sampled; a normalization follows its data. A convolution
keeps its layout where the target has no kernel for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import relay
from tvm.relay.op import op as registry
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from .. import group_norm, layer_norm, roi_align  # noqa: F401  they register the operators
from .._strategy import ABOVE_STOCK
from ..conv2d_nhwc.op import FLOATS, has_grouped_kernel
from .target_kernels import has_kernel, lowers

SHUFFLES = {"nn.depth_to_space": relay.nn.depth_to_space, "nn.space_to_depth": relay.nn.space_to_depth}
MULTISCALE_ROI_ALIGN = "topi_ext.multiscale_roi_align"
LAYER_NORM = "topi_ext.layer_norm"
GROUP_NORM = "topi_ext.group_norm"
GRID_SAMPLE = "image.grid_sample"
LAYOUTS = ("NCHW", "NHWC")  # what TVM has shuffles for
Layouts = Sequence[tvm.tir.data_layout.Layout]  # of the arguments
# From the weights of a convolution and the type of its data, the type in which it will be computed.
ComputedIn = Callable[[relay.Constant, str], str]
_computed_in: ContextVar[ComputedIn] = ContextVar("computed_in", default=lambda _weights, dtype: dtype)


@contextmanager
def computing_in(type_of: ComputedIn) -> Iterator[None]:
    """Inside, layouts are converted for convolutions of the types that they are yet to have."""
    before = _computed_in.set(type_of)
    try:
        yield
    finally:
        _computed_in.reset(before)


def _register_conv2d() -> None:
    stock = relay.op.get("nn.conv2d").get_attr("FTVMConvertOpLayout")

    def convert(
        attrs: tvm.ir.Attrs, args: Sequence[relay.Expr], types: Sequence[relay.Type], desired: Sequence[str]
    ) -> relay.Expr:
        # TVM takes one channel and one filter for depthwise, and chooses HWOI, for which it has no kernel.
        is_default = [str(layout) for layout in desired] == ["NHWC", "default"]
        layouts = ["NHWC", "HWIO"] if is_default and int(attrs.groups) == 1 else desired
        converted = stock(attrs, args, types, layouts)
        target = tvm.target.Target.current()  # set by ConvertToNHWC, if it knows the target
        if target is None or _is_ours(attrs, converted, args, types, target):
            return converted
        if _has_kernel(attrs, converted, types, target):
            return converted
        return relay.Call(converted.op, args, attrs)

    registry.register_convert_op_layout("nn.conv2d", convert, ABOVE_STOCK)


def _is_ours(
    old: tvm.ir.Attrs,
    conv: relay.Call,
    args: Sequence[relay.Expr],
    types: Sequence[relay.Type],
    target: tvm.target.Target,
) -> bool:
    """Whether FuseConv2dNHWC makes a grouped convolution a call of our operator, with a kernel for it."""
    groups, (data, weight) = int(conv.attrs.groups), types[:2]
    if groups == 1 or str(conv.attrs.data_layout) != "NHWC" or not isinstance(args[1], relay.Constant):
        return False
    known = [int(extent) for extent in data.shape if isinstance(extent, tvm.tir.IntImm)]
    if len(known) < 4 or min(known) < 1 or min(map(int, old.padding)) < 0 or data.dtype not in FLOATS:
        return False
    if str(old.out_dtype) not in ("", data.dtype):
        return False
    channels = known[str(old.data_layout).index("C")]
    filters = int(old.channels or weight.shape[str(old.kernel_layout).index("O")])
    dtype = _computed_in.get()(args[1], data.dtype)
    return has_grouped_kernel(channels, filters, groups, dtype, target)


def _has_kernel(
    old: tvm.ir.Attrs, conv: relay.Call, types: Sequence[relay.Type], target: tvm.target.Target
) -> bool:
    """Whether the target has a kernel for a convolution converted from these attributes and types."""
    names = ("data_layout", "kernel_layout")
    moved = [_in_layout(type_, str(old[name]), str(conv.attrs[name])) for name, type_ in zip(names, types)]
    arguments = conv.op, conv.attrs, moved, target
    return has_kernel(*arguments) and (int(conv.attrs.groups) == 1 or lowers(*arguments))


def _in_layout(type_: relay.TensorType, old: str, new: str) -> relay.TensorType:
    return relay.TensorType([type_.shape[old.index(axis)] for axis in new], type_.dtype)


def _register_shuffle(name: str, build: Callable[..., relay.Expr]) -> None:
    def over(data: relay.Expr, attrs: tvm.ir.Attrs, layout: str) -> relay.Expr:
        mode = (str(attrs.mode),) if name == "nn.depth_to_space" else ()
        return build(data, int(attrs.block_size), layout, *mode)

    def convert(
        attrs: tvm.ir.Attrs, args: Sequence[relay.Expr], _types: Sequence[relay.Type], desired: Sequence[str]
    ) -> relay.Expr:
        return over(args[0], attrs, str(desired[0]))

    def infer(
        attrs: tvm.ir.Attrs,
        new_in_layouts: Layouts | None,
        _old_in_layouts: Layouts,
        _old_in_types: Sequence[relay.Type],
    ) -> InferCorrectLayoutOutput:
        # In ConvertLayout the attributes have the new layout already: data of another layout is transposed.
        layout = tvm.tir.layout(str(attrs.layout))
        return InferCorrectLayoutOutput([layout], [layout], attrs)

    registry.register_convert_op_layout(name, convert)
    relay.op.get(name).set_attr("FInferCorrectLayout", infer)


def _register_prelu() -> None:
    stock = relay.op.get("nn.prelu").get_attr("FInferCorrectLayout")

    def infer(
        attrs: tvm.ir.Attrs,
        new_in_layouts: Layouts | None,
        old_in_layouts: Layouts,
        old_in_types: Sequence[relay.Type],
    ) -> InferCorrectLayoutOutput:
        old, new = old_in_layouts[0], new_in_layouts[0] if new_in_layouts else None
        if not new or not {old.name, new.name} <= set(LAYOUTS) or old.name[attrs.axis] != "C":
            return stock(attrs, new_in_layouts, old_in_layouts, old_in_types)
        moved = relay.nn.prelu(relay.var("x"), relay.var("slopes"), axis=new.name.index("C")).attrs
        return InferCorrectLayoutOutput([new, tvm.tir.layout("C")], [new], moved)

    relay.op.get("nn.prelu").set_attr("FInferCorrectLayout", infer, ABOVE_STOCK)


def _register_roi_align() -> None:
    def convert(
        attrs: tvm.ir.Attrs, args: Sequence[relay.Expr], _types: Sequence[relay.Type], desired: Sequence[str]
    ) -> relay.Expr:
        changed = _with(attrs, layout=str(desired[0]))
        return relay.Call(relay.op.get(MULTISCALE_ROI_ALIGN), args, changed)

    def infer(
        attrs: tvm.ir.Attrs,
        _new_in_layouts: Layouts | None,
        old_in_layouts: Layouts,
        _old_in_types: Sequence[relay.Type],
    ) -> InferCorrectLayoutOutput:
        layout = tvm.tir.layout(str(attrs["layout"]))
        maps = [layout] * (len(old_in_layouts) - 1)
        rois = tvm.tir.layout("NC")  # unchanged; if it were undefined, TVM would skip the operator
        return InferCorrectLayoutOutput([*maps, rois], [layout], attrs)

    registry.register_convert_op_layout(MULTISCALE_ROI_ALIGN, convert)
    relay.op.get(MULTISCALE_ROI_ALIGN).set_attr("FInferCorrectLayout", infer)


def _with(attrs: tvm.ir.Attrs, **changes: Any) -> tvm.ir.Attrs:
    """The attributes of an operator of `topi_ext`, with changes."""
    fields = {name: attrs[name] for name in list(attrs.keys())}
    return tvm.ir.make_node("DictAttrs", **{**fields, **changes})


def _register_norm(name: str) -> None:
    def infer(
        attrs: tvm.ir.Attrs,
        new_in_layouts: Layouts | None,
        old_in_layouts: Layouts,
        old_in_types: Sequence[relay.Type],
    ) -> InferCorrectLayoutOutput:
        old, new = old_in_layouts[0], new_in_layouts[0] if new_in_layouts else None
        if not old or old.name not in LAYOUTS:
            return InferCorrectLayoutOutput([None] * 3, [None], attrs)  # TVM leaves the operator as it is
        if not new or new.name not in LAYOUTS:
            new = old
        moved = new.name.index(old.name[int(attrs["axis"])])
        if name == GROUP_NORM and moved not in (1, len(new.name) - 1):
            return InferCorrectLayoutOutput([None] * 3, [None], attrs)
        of_channels = [tvm.tir.layout("C")] * 2  # gamma and beta, or scalars: they stay as they are
        return InferCorrectLayoutOutput([new, *of_channels], [new], _with(attrs, axis=moved))

    relay.op.get(name).set_attr("FInferCorrectLayout", infer)


def _register_grid_sample() -> None:
    def convert(
        attrs: tvm.ir.Attrs, args: Sequence[relay.Expr], types: Sequence[relay.Type], desired: Sequence[str]
    ) -> relay.Expr:
        layout = str(desired[0]) if len(types[0].shape) == 4 else str(attrs.layout)
        options = str(attrs.padding_mode), bool(attrs.align_corners)
        return relay.image.grid_sample(*args, str(attrs.method), layout, *options)

    def infer(
        attrs: tvm.ir.Attrs,
        _new_in_layouts: Layouts | None,
        _old_in_layouts: Layouts,
        _old_in_types: Sequence[relay.Type],
    ) -> InferCorrectLayoutOutput:
        layout = tvm.tir.layout(str(attrs.layout))
        grid = tvm.tir.layout("NCDHW" if "D" in layout.name else "NCHW")  # whatever the layout of the data
        return InferCorrectLayoutOutput([layout, grid], [layout], attrs)

    registry.register_convert_op_layout(GRID_SAMPLE, convert)
    relay.op.get(GRID_SAMPLE).set_attr("FInferCorrectLayout", infer)


# TVM keeps what is registered, even if this module is imported again.
if relay.op.get("nn.depth_to_space").get_attr("FInferCorrectLayout") is None:
    for _name, _build in SHUFFLES.items():
        _register_shuffle(_name, _build)
    _register_conv2d()
    _register_prelu()
    _register_roi_align()
    _register_norm(LAYER_NORM)
    _register_norm(GROUP_NORM)
    _register_grid_sample()
