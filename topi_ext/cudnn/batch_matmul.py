"""nn.batch_matmul in half precision on CUDA by cuDNN, for targets such as `cuda -libs=cudnn-frontend`.

Without tuning, TVM's own schedules take many times as long. Importing this module registers the strategy.

cuDNN adds up each result in one block. Where few results are sums of many products, as where channels attend
to each other over all pixels, most of the GPU would have nothing to do: then cuDNN computes sums of parts,
and a second kernel adds those.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry

from .._register import known
from ..conv2d_nhwc.cuda import arch_of
from ..conv2d_nhwc.plan import multiprocessors
from .session import ALIGNMENT, LIBRARY, Operator, data_types, new_graph

FIRST_ARCH = 80
ABOVE_CUBLAS = 40  # the level of TVM's own binding is 30
TILE = 64  # rows and columns of the results of a block of cuDNN's
BLOCKS_EACH = 2  # of a multiprocessor
SHORTEST = 512  # terms of a part
THREADS, AT_ONCE = 128, 16  # of a block, and parts that a thread loads, where those are added
SUM = "sum_of_parts"
generic: Any = importlib.import_module("tvm.relay.op.strategy.generic")
cuda: Any = importlib.import_module("tvm.relay.op.strategy.cuda")


def is_capable(
    attrs: tvm.ir.Attrs,
    types: Sequence[relay.TensorType | te.Tensor],
    dtype: str,
    target: tvm.target.Target | None,
) -> bool:
    """Whether cuDNN computes a product of these types, with a result of this type, for a target.

    Rows of all tensors begin at multiples of 16 bytes, as its tensor core kernels need it.
    """
    if target is None or target.kind.name != "cuda" or LIBRARY not in target.libs:
        return False
    if arch_of(target) < FIRST_ARCH or not all(known(extent) for type_ in types for extent in type_.shape):
        return False
    left, right = ([int(extent) for extent in type_.shape] for type_ in types)
    columns = right[1 if attrs.transpose_b else 2]
    is_half = {type_.dtype for type_ in types} in ({"float16"}, {"bfloat16"})
    is_half = is_half and dtype in (types[0].dtype, "float32")
    return is_half and all(length % ALIGNMENT == 0 for length in (left[2], right[2], columns))


def _compute(attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], result: relay.Type) -> list[te.Tensor]:
    shape = [int(extent) for extent in result.shape]
    shapes = [[int(extent) for extent in tensor.shape] for tensor in inputs]
    depth = shapes[0][1 if attrs.transpose_a else 2]
    parts = _parts(shape, depth, arch_of(tvm.target.Target.current()))
    problem = {
        "shapes": shapes,
        "transposed": [bool(attrs.transpose_a), bool(attrs.transpose_b)],
        "parts": parts,
        "dtype": inputs[0].dtype,
        "result": result.dtype if parts == 1 else "float32",
    }
    if parts == 1:
        return [OPERATOR.call(json.dumps(problem), inputs, shape, result.dtype)]
    batch, rows, columns = shape
    sums = OPERATOR.call(json.dumps(problem), inputs, [batch, parts, rows, columns], "float32")
    part = te.reduce_axis((0, parts), "part")

    def whole(image: tir.Var, row: tir.Var, column: tir.Var) -> tir.PrimExpr:
        return te.sum(sums[image, part, row, column], axis=part)

    total = te.compute(shape, whole, name=SUM, tag=topi.tag.COMM_REDUCE)
    return [total if result.dtype == "float32" else topi.cast(total, result.dtype)]


def _parts(shape: Sequence[int], depth: int, arch: int) -> int:
    """Of each sum, so that all multiprocessors have something to do."""
    batch, rows, columns = shape
    tiles = batch * -(-rows // TILE) * -(-columns // TILE)
    most = min(BLOCKS_EACH * multiprocessors(arch) // tiles, depth // SHORTEST)
    possible = (n for n in range(most, 1, -1) if depth % (n * ALIGNMENT) == 0)
    return next(possible, 1) if 2 * tiles <= multiprocessors(arch) else 1


def _schedule(attrs: tvm.ir.Attrs, outs: Sequence[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    """A packed function needs none; the sum of parts, with what is fused behind it, does."""
    schedule = te.create_schedule([out.op for out in outs])
    sums = [stage for stage in schedule.stages if stage.op.name == SUM]
    if not sums:
        return topi.generic.schedule_extern(outs)
    te.schedule.AutoInlineInjective(schedule)
    (total,), (out, *_) = sums, outs
    block, thread = schedule[out].split(schedule[out].fuse(*schedule[out].op.axis), factor=THREADS)
    schedule[out].bind(block, te.thread_axis("blockIdx.x"))
    schedule[out].bind(thread, te.thread_axis("threadIdx.x"))
    if total.op != out.op:
        total.set_scope("local")
        total.compute_at(schedule[out], thread)
    _, at_once = total.split(total.op.reduce_axis[0], factor=AT_ONCE)
    total.unroll(at_once)  # so that a thread waits for all of these together
    return schedule


def build_graph(cudnn: ModuleType, text: str, handle: Any) -> Any:
    """The graph of a product. Uids of its tensors count from 1: left, right, result."""
    problem = json.loads(text)
    graph, parts = new_graph(cudnn, problem["dtype"], handle), problem["parts"]
    operands = []
    for name, (batch, rows, columns), is_transposed, summed in zip(
        ("left", "right"), problem["shapes"], problem["transposed"], (2, 1)
    ):
        dim, stride = [batch, rows, columns], [rows * columns, columns, 1]
        if is_transposed:
            dim, stride = [batch, columns, rows], [rows * columns, 1, columns]
        if parts > 1:  # of the axis that is summed, the second of the left one, the first of the right one
            length = dim[summed] // parts
            dim[summed] = length
            dim, stride = [batch, parts, *dim[1:]], [stride[0], length * stride[summed], *stride[1:]]
        operands.append(graph.tensor(name=name, dim=dim, stride=stride))
    rows, columns = operands[0].get_dim()[-2], operands[1].get_dim()[-1]
    batch, size = max(shape[0] for shape in problem["shapes"]), rows * columns
    result = graph.matmul(*operands)
    result.set_output(True).set_data_type(data_types(cudnn)[problem["result"]])
    dim, stride = [batch, rows, columns], [size, columns, 1]
    if parts > 1:
        dim, stride = [batch, parts, rows, columns], [parts * size, size, columns, 1]
    result.set_dim(dim).set_stride(stride)
    for uid, tensor in enumerate((*operands, result), 1):
        tensor.set_uid(uid)
    return graph


OPERATOR = Operator("topi_ext.batch_matmul", build_graph)


@generic.batch_matmul_strategy.register("cuda", override=True)
def _strategy(
    attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], result: relay.Type, target: tvm.target.Target
) -> registry.OpStrategy:
    """TVM's own, and cuDNN's, which is preferred where it can."""
    strategy = cuda.batch_matmul_strategy_cuda(attrs, inputs, result, target)
    if is_capable(attrs, inputs, result.dtype, target):
        strategy.add_implementation(_compute, _schedule, name="batch_matmul.cudnn", plevel=ABOVE_CUBLAS)
    return strategy
