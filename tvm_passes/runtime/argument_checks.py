"""Leave of the checks of a kernel's arguments those that can fail between the kernels of a network.

TVM checks ten things of each argument, each with a branch and a text of its own, which takes LLVM as long as
the kernels themselves. Where all that calls a kernel was compiled with it, and what comes from outside
has been checked before, types, devices and addresses are what they were compiled for. Lengths need not be: a
dimension that only the run decides can be another than what two operators agreed on. Nor need types be where
the network's inputs have none that are known, as those of a library of the virtual machine.
"""

from __future__ import annotations

from typing import cast

from tvm import tir

BINDINGS = tir.LetStmt, tir.DeclBuffer, tir.AttrStmt
BODY = "compute_scope"  # the attribute of what follows the checks
OF_LENGTHS, OF_TYPES = ".shape[", ".dtype is expected"


def without_needless_checks(function: tir.PrimFunc, types_are_known: bool = True) -> tir.PrimFunc:
    """`function` is lowered for TVM's packed calls: its body begins with bindings and checks of arguments."""
    name, node = str(function.attrs["global_symbol"]), function.body
    bindings: list[tir.Stmt] = []
    kept: list[tir.PrimExpr] = []
    needed = (OF_LENGTHS,) if types_are_known else (OF_LENGTHS, OF_TYPES)
    while not _is_body(node):
        if isinstance(node, tir.SeqStmt):
            *of_strides, node = node.seq
            if not all(map(_checks_strides, of_strides)):
                return function
            continue
        if isinstance(node, tir.AssertStmt):
            if any(text in str(node.message) for text in needed):
                kept.append(node.condition)
        elif isinstance(node, BINDINGS):
            bindings.append(node)
        else:
            return function
        node = node.body
    if kept:
        what = "shape" if types_are_known else "shape or type"
        text = tir.StringImm(f"{name}: an argument's {what} is not what it was compiled for")
        node = tir.AssertStmt(_all(kept), text, node)
    for binding in reversed(bindings):
        node = _around(binding, node)
    return function.with_body(node)


def _is_body(node: tir.Stmt) -> bool:
    """Whether it is the kernel itself, and `return 0`."""
    first = node.seq[0] if isinstance(node, tir.SeqStmt) else node
    return isinstance(first, tir.AttrStmt) and first.attr_key == BODY


def _checks_strides(node: tir.Stmt) -> bool:
    """Which are null where a tensor is compact, so that a check is in a condition."""
    return isinstance(node, tir.IfThenElse) and isinstance(node.then_case, tir.AssertStmt)


def _all(conditions: list[tir.PrimExpr]) -> tir.PrimExpr:
    return conditions[0] if len(conditions) == 1 else cast(tir.PrimExpr, tir.all(*conditions))


def _around(binding: tir.Stmt, body: tir.Stmt) -> tir.Stmt:
    if isinstance(binding, tir.LetStmt):
        return tir.LetStmt(binding.var, binding.value, body)
    if isinstance(binding, tir.DeclBuffer):
        return tir.DeclBuffer(binding.buffer, body)
    return tir.AttrStmt(binding.node, binding.attr_key, binding.value, body)
