"""The concatenation on CPUs, fused with what computes its operands, and with what follows it.

TVM's kernel takes its operands as compact buffers. A tensor that is computed in the same function is laid
out with the padding that another operand puts around it, so that it is not compact, and does not compile.
And what is fused with the kernel runs on one core, one element after the other, each operator to memory.
Where its results are of bfloat16, and what reads them is fused with it, they are taken for integers.
Importing this module puts an operator of loops in the place of the kernel, for bfloat16 and where operands
are computed; in it, each run of elements of one operand has code of its own. Where they have no such runs,
the kernel gets a copy of a computed tensor, and what is fused with it, if it is large, the schedule that it
has alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import tvm
from tvm import te, topi

from .._register import known

FOR_SEVERAL_THREADS = 2**14  # elements: for fewer it takes longer to wake threads
CONCATENATE = "T_concat"  # as TVM names what it computes
RUNS = 8, 64  # elements of one operand side by side that are copied at once, at least and at most
MAX_RUNS = 32  # along the axis, since the code has each of them

_stock = topi.x86.concatenate


def concatenate(data: Sequence[te.Tensor], axis: int = 0) -> te.Tensor:
    axis %= len(data[0].shape)
    is_computed = any(isinstance(each.op, te.ComputeOp) for each in data)
    if data[0].dtype == "bfloat16" or (is_computed and _run_along(axis, data)):
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
    by_runs = {operation: _concatenation(operation) for operation in written}
    for operation in {each for each in operations if _is_in_runs(each)} - {*by_runs.values()}:
        if operation.output(0).dtype != "bfloat16":  # which stays out of memory
            written.add(operation)
            by_runs[operation] = operation
    for operation in operations:
        if not isinstance(operation, te.ComputeOp) or not topi.tag.is_injective(operation.tag):
            continue
        if operation not in written:
            s[operation].compute_inline()
        elif by_runs[operation]:
            _schedule_runs(s[operation], by_runs[operation], is_parallel=_is_large(operation.output(0)))
        elif _is_large(operation.output(0)):
            topi.x86.injective.schedule_injective_from_existing(s, operation.output(0))
    return s


def _is_in_runs(operation: te.Operation) -> bool:
    return bool(operation.name == CONCATENATE and _axis_and_run(operation))


def _concatenation(operation: te.Operation) -> te.Operation | None:
    """The one in runs that an operation is, or computes from element by element."""
    shape, waiting, seen = operation.output(0).shape, [operation], set()
    while waiting:
        each = waiting.pop()
        if _is_in_runs(each):
            return each
        if each in seen or not isinstance(each, te.ComputeOp) or not topi.tag.is_broadcast(each.tag):
            continue
        seen.add(each)
        same = [read.op for read in each.input_tensors if tvm.ir.structural_equal(read.shape, shape)]
        waiting.extend(reversed(same))
    return None


def _axis_and_run(operation: te.Operation) -> tuple[int, int] | None:
    """Of a concatenation, whose operation does not say its axis: there, lengths make up the whole."""
    operands = operation.input_tensors
    for axis, length in enumerate(known(each.dom.extent) for each in operation.axis):
        lengths = [known(each.shape[axis]) for each in operands if len(each.shape) > axis]
        if len(lengths) == len(operands) and length == sum(each or math.inf for each in lengths):
            run = _run_along(axis, operands)
            return (axis, run) if run else None
    return None


def _run_along(axis: int, operands: Sequence[te.Tensor]) -> int | None:
    """How many elements along the axis to copy at once, or None.

    Which operand an element comes from is then known for each run, and not asked for each element.
    """
    lengths = [known(each.shape[axis]) or 0 for each in operands]
    if 0 in lengths or len(operands[0].shape) < 2:
        return None
    is_last = axis == len(operands[0].shape) - 1
    least, most = RUNS if is_last else (1, max(lengths))
    common = math.gcd(*lengths)
    run = next((each for each in range(min(most, common), least - 1, -1) if common % each == 0), None)
    return run if run and sum(lengths) // run <= MAX_RUNS else None


def _schedule_runs(stage: te.Stage, concatenation: te.Operation, is_parallel: bool) -> None:
    found = _axis_and_run(concatenation)
    assert found is not None
    axis, run = found
    axes = list(stage.op.axis)
    outer, inner = axes[:axis], axes[axis + 1 :]
    number, within = stage.split(axes[axis], run)
    if inner:
        outer.append(within)
    else:
        inner.append(within)
    stage.reorder(*outer, number, *inner)
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
