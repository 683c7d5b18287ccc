"""The concatenation on CPUs, fused with what computes its operands, and with what follows it.

TVM's kernel takes its operands as compact buffers. A tensor that is computed in the same function is laid
out with the padding that another operand puts around it, so that it is not compact, and does not compile.
And what is fused with the kernel runs on one core, one element after the other, each operator to memory.
Where its results are of bfloat16, and what reads them is fused with it, they are taken for integers.
Importing this module gives the kernel a copy of a computed tensor, what is fused with it, where it is large,
the schedule that it has alone, and bfloat16 an operator of loops instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tvm import te, topi

from .._register import known

FOR_SEVERAL_THREADS = 2**14  # elements: for fewer it takes longer to wake threads
CONCATENATE = "T_concat"  # as TVM names what it computes
RUNS = 8, 64  # elements of one operand side by side that are copied at once, at least and at most
MAX_RUNS = 32  # of a row, since the code has each of them

_stock = topi.x86.concatenate


def concatenate(data: Sequence[te.Tensor], axis: int = 0) -> te.Tensor:
    if data[0].dtype == "bfloat16":
        return topi.concatenate(data, axis)
    computed = {read for each in data for read in _computed_for([each]) if read != each.op}
    return _stock([topi.identity(each) if each.op in computed else each for each in data], axis)


def schedule(outs: Sequence[te.Tensor] | te.Tensor) -> te.Schedule:
    """Of a function with such a kernel: all that nothing needs in memory is computed where it is read."""
    outs = [outs] if isinstance(outs, te.Tensor) else list(outs)
    s = te.create_schedule([out.op for out in outs])
    operations = [*_computed_for(outs)]
    written = {out.op for out in outs}
    for operation in operations:
        if not isinstance(operation, te.ComputeOp):  # which reads memory
            written |= {tensor.op for tensor in operation.input_tensors}
    for operation in operations:
        if not isinstance(operation, te.ComputeOp) or not topi.tag.is_injective(operation.tag):
            continue
        if operation not in written:
            s[operation].compute_inline()
        elif run := _run(operation):
            _schedule_runs(s[operation], run, is_parallel=_is_large(operation.output(0)))
        elif _is_large(operation.output(0)):
            topi.x86.injective.schedule_injective_from_existing(s, operation.output(0))
    return s


def _run(operation: te.ComputeOp) -> int | None:
    """How many elements to copy at once where operands are concatenated along the last axis, or None.

    Which operand an element comes from is then known for each run, and not asked for each element.
    """
    last = len(operation.axis) - 1
    shapes = [[known(extent) for extent in tensor.shape] for tensor in operation.input_tensors]
    if operation.name != CONCATENATE or not last or any(len(shape) != last + 1 for shape in shapes):
        return None
    lengths = [shape[-1] for shape in shapes if shape[-1] is not None]
    whole = known(operation.axis[last].dom.extent)
    if len(lengths) < len(shapes) or sum(lengths) != whole:
        return None
    least, most = RUNS
    common = math.gcd(*lengths)
    run = next((each for each in range(most, least - 1, -1) if common % each == 0), None)
    return run if run and whole // run <= MAX_RUNS else None


def _schedule_runs(stage: te.Stage, run: int, is_parallel: bool) -> None:
    *outer, last = stage.op.axis
    number, _ = stage.split(last, run)
    stage.unroll(number)
    if is_parallel:
        stage.parallel(stage.fuse(*outer))


def _is_large(tensor: te.Tensor) -> bool:
    extents = [known(extent) for extent in tensor.shape]
    return None in extents or math.prod(filter(None, extents)) >= FOR_SEVERAL_THREADS


def _computed_for(tensors: Sequence[te.Tensor]) -> Iterator[te.Operation]:
    """The operations in the same function that tensors are computed by."""
    waiting, seen = [tensor.op for tensor in tensors], set()
    while waiting:
        operation = waiting.pop()
        if operation not in seen and not isinstance(operation, te.PlaceholderOp):
            seen.add(operation)
            waiting.extend(tensor.op for tensor in operation.input_tensors)
            yield operation


topi.x86.concatenate = concatenate
topi.x86.schedule_concatenate_cpu = schedule
