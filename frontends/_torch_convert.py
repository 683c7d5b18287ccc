"""Run TVM's own PyTorch importer over a traced model, with progress, and errors that name the operator."""

from __future__ import annotations

import contextlib
import logging
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

import tvm
from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.relay.frontend.common import set_span

from ._torch_class_loop import name_loops_over_classes
from ._torch_mutation import mutates, refuse_mutation_without_outputs, write_back
from ._torch_trace import TracedModel
from .errors import ImportFailure
from .torch_operators import CONVERTERS, Converter

PROGRESS_AFTER = 2  # seconds
STOCK_LOGGER = "Frontend"
Info = tuple[str, tuple[tuple[int, ...], str]]  # an input's name, shape and dtype


def convert(traced: TracedModel) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """The Relay module and its parameters, as TVM's importer gives them, with the model's own signature."""
    infos = [
        (name, (tuple(tensor.shape), _dtype(tensor)))
        for name, tensor in zip(traced.input_names, traced.inputs)
    ]
    try:
        with _quiet():
            mod, params = _importer(traced.title)(traced.module, infos, default_dtype=_dtype(traced))
    except ImportFailure:
        raise
    except Exception as error:
        raise ImportFailure(f"TVM cannot import {traced.title}: {_reason(error)}") from error
    return _with_signature(_without_unused_types(mod), infos, traced.output_dtypes), params


def _importer(title: str) -> Callable[..., Any]:
    """TVM's importer with our converter, and with `_prepare` in place of its rewriting of aten::copy_.

    It looks both up in its module. A copy of the function with those names changed leaves the module, and so
    every other user of TVM in the process, alone.
    """
    function = stock.from_pytorch
    ours = {
        "PyTorchOpConverter": partial(_Converter, title),
        "_redirect_inplace_output": _prepare,
    }
    return types.FunctionType(
        function.__code__, {**function.__globals__, **ours}, argdefs=function.__defaults__
    )


def _prepare(graph: torch.Graph) -> None:
    """Make of TVM's own copy of the graph what the converter takes."""
    name_loops_over_classes(graph)  # what such a loop mutates stays inside
    refuse_mutation_without_outputs(graph)


class _Converter(Converter):
    """The converter, which says how far it is and where it fails."""

    def __init__(self, title: str, *args: Any) -> None:
        super().__init__(CONVERTERS, *args)
        self.title = title

    def report_missing_conversion(self, op_names: Iterable[str]) -> None:
        try:
            super().report_missing_conversion(op_names)
        except NotImplementedError as error:
            raise ImportFailure(f"TVM cannot import {self.title}: {error}") from error

    def convert_operators(
        self, operators: list[tuple[str, torch.Node]], outputs: Any, ret_names: list[str]
    ) -> Any:
        outermost = not self.current_op
        if outermost:
            outputs = _with_spans(outputs)
        operators = [item for item in operators if not _take_list(*item, outputs)]
        with tqdm(
            self._with_mutation(operators, outputs, outermost),
            desc=f"Importing {self.title}",
            total=len(operators),
            unit="op",
            delay=PROGRESS_AFTER,
            leave=False,
            disable=None if outermost else True,  # None: where stderr is no terminal
        ) as progress:
            try:
                return super().convert_operators(progress, outputs, ret_names)
            except ImportFailure:
                raise
            except Exception as error:
                where = _place(self.current_op[-1]) if self.current_op else "its outputs"
                raise ImportFailure(
                    f"TVM cannot import {self.title}, at {where}: {_reason(error)}"
                ) from error

    def _with_mutation(
        self, operators: list[tuple[str, torch.Node]], outputs: Any, outermost: bool
    ) -> Iterator[tuple[str, torch.Node]]:
        """The operators, and after each, when it is converted, what it changes beside its own output."""
        before = set() if outermost else set(outputs)
        for name, node in operators:
            yield name, node
            if mutates(node):
                try:
                    write_back(self, node, outputs, before)
                except ImportFailure as error:
                    raise ImportFailure(f"cannot import {self.title}, at {_place(node)}: {error}") from error


def _with_spans(outputs: dict[str, Any]) -> dict[str, Any]:
    """What the converter begins with. Filling spans, TVM makes another variable of one that has none."""
    spanned = {
        id(value): set_span(value, value.name_hint)
        for value in outputs.values()
        if isinstance(value, relay.Var) and not value.span
    }
    return {name: spanned.get(id(value), value) for name, value in outputs.items()}


def _take_list(name: str, node: torch.Node, outputs: Any) -> bool:
    """Lists of numbers that are one constant, which TVM's converter takes only where they are constructed."""
    constant_list = node.kind() == "prim::Constant" and node.output().type().kind() == "ListType"
    if constant_list:
        outputs[name] = node.output().toIValue()
    return constant_list


def _place(node: torch.Node) -> str:
    return f"{node.kind()} ({str(node.sourceRange()).splitlines()[0].strip()})"


def _reason(error: Exception) -> str:
    """The kind of error and what it says; what TVM says begins with pages of a C++ stack."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1] if 'Traceback' in lines[0] else str(error)}"


def _without_unused_types(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM adds the types of lists and trees to every module."""
    data = []
    relay.analysis.post_order_visit(
        mod["main"].body,
        lambda node: data.append(node) if isinstance(node, (relay.Match, tvm.ir.Constructor)) else None,
    )
    return mod if data or len(mod.functions) > 1 else tvm.IRModule(mod.functions)


def _with_signature(mod: tvm.IRModule, infos: list[Info], output_dtypes: tuple[str, ...]) -> tvm.IRModule:
    """Every input is a parameter, also one that is not used, and every output has the dtype it has in torch.

    TVM drops the former, and gives indices as int32.
    """
    main = relay.transform.InferType()(mod)["main"]
    used = {var.name_hint: var for var in main.params}
    inputs = [
        used.pop(name, None) or relay.var(name, shape=shape, dtype=dtype) for name, (shape, dtype) in infos
    ]
    outputs = [_cast(output, dtype) for output, dtype in zip(_fields(main.body), output_dtypes)]
    body = relay.Tuple(outputs) if len(outputs) > 1 else outputs[0]
    mod["main"] = relay.Function([*inputs, *used.values()], body)
    return mod


def _cast(output: relay.Expr, dtype: str) -> relay.Expr:
    if output.checked_type.dtype == dtype:
        return output
    cast = relay.cast(output, dtype)
    return set_span(cast, output.span) if output.span else cast


def _fields(body: relay.Expr) -> list[relay.Expr]:
    return list(body.fields) if isinstance(body, relay.Tuple) else [body]


def _dtype(typed: torch.Tensor | TracedModel) -> str:
    """What Relay calls the dtype of a tensor or a traced model."""
    return str(typed.dtype).replace("torch.", "")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the importer's notes on TorchScript, which the user of a model can do nothing about."""
    logger = logging.getLogger(STOCK_LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
