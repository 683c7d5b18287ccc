"""nn.batch_matmul in half precision on CUDA by cuDNN, for targets such as `cuda -libs=cudnn-frontend`.

Without tuning, TVM's own schedules take many times as long. Importing this module registers the strategy.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tvm
from tvm import relay, te, topi
from tvm.relay.op import op as registry

from .._register import known
from ..conv2d_nhwc.cuda import arch_of
from .session import ALIGNMENT, LIBRARY, Operator, data_types, new_graph

FIRST_ARCH = 80
ABOVE_CUBLAS = 40  # the level of TVM's own binding is 30
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
    problem = {
        "shapes": [[int(extent) for extent in tensor.shape] for tensor in inputs],
        "transposed": [bool(attrs.transpose_a), bool(attrs.transpose_b)],
        "dtype": inputs[0].dtype,
        "result": result.dtype,
    }
    return [OPERATOR.call(json.dumps(problem), inputs, shape, result.dtype)]


def build_graph(cudnn: ModuleType, text: str, handle: Any) -> Any:
    """The graph of a product. Uids of its tensors count from 1: left, right, result."""
    problem = json.loads(text)
    graph = new_graph(cudnn, problem["dtype"], handle)
    operands = []
    for name, (batch, rows, columns), is_transposed in zip(
        ("left", "right"), problem["shapes"], problem["transposed"]
    ):
        dim, stride = [batch, rows, columns], [rows * columns, columns, 1]
        if is_transposed:
            dim, stride = [batch, columns, rows], [rows * columns, 1, columns]
        operands.append(graph.tensor(name=name, dim=dim, stride=stride))
    rows, columns = operands[0].get_dim()[1], operands[1].get_dim()[2]
    batch = max(shape[0] for shape in problem["shapes"])
    result = graph.matmul(*operands)
    result.set_output(True).set_data_type(data_types(cudnn)[problem["result"]])
    result.set_dim([batch, rows, columns]).set_stride([rows * columns, columns, 1])
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
        schedule = generic.wrap_topi_schedule(topi.generic.schedule_extern)
        strategy.add_implementation(_compute, schedule, name="batch_matmul.cudnn", plevel=ABOVE_CUBLAS)
    return strategy
