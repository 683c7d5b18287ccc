"""Average pooling to one pixel: on CUDA in one kernel, in float32, and on CPUs in NHWC as a mean.

On CUDA, TVM sums in the type of the data, and divides in a second kernel. Importing this module replaces the
computation for images of some thousand pixels; larger ones keep many thread blocks busy by the schedule of
`cuda_reductions`, in two kernels. On CPUs, TVM goes through all pixels for each channel of NHWC; a mean has
the schedule of `reductions_on_cpus`.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry
from tvm.target import override_native_generic_func

from .._lanes import schedule as schedule_in_lanes
from .._register import known
from .._rows import Kernel, Row, Rows, of_rows, schedule_of_rows
from .._strategy import generic, stock_compute
from .reductions_on_cpus import sum_in_lanes

NAMES = ("nn.adaptive_avg_pool2d", "nn.global_avg_pool2d")
FLOATS = ("float32", "float16", "bfloat16")
MAX_PIXELS = 2**13  # of an image, which the threads of one block read


def is_served(attrs: tvm.ir.Attrs, data: Any, result: Any, target: tvm.target.Target | None) -> bool:
    """Whether tensors, or their types, are those of a pooling that is replaced."""
    layout = str(attrs.layout)
    if target is None or target.kind.name != "cuda" or layout not in ("NCHW", "NHWC"):
        return False
    height, width = (known(data.shape[layout.index(side)]) or 0 for side in "HW")
    return _is_to_one_pixel(attrs, data, result) and 0 < height * width <= MAX_PIXELS


def _is_to_one_pixel(attrs: tvm.ir.Attrs, data: Any, result: Any) -> bool:
    layout = str(attrs.layout)
    is_one_pixel = all(known(result.shape[layout.index(side)]) == 1 for side in "HW")
    out_layout = str(getattr(attrs, "out_layout", ""))
    return is_one_pixel and data.dtype in FLOATS and result.dtype == data.dtype and out_layout in ("", layout)


def _is_mean(attrs: tvm.ir.Attrs, data: Any, result: Any, target: tvm.target.Target | None) -> bool:
    """Whether a pooling is computed as a mean on CPUs; both sum in the type of the data."""
    is_for_cpu = target is not None and target.kind.name == "llvm" and str(attrs.layout) in ("NCHW", "NHWC")
    return is_for_cpu and data.dtype == "float32" and _is_to_one_pixel(attrs, data, result)


def mean_of_pixels(data: te.Tensor, layout: str) -> te.Tensor:
    """The mean over the pixels of each image and channel, in the layout of the data."""
    extent = {axis: known(each) or each for axis, each in zip(layout, data.shape)}
    pixels, images, channels = extent["H"] * extent["W"], extent["N"], extent["C"]
    rows = Rows(images * channels, pixels, 1) if layout == "NCHW" else Rows(images, pixels, channels)
    shape = [1 if axis in "HW" else each for axis, each in zip(layout, data.shape)]
    return of_rows(rows, {"data": data}, _mean, "mean_of_pixels", shape)


def _mean(kernel: Kernel, rows: list[Row]) -> None:
    sums = [kernel.local.variable("sum", tir.const(0.0, "float32")) for _ in rows]
    with kernel.each_turn() as turn:
        for row, sum_ in zip(rows, sums):
            row.read(turn)
            with kernel.each_lane() as lane:
                sum_[0] = sum_[0] + row[turn, lane]
    for row, sum_ in zip(rows, sums):
        mean = kernel.local("mean", kernel.total(sum_[0]) / kernel.local.exact(kernel.problem.channels))
        with kernel.ib.if_scope(tir.all(kernel.own == 0, row.number < kernel.count)):
            kernel.buffers["result"][row.number] = mean.astype(kernel.dtype)


def _register(name: str) -> None:
    stock = stock_compute(name)

    def strategy(
        attrs: tvm.ir.Attrs, inputs: list[te.Tensor], type_: relay.Type, target: tvm.target.Target
    ) -> registry.OpStrategy:
        result = registry.OpStrategy()
        implementation: tuple[Any, Any] = (stock, _stock_schedule)
        if is_served(attrs, inputs[0], type_, target):
            implementation = _compute, schedule_of_rows
        elif _is_mean(attrs, inputs[0], type_, target):
            implementation = _mean_on_cpus, _reduction_schedule
        result.add_implementation(*implementation, name=f"{name}.topi_ext")
        return result

    registry.get(name).reset_attr("FTVMStrategy")
    registry.register_strategy(name, override_native_generic_func(f"{name}.topi_ext")(strategy))


def _compute(attrs: tvm.ir.Attrs, inputs: list[te.Tensor], _: relay.Type) -> list[te.Tensor]:
    return [mean_of_pixels(inputs[0], str(attrs.layout))]


def _mean_on_cpus(attrs: tvm.ir.Attrs, inputs: list[te.Tensor], _: relay.Type) -> list[te.Tensor]:
    (data,) = inputs
    axes = [str(attrs.layout).index(side) for side in "HW"]
    height, width = (data.shape[axis] for axis in axes)
    in_lanes = sum_in_lanes(data, axes, True, (known(height) or 0) * (known(width) or 0))
    if in_lanes is not None:
        return [in_lanes]
    total = topi.sum(data, axes, keepdims=True)
    return [topi.divide(total, tir.Cast(total.dtype, height * width))]


def _reduction_schedule(attrs: tvm.ir.Attrs, outs: list[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    with target:
        return schedule_in_lanes(attrs, outs, target)


def _stock_schedule(attrs: tvm.ir.Attrs, outs: list[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    with target:
        return generic.schedule_adaptive_pool(attrs, outs, target)


for _name in NAMES:
    _register(_name)
