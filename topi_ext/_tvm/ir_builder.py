"""The builder of kernels for TVM 0.27, with the methods of `tvm.tir.ir_builder`, which it has no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tvm import ir, tirx

LOOPS = {
    "serial": tirx.ForKind.SERIAL,
    "parallel": tirx.ForKind.PARALLEL,
    "vectorize": tirx.ForKind.VECTORIZED,
    "unroll": tirx.ForKind.UNROLLED,
}
Around = Callable[[tirx.Stmt], tirx.Stmt]  # an attribute, around all that follows in its scope


class BufferVar:
    """A buffer, read and written as `buffer[index]`."""

    def __init__(self, ib: IRBuilder, buffer: tirx.Buffer) -> None:
        self._ib, self._buffer = ib, buffer
        self.dtype = str(buffer.dtype)

    def asobject(self) -> tirx.Buffer:
        return self._buffer

    def __getitem__(self, index: Any) -> ir.Expr:
        return tirx.BufferLoad(self._buffer, self._indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        element = self.dtype.split("x")[0]
        value = value if isinstance(value, ir.Expr) else tirx.const(value, element)
        given = str(value.ty.dtype)
        if given.split("x")[0] != element:
            raise ValueError(f"a value of type {given} is written to a buffer of type {self.dtype}")
        self._ib.emit(tirx.BufferStore(self._buffer, value, self._indices(index)))

    def _indices(self, index: Any) -> list[ir.Expr]:
        """An index for each axis; a single one counts through all of them."""
        indices = [*index] if isinstance(index, (tuple, list)) else [index]
        axes = list(self._buffer.shape)
        if len(indices) == 1 and len(axes) != 1:
            rest, indices = indices[0], []
            for extent in reversed(axes):
                indices.insert(0, tirx.indexmod(rest, extent))
                rest = tirx.indexdiv(rest, extent)
        return [_expr(each) for each in indices]


class IRBuilder:
    """Collects the statements of a kernel, scope by scope."""

    def __init__(self) -> None:
        self._scopes: list[list[tirx.Stmt | Around]] = [[]]

    def get(self) -> tirx.Stmt:
        """All statements as one; every scope must have been left."""
        assert len(self._scopes) == 1
        return self._leave()

    def emit(self, stmt: Any) -> None:
        self._scopes[-1].append(tirx.Evaluate(stmt) if isinstance(stmt, ir.Expr) else stmt)

    def scope_attr(self, node: Any, attr_key: str, value: Any) -> None:
        """An attribute of all that follows in this scope."""
        value = _expr(value)
        self._scopes[-1].append(lambda body: tirx.AttrStmt(node, attr_key, value, body))

    def new_scope(self) -> AbstractContextManager[None]:
        return self._scope(lambda body: body)

    @contextmanager
    def for_range(
        self, begin: Any, end: Any, name: str = "i", dtype: str | None = None, kind: str = "serial"
    ) -> Iterator[ir.Expr]:
        begin, end = _expr(begin), _expr(end)
        extent = end if isinstance(begin, tirx.IntImm) and begin.value == 0 else end - begin
        dtype = dtype or str(extent.ty.dtype)
        variable = tirx.Var(name, dtype)
        with self._scope(lambda body: tirx.For(variable, begin.astype(dtype), extent, LOOPS[kind], body)):
            yield variable

    def while_loop(self, condition: ir.Expr) -> AbstractContextManager[None]:
        return self._scope(lambda body: tirx.While(condition, body))

    def if_scope(self, condition: Any) -> AbstractContextManager[None]:
        condition = tirx.const(condition, "bool") if isinstance(condition, bool) else condition
        return self._scope(lambda body: tirx.IfThenElse(condition, body, None))

    def else_scope(self) -> AbstractContextManager[None]:
        """What happens if the condition of the `if_scope` just left does not hold."""
        chosen: Any = self._scopes[-1].pop()
        return self._scope(lambda body: tirx.IfThenElse(chosen.condition, chosen.then_case, body))

    def let(self, name: str, value: ir.Expr) -> ir.Expr:
        variable = tirx.Var(name, str(value.ty.dtype))
        self.emit(tirx.Bind(variable, value))
        return variable

    def allocate(self, dtype: str, shape: Any, name: str = "buf", scope: str = "global") -> BufferVar:
        shape = list(shape) if isinstance(shape, (tuple, list)) else [shape]
        buffer = tirx.decl_buffer(shape, dtype, name, scope=scope, layout=None)
        self.emit(tirx.AllocBuffer(buffer))
        return BufferVar(self, buffer)

    def buffer_ptr(self, buffer: tirx.Buffer) -> BufferVar:
        return BufferVar(self, buffer)

    def view(self, buffer: tirx.Buffer, shape: Sequence[Any]) -> BufferVar:
        """The memory of a buffer as one of another shape."""
        return self.memory_at(buffer.data, shape, str(buffer.dtype), buffer.name)

    def memory_at(self, pointer: ir.Expr, shape: Sequence[Any], dtype: str, name: str) -> BufferVar:
        """The memory at an address."""
        buffer = tirx.decl_buffer(shape, dtype, name, data=pointer, layout=None)
        self.emit(tirx.DeclBuffer(buffer, data=pointer))
        return BufferVar(self, buffer)

    @contextmanager
    def _scope(self, close: Around) -> Iterator[None]:
        self._scopes.append([])
        yield
        self.emit(close(self._leave()))

    def _leave(self) -> tirx.Stmt:
        """The statements of the innermost scope as one."""
        following: list[tirx.Stmt] = []
        for each in reversed(self._scopes.pop()):
            following = [each, *following] if isinstance(each, tirx.Stmt) else [each(_in_order(following))]
        return _in_order(following)


def _in_order(statements: list[tirx.Stmt]) -> tirx.Stmt:
    if len(statements) == 1:
        return statements[0]
    return tirx.SeqStmt(statements) if statements else tirx.Evaluate(tirx.const(0, "int32"))


def _expr(value: Any) -> Any:
    """An expression, of a Python number or the iteration variable of a thread too."""
    if isinstance(value, (bool, int)):
        return tirx.const(value, "int32")
    return value.var if isinstance(value, tirx.IterVar) else value
