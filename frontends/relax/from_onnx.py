"""Imports ONNX models into Relax."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tvm_passes.progress import progress_bar

import tvm
from tvm import relax, tirx

from .._onnx.check import check_model, opset_of
from .._onnx.interface import check_outputs, inline_functions, input_shapes, tvm_dtype
from .._onnx.load import load_model
from .._onnx.order import in_order
from ..errors import ImportFailure, gist
from ._onnx.assumptions import Assumed
from ._onnx.counts import has_counts, is_symbolic
from ._onnx.graph import Graph
from ._onnx.node import constant, shape_of
from ._onnx.rows import Rows
from ._onnx.sizes import INSTEAD, SizesMatter, within

NUMBER = "num_detections"
MIN_OPSET = 13  # axes are inputs since then


def from_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tvm.IRModule:
    """Import an ONNX model into Relax.

    Convention
    ----------
    The inputs of `main` have the names of the model's, and `main` returns the model's outputs: one alone is
    no tuple. The function attribute `output_names` has their names. The weights are constants.

    Sizes that the model leaves open are variables: those that it gives one name are one. A batch may always
    be open in what computes each image by itself, the size of images where it is convolved, pooled, padded
    and resized. Where what is computed would be right for some sizes only,
    multiples of some number, or those of at least some, the sizes are compared as it runs, and others fail
    then.

    Nodes whose inputs are known at import are computed then, so loops and branches may depend on shapes. Each
    operator that is converted has been compared with ONNX Runtime, and types and shapes of each result with
    those that ONNX infers; all other operators are refused. Where a value is not a number (NaN), maxima,
    minima and bounds may be others than ONNX's.

    Where data decide how many rows there are, as in detectors, their number is fixed. Those that are there
    come first in outputs, in ONNX's order, the others are zeros, and `num_detections`, int32, comes last. The
    function attribute `padded_rows` says this to `tvm_passes.runtime`, which cuts them with `cut=True`.

    Parameters
    ----------
    model : str, os.PathLike or onnx.ModelProto
        The path of a model, whose weights may be in files beside it, or the model itself, in opset 13 or
        later. It is not changed.
    shapes : dict of str to tuple, optional
        The shapes of inputs, by name, where the model does not give them, or to change them. None is a size
        that only the run knows.

    Returns
    -------
    mod : tvm.IRModule
        Compile it with the target in scope: `with target: tvm.compile(mod, target=target)`.

    Raises
    ------
    ImportFailure
        If the model cannot be read, is not complete, has an operator that is not converted, or a shape, a
        branch or the length of a loop that depends on data in another way than those of detectors do, or on
        an open size.
    """
    model = in_order(load_model(model))
    check_model(model)
    model = inline_functions(model)
    opset = opset_of(model)
    if opset < MIN_OPSET:
        raise ImportFailure(
            f"the model is of opset {opset}: export it for {MIN_OPSET} or later, or convert it by "
            "onnx.version_converter"
        )
    check_outputs(model.graph)
    inputs = _with_variables(model.graph, input_shapes(model.graph, shapes or {}))
    variables = [size for shape in inputs.values() for size in shape if isinstance(size, tirx.Var)]
    assumed = Assumed.nothing(variables)
    while True:
        try:
            with within(assumed.ranges):
                return _converted(model.graph, opset, inputs, assumed)
        except SizesMatter as failure:
            more = assumed.refined(failure.unknown)
            if more is None:
                raise
            assumed = more
        except ImportFailure:
            raise
        except Exception as error:
            raise ImportFailure(f"the model cannot be converted: {gist(error)}") from error


def _with_variables(
    graph: onnx.GraphProto, inputs: dict[str, list[int | None]]
) -> dict[str, list[int | tirx.Var]]:
    """Shapes with a variable for each size that only the run knows, one for those of one name."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    variables: dict[str, tirx.Var] = {}

    def variable(name: str, axis: int) -> tirx.Var:
        of_model = dims[name][axis].dim_param if axis < len(dims[name]) else ""
        called = of_model or f"{name}_{axis}"
        return variables.setdefault(called, tirx.Var(re.sub(r"\W", "_", called), "int64"))

    return {
        name: [variable(name, axis) if size is None else size for axis, size in enumerate(shape)]
        for name, shape in inputs.items()
    }


def _converted(
    graph: onnx.GraphProto, opset: int, inputs: dict[str, list[int | tirx.Var]], assumed: Assumed
) -> tvm.IRModule:
    declared = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    parameters = [
        relax.Var(name, relax.TensorType(shape, tvm_dtype(declared[name]))) for name, shape in inputs.items()
    ]
    builder = relax.BlockBuilder()
    failure = None
    with builder.function("main", parameters):
        try:
            with builder.dataflow(), progress_bar("Importing ONNX", len(graph.node)) as advance:
                values = Graph(opset, builder, advance)
                for name, parameter in zip(inputs, assumed.checked(builder, parameters)):
                    values.set(name, parameter)
                values.convert(graph)
                outputs, attrs = _outputs(values, [output.name for output in graph.output])
                result = builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        except Exception as error:  # the function has to end: TVM prints a warning about one that does not
            failure, result = error, relax.Tuple([])
        builder.emit_func_output(result)
    if failure is not None:
        raise failure
    mod = builder.get()
    mod["main"] = mod["main"].with_attrs(attrs)
    return mod


def _outputs(values: Graph, names: list[str]) -> tuple[list[relax.Expr], dict[str, Any]]:
    """The results of the model, with the number of rows if there are any, and the attributes that say so."""
    for name in names:
        if has_counts(values.values[name]):
            raise ImportFailure(f"the output '{name}' is how many rows there are, which num_detections says")
        if is_symbolic(values.values[name]):
            raise ImportFailure(f"the output '{name}' is a size that only the run knows: {INSTEAD}")
    outputs = [values.expression(values.values[name]) for name in names]
    rows = [values.rows.get(name) for name in names]
    selections = list(dict.fromkeys(each.of for each in rows if each is not None))
    if not selections:
        return outputs, {"output_names": names}
    if len(selections) > 1:
        raise ImportFailure(
            "the outputs have several numbers of rows that depend on data, and one can be counted"
        )
    (selection,) = selections
    if selection.count is None or any(each.places_in for each in rows if each is not None):
        raise ImportFailure(
            "the outputs have rows that a mask selects, or their numbers: only the best k, and what "
            "NonMaxSuppression keeps, come first"
        )
    if NUMBER in names:
        raise ImportFailure(f"an output has the name {NUMBER}, which the number of rows gets: rename it")
    for name, output, each in zip(names, outputs, rows):
        if each is not None and any(size != 1 for size in shape_of(output)[: each.axis]):
            raise ImportFailure(
                f"the output '{name}' has a number of rows that depends on data along axis {each.axis}: "
                "export it with this axis in front"
            )
    filled = [
        output if each is None else _filled(values.builder, output, each)
        for output, each in zip(outputs, rows)
    ]
    padded = [[] if each is None else [each.axis, 0] for each in rows]
    return [*filled, selection.count], {"output_names": [*names, NUMBER], "padded_rows": padded}


def _filled(builder: relax.BlockBuilder, output: relax.Expr, rows: Rows) -> relax.Expr:
    """Zeros in place of rows that are not there."""
    shape, dtype = shape_of(output), str(output.ty.dtype.dtype)
    zero = constant(np.zeros((), dtype))
    return builder.emit(relax.op.where(rows.kept_of(len(shape)), output, zero))
