"""Hybrid script reads constants as in Python 3.7, which is deprecated since 3.8 and gone in 3.14.

Python warns at each number in each shape function that is compiled. Importing this module lets the parser
read `ast.Constant`.
"""

from __future__ import annotations

import ast
from typing import Any

import tvm
from tvm.te.hybrid import parser, utils


def _visit_constant(_parser: Any, node: ast.Constant) -> Any:
    """Do what `visit_NameConstant`, `visit_Str` and `visit_Num` do, to which Python forwards constants."""
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
