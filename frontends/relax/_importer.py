"""TVM's importer, each step of which is compared with what torch says of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map
from tvm_ffi import structural_equal

from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..errors import ImportFailure, gist
from . import _converters, _operators

Converter = Callable[[fx.Node], Any]
aten = torch.ops.aten
# Reductions of nothing, of which TVM divides by 0, or leaves what was in memory.
OF_NOTHING = {
    **dict.fromkeys((aten.mean.default, aten.mean.dim, aten.var.correction), math.nan),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), False),
}


class Importer(ExportedProgramImporter):
    """Refuses where the result of an operator would have another shape or type than in torch."""

    def create_convert_map(self) -> dict[str, Converter]:
        converters = dict(super().create_convert_map())
        for name in _converters.WRONG:
            del converters[name]
        ours = {**_operators.converters(), **_converters.converters()}
        converters |= {name: self._bound(convert) for name, convert in ours.items()}
        return {name: self._compared(convert) for name, convert in converters.items()}

    def _check_unsupported_func_type(self, nodes: list[fx.Node]) -> None:
        """TVM's own lists bare names."""
        missing = [
            node
            for node in nodes
            if node.op == "call_function" and getattr(node.target, "__name__", "") not in self.convert_map
        ]
        for node in missing:
            tags = getattr(node.target, "tags", ())
            if torch.Tag.nondeterministic_seeded in tags:
                raise ImportFailure(f"{named(node)} draws random values: make them an input of the model")
            if torch.Tag.dynamic_output_shape in tags:
                raise ImportFailure(
                    f"the shape of {named(node)} depends on data, and all shapes must be fixed: leave it to "
                    "torch, behind the network, or keep all elements and which of them are meant"
                )
        if missing:
            raise ImportFailure(
                f"Relax has no equivalent of {', '.join(sorted(map(named, missing)))}: leave it to torch, "
                "before or behind the network, or write it by other operators"
            )

    def _bound(self, convert: Callable[[fx.Node, Importer], Any]) -> Converter:
        return lambda node: convert(node, self)

    def _compared(self, convert: Converter) -> Converter:
        def compared(node: fx.Node) -> Any:
            expected: Any = node.meta.get("val")
            if _is_empty(expected):  # for many operators TVM has no kernel then
                return tree_map(self._filled, expected)
            if node.target in OF_NOTHING and _is_empty([each.meta["val"] for each in node.all_input_nodes]):
                return self._filled(expected, OF_NOTHING[node.target])
            try:
                found = convert(node)
            except ImportFailure:
                raise
            except Exception as error:
                _check_fixed(node, expected)
                raise ImportFailure(f"Relax has no equivalent of {named(node)}: {gist(error)}") from error
            _check_fixed(node, expected)
            if isinstance(expected, torch.Tensor):  # results of an operator with many are compared one by one
                found = self.block_builder.normalize(found)
                _check_type(node, found, self._type_of(expected))
            return found

        return compared

    def _filled(self, value: torch.Tensor, number: float = 0) -> relax.Expr:
        filling = relax.const(number, self._convert_data_type(value.dtype))
        return self.block_builder.emit(relax.op.full(list(value.shape), filling))

    def _type_of(self, value: torch.Tensor) -> relax.TensorType:
        return relax.TensorType(list(value.shape), self._convert_data_type(value.dtype))


def _is_empty(value: Any) -> bool:
    """Whether it is tensors without elements, of a known shape."""
    values = tree_leaves(value)
    return bool(values) and all(
        isinstance(each, torch.Tensor) and all(isinstance(n, int) for n in each.shape) and 0 in each.shape
        for each in values
    )


def named(node: fx.Node) -> str:
    return f"{node._pretty_print_target(node.target)} ({node.name})"


def _check_fixed(node: fx.Node, value: Any) -> None:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise ImportFailure(f"{named(node)} makes a number of data: keep it a tensor")
    if isinstance(value, torch.Tensor) and not all(isinstance(extent, int) for extent in value.shape):
        raise ImportFailure(f"the shape of {named(node)} depends on data, and all shapes must be fixed")


def _check_type(node: fx.Node, found: Any, expected: relax.TensorType) -> None:
    if not structural_equal(found.ty, expected):
        raise ImportFailure(f"TVM would compute {named(node)} as {found.ty}, and torch computes {expected}")
