"""The convolution on CUDA: an implicit matrix product on tensor cores, and all that follows, in one kernel.

`plan` divides the problem into tiles; `cuda_kernel` lists the phases of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import tvm

from .._destination import filled_from
from .._tvm import TVMError, te, tir, topi
from .choose_plan import plan_for
from .cuda_depthwise import emit_depthwise
from .cuda_few_pixels import emit_few_pixels, has_few_pixels
from .cuda_kernel import emit_kernel
from .plan import Plan, known_arch, multiprocessors
from .plan_depthwise import plan_depthwise
from .problem import Problem


def conv2d_nhwc(
    problem: Problem,
    data: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    residual: te.Tensor | None,
    slope: te.Tensor | None,
    scale: te.Tensor | None,
    target: tvm.target.Target,
    destination: te.Tensor | None = None,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`, and of a destination `topi_ext.conv2d_nhwc_in_place`."""
    inputs = {"data": data, "weight": weight, "bias": bias, "residual": residual, "slope": slope}
    inputs |= {"scale": scale, "destination": destination}
    inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}

    if problem.is_depthwise:
        if problem.block > 1:
            raise TVMError("topi_ext.conv2d_nhwc: on CUDA a depthwise convolution has no depth to space")
        kernel = partial(emit_depthwise, plan_depthwise(problem, multiprocessors(arch_of(target))))
    elif has_few_pixels(problem):
        kernel = partial(emit_few_pixels, problem)
    else:
        kernel = partial(emit_kernel, _plan(problem, target))

    def body(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        buffers = dict(zip([*inputs, "result"], [*ins, *outs]))
        return filled_from(buffers.pop("destination", None), outs[0], kernel(buffers))

    return te.extern(
        problem.shape,
        list(inputs.values()),
        body,
        dtype=problem.out_dtype,
        name="conv2d_nhwc",
        tag="conv2d_nhwc_gpu",
    )


def _plan(problem: Problem, target: tvm.target.Target) -> Plan:
    arch = supported_arch(problem.dtype, target)
    if problem.dtype == "float32":
        raise TVMError(
            "topi_ext.conv2d_nhwc: on CUDA, data must be int8, float16 or bfloat16: tensor cores do not "
            "multiply float32 in full precision. Cast to one of these, or use nn.conv2d"
        )
    if arch is None:
        needed = "80" if problem.dtype == "bfloat16" else "75"
        raise TVMError(
            f"topi_ext.conv2d_nhwc: {problem.dtype} needs tensor cores of sm_{needed} or newer, and the "
            f"target is sm_{arch_of(target)}. Set the GPU's architecture with `-arch=sm_XX` in the target"
        )
    return plan_for(problem, arch)


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return topi.generic.schedule_extern(outs)


def schedule_function(_problem: Problem, function: tir.PrimFunc) -> tir.PrimFunc:
    return function


def supported_arch(dtype: str, target: tvm.target.Target) -> int | None:
    """The architecture to plan for, or None where the target has no tensor cores for the type of the data."""
    arch = arch_of(target)
    return None if dtype == "float32" or (dtype == "bfloat16" and arch < 80) else known_arch(arch)


def arch_of(target: tvm.target.Target) -> int:
    """The number in the target's `-arch=sm_XX`, or 0."""
    found = re.fullmatch(r"sm_(\d+)\w?", str(target.attrs.get("arch", "")))
    return int(found.group(1)) if found else 0
