"""The name of a node in error messages."""

from __future__ import annotations

import onnx


def describe(node: onnx.NodeProto) -> str:
    """The name of a node in error messages."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"the node '{node.name or next(filter(None, node.output), '')}' ({operator})"
