"""What an operator does not write of its result: channels or pixels of its destination."""

from __future__ import annotations

import tvm

from ._tvm import address_of, register_function, tir

FILL = "topi_ext.fill_unless_in_place"


def filled_from(destination: tir.Buffer | None, result: tir.Buffer, write: tir.Stmt) -> tir.Stmt:
    """The statement that writes into a result, which has the elements of the destination before.

    Nothing is copied where both are in the same memory, as a memory plan may put them.
    """
    if destination is None:
        return write
    return tir.SeqStmt([tir.Evaluate(tir.call_packed(FILL, destination, result)), write])


def _fill(destination: tvm.nd.NDArray, result: tvm.nd.NDArray) -> None:
    if address_of(destination) != address_of(result):
        from tvm._ffi.base import _LIB, check_call

        stream = tvm.get_global_func("runtime.get_cuda_stream")()  # NDArray.copyto takes the default one
        check_call(_LIB.TVMArrayCopyFromTo(destination.handle, result.handle, stream))


register_function(FILL)(_fill)  # TVM keeps it if the module is imported again
