"""A concatenation of a tensor with a padded part of it, fused with what computes the tensor.

TVM's kernel for CPUs takes its operands as compact buffers. A tensor that is computed in the same function
is laid out with the padding that another operand puts around it, so that it is not compact, and does not
compile. Importing this module gives the kernel a copy of such a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm import te, topi

_stock = topi.x86.concatenate


def concatenate(data: Sequence[te.Tensor], axis: int = 0) -> te.Tensor:
    computed = {read for each in data for read in _reads(each)}
    return _stock([topi.identity(each) if each.op in computed else each for each in data], axis)


def _reads(tensor: te.Tensor) -> Iterator[te.Operation]:
    """The operations in the same function that a tensor is computed from."""
    waiting, seen = list(tensor.op.input_tensors), set()
    while waiting:
        operation = waiting.pop().op
        if operation not in seen and not isinstance(operation, te.PlaceholderOp):
            seen.add(operation)
            waiting.extend(operation.input_tensors)
            yield operation


topi.x86.concatenate = concatenate
