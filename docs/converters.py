"""The page about the frontends' converters: which are TVM's own, which are this project's, and why."""

import functools
import inspect
import re

from frontends._onnx import importer as _onnx_importer
from frontends._onnx import operators as onnx_operators
from frontends._pytorch import operators as torch_operators

OPSET = 18  # TVM's table of ONNX operators is the same for all


def page():
    """The text of docs/converters.md."""
    parts = [
        "# Converters of the frontends",
        "Written by `python -m docs.generate` from the converters' tables and the first sentences of their "
        "docstrings. An operator that is not listed as ours is converted by TVM's own converter, if TVM "
        "has one.",
        "## ONNX",
        _table(onnx_operators.CONVERTERS),
        "TVM's own converters serve " + _listed(_stock_of_onnx()) + ".",
        "## PyTorch",
        _table(torch_operators.CONVERTERS),
    ]
    return "\n\n".join(parts) + "\n"


def _table(converters):
    rows = [f"| `{name}` | {_reason(converters[name])} |" for name in sorted(converters)]
    return "\n".join(["| operator | why it is ours |", "|---|---|", *rows])


def _reason(convert):
    while isinstance(convert, functools.partial):
        convert = convert.func
    described = " ".join((inspect.getdoc(convert) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) ", described)[0]


def _stock_of_onnx():
    names = _onnx_importer.load_importer()._get_convert_map(OPSET)
    return sorted(name for name in names if name not in onnx_operators.CONVERTERS)


def _listed(names):
    return ", ".join(f"`{name}`" for name in names)
