"""TVM's importer, each step of which is compared with what torch says of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map
from tvm_ffi import structural_equal

from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..errors import ImportFailure, gist
from . import _converters, _operators
from ._onnx.node import shape_of
from ._onnx.sizes import is_same, size_of
from ._symbols import SYMBOLIC, Symbols

Converter = Callable[[fx.Node], Any]
aten = torch.ops.aten
ASKS_OF_SIZES = {
    *(aten._assert_scalar.default, aten.sym_constrain_range.default),
    aten.sym_constrain_range_for_size.default,
}
# ConvertLayout infers the shapes of these anew, and fails where it knows less of open sizes than before.
FORGOTTEN = {aten.cat.default, aten.index.Tensor, aten.slice.Tensor}
# Reductions of nothing, of which TVM divides by 0, or leaves what was in memory.
OF_NOTHING = {
    **dict.fromkeys((aten.mean.default, aten.mean.dim, aten.var.correction), math.nan),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), False),
}


class Importer(ExportedProgramImporter):
    """Refuses where the result of an operator would have another shape or type than in torch."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self.symbols = Symbols(program)

    def create_input_vars(self, exported_program: ExportedProgram) -> Any:
        """With variables for open sizes."""
        weights, inputs, _ = super().create_input_vars(exported_program)
        inputs = {
            name: relax.Var(name, relax.TensorType(shape, inputs[name].ty.dtype))
            for name, shape in self.symbols.inputs.items()
        }
        return weights, inputs, {}

    def _translate_fx_graph(
        self, graph_module: Any, nodes: Any, inputs_vars: dict[str, relax.Var], custom_ops: Any = None
    ) -> Any:
        names = [name for name in self.symbols.inputs if name in inputs_vars]
        if names:  # it is no branch of torch.cond
            checked = self.symbols.checked(self.block_builder, [inputs_vars[name] for name in names])
            inputs_vars = {**inputs_vars, **dict(zip(names, checked))}
        return super()._translate_fx_graph(graph_module, nodes, inputs_vars, custom_ops)

    def _retrieve_args(self, node: Any) -> Any:
        return self.symbols.expression(node) if isinstance(node, SYMBOLIC) else super()._retrieve_args(node)

    def create_convert_map(self) -> dict[str, Converter]:
        converters = dict(super().create_convert_map())
        for name in _converters.WRONG:
            del converters[name]
        ours = {**_operators.converters(), **_converters.converters()}
        converters |= {name: self._bound(convert) for name, convert in ours.items()}
        return {name: self._compared(convert) for name, convert in converters.items()}

    def _check_unsupported_func_type(self, nodes: list[fx.Node]) -> None:
        """TVM's own lists bare names; those of sizes alone have no operators in the graph."""
        for node in nodes:
            if node.op == "call_function" and self._is_of_sizes(node):
                self.convert_map.setdefault(
                    getattr(node.target, "__name__", ""), self._compared(lambda _: None)
                )
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
            if self._is_of_sizes(node):
                is_number = isinstance(expected, (torch.SymInt, torch.SymFloat))
                return self.symbols.expression(expected) if is_number else None
            if _is_empty(expected):  # for many operators TVM has no kernel then
                return tree_map(self._filled, expected)
            if node.target in OF_NOTHING and _is_empty([each.meta["val"] for each in node.all_input_nodes]):
                return self._filled(expected, OF_NOTHING[node.target])
            asked = self.symbols.count_asked()
            try:
                found = convert(node)
            except ImportFailure:
                raise
            except Exception as error:
                self._check_known(node, expected)
                raise ImportFailure(f"Relax has no equivalent of {named(node)}: {gist(error)}") from error
            self._check_known(node, expected)
            if self.symbols.count_asked() > asked:  # and took the answer for the examples as that for all
                raise ImportFailure(f"{named(node)} is converted for known sizes only: fix them")
            if isinstance(expected, torch.Tensor):  # results of an operator with many are compared one by one
                found = self.block_builder.normalize(found)
                return self._of_type(node, found, self._type_of(expected))
            return found

        return compared

    def _is_of_sizes(self, node: fx.Node) -> bool:
        """Whether it is a size, or what is asked of sizes, which is compared at once."""
        value = node.meta.get("val")
        if node.target in ASKS_OF_SIZES:
            return all(isinstance(each, fx.Node) and self._is_of_sizes(each) for each in node.args[:1])
        return isinstance(value, SYMBOLIC) and self.symbols.are_known(value)

    def _check_known(self, node: fx.Node, value: Any) -> None:
        if isinstance(value, SYMBOLIC):
            raise ImportFailure(
                f"{named(node)} makes a number of "
                + ("open sizes: fix them" if self.symbols.are_known(value) else "data: keep it a tensor")
            )
        if isinstance(value, torch.Tensor) and not all(
            isinstance(extent, int) or self.symbols.are_known(extent) for extent in value.shape
        ):
            raise ImportFailure(f"the shape of {named(node)} depends on data, and all shapes must be fixed")

    def _of_type(self, node: fx.Node, found: Any, expected: relax.TensorType) -> Any:
        """With the shape that torch says, of which Relax may know less where sizes are open."""
        is_open = not all(isinstance(extent, tirx.IntImm) for extent in expected.shape)
        if structural_equal(found.ty, expected) and not (is_open and node.target in FORGOTTEN):
            return found
        if not is_open or found.ty.dtype != expected.dtype or found.ty.ndim != expected.ndim:
            raise ImportFailure(
                f"TVM would compute {named(node)} as {found.ty}, and torch computes {expected}"
            )
        if all(map(is_same, shape_of(found), map(size_of, expected.shape))):
            return self.block_builder.emit(relax.op.reshape(found, expected.shape))
        return self.block_builder.match_cast(found, expected)

    def _filled(self, value: torch.Tensor, number: float = 0) -> relax.Expr:
        filling = relax.const(number, self._convert_data_type(value.dtype))
        return self.block_builder.emit(relax.op.full(list(value.shape), filling))

    def _type_of(self, value: torch.Tensor) -> relax.TensorType:
        shape = [self.symbols.expression(extent) for extent in value.shape]
        return relax.TensorType(shape, self._convert_data_type(value.dtype))


def _is_empty(value: Any) -> bool:
    """Whether it is tensors without elements, of a known shape."""
    values = tree_leaves(value)
    return bool(values) and all(
        isinstance(each, torch.Tensor) and all(isinstance(n, int) for n in each.shape) and 0 in each.shape
        for each in values
    )


def named(node: fx.Node) -> str:
    return f"{node._pretty_print_target(node.target)} ({node.name})"
