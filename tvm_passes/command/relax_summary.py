"""What the passes made of a model of Relax, in a sentence: the first line of `tvm-passes inspect`."""

from __future__ import annotations

from collections import Counter

from topi_ext.batched_nms.op import NAME as NMS
from topi_ext.conv2d_nhwc.op import NAME as CONV2D

from ..relax.graph import Graph, dtype_of, op_name
from ..relax.in_mixed_precision import PRODUCTS
from .history import History
from .work import Work


def sentences(_work: Work, history: History) -> list[str]:
    """One: the NMS that there is, and the types that convolutions and matrix products multiply."""
    values = [value for _, value in Graph(history.module["main"]).bindings]
    suppressing = sum(op_name(value) == NMS for value in values)
    restored = any(step.name == "RestoreBatchedNMS" and step.rewrites for step in history.steps)
    found = [f"{suppressing} NMS{' restored' * restored}" if suppressing else "no NMS"]
    types = Counter(dtype_of(value.args[0]) for value in values if op_name(value) in {CONV2D, *PRODUCTS})
    found += [f"{count} convolutions and products in {dtype}" for dtype, count in types.most_common()]
    text = "; ".join(found)
    return [f"{text[:1].upper()}{text[1:]}."]
