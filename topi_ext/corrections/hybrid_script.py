"""Hybrid script reads constants in the way of Python 3.7, deprecated since 3.8 and gone in 3.14.

Python warns of it at each number in each shape function that is compiled. Importing this module lets the
parser read `ast.Constant`.
"""

from __future__ import annotations

import ast
from typing import Any

import tvm
from tvm.te.hybrid import parser, utils


def _visit_constant(_parser: Any, node: ast.Constant) -> Any:
    """What `visit_NameConstant`, `visit_Str` and `visit_Num` give, to which Python hands constants on."""
    value = node.value
    if value is None or isinstance(value, bool):
        return tvm.runtime.convert(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, (int, float)):
        raise ValueError("The data type should be one of (int, float, bool)")
    return tvm.runtime.const(value, "int32" if isinstance(value, int) else "float32")


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


parser.HybridParser.visit_Constant = _visit_constant
utils.is_docstring = _is_docstring
