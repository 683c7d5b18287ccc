"""If and Loop."""

from __future__ import annotations

import warnings
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import onnx

import topi_ext
from tvm_passes.engine.expressions import type_of

from tvm import relay

from ..._fold import constant
from ..._types import sizes
from ..describe import describe
from ..imported import Imported
from ..loop_body import captured, carry, grows, is_read, keep_shape, pruned
from ..loops import PastedMasks, known_loop
from ..schema import element_type
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    dtype_of,
    rank_of,
    several,
    sizes_of,
    stock,
)

DIFFERENT_RANKS = "If statement produced outputs with different rank"


def if_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own imports both branches of a constant condition: a dead one may not even type-check."""
    condition = inputs[0]
    if not isinstance(condition, relay.Constant):
        return _both(importer, inputs, attrs, params)
    then, otherwise = attrs["then_branch"], attrs["else_branch"]
    branch = then if condition.data.numpy().item() else otherwise
    result = _inner(importer, branch, {})
    return relay.TupleWrapper(result, len(branch.output)) if len(branch.output) > 1 else result


def _inner(importer: ModuleType, graph: onnx.GraphProto, inputs: dict[str, relay.Expr]) -> relay.Expr:
    """The results of a graph inside a node, which may read names from outside."""
    outer = importer.GraphProto.current
    inner = importer.GraphProto(outer._shape, outer._dtype, outer._freeze_params, outer._op_type_dict)
    inner._nodes = {**outer._nodes, **inputs}
    with inner:
        result = inner.from_onnx(graph, outer.opset, get_output_expr=True)
    outer._params.update(inner._params)
    return result


def _both(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """Like TVM's own, whose warning does not name the node."""
    _, node = importer.GraphProto.current.place
    with warnings.catch_warnings(record=True) as recorded:
        warnings.filterwarnings("always", message=DIFFERENT_RANKS)
        result = importer.If._impl_v1(inputs, attrs, params)
    for told in recorded:
        if str(told.message).startswith(DIFFERENT_RANKS):
            ranks = "has branches of different ranks, the lower of which is broadcast to the higher"
            warnings.warn(f"from_onnx: {describe(node)} {ranks}: check the outputs", stacklevel=2)
        else:
            warnings.showwarning(told.message, told.category, told.filename, told.lineno)
    return result


def loop(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own makes every loop a recursive function; some loops over detections are one operator."""
    scope = importer.GraphProto.current
    graph, node = scope.place
    found = known_loop(graph, node, partial(_imported, scope))
    if found is None:
        return _recursive(importer, inputs, attrs, params)
    attrs["body"], list(inputs)  # count as read, since they were read as terms
    if isinstance(found, PastedMasks):
        return relay.squeeze(topi_ext.paste_masks(*found), [1])
    places, scores = topi_ext.heatmaps_to_keypoints(*found)
    return several(relay.transpose(places, [0, 2, 1]), scores)


def _imported(scope: Any, name: str | None) -> Imported | None:
    expr = scope.imported(name)
    type_ = None if expr is None else type_of(expr)
    if not isinstance(type_, relay.TensorType):
        return None
    array = expr.data.numpy if isinstance(expr, relay.Constant) else None
    return Imported(expr, type_.dtype, sizes(type_), array)


def _recursive(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own, which needs a scalar as the condition, and types of what is carried that stay the same.

    It computes in each iteration what the body reads from outside, unless that is carried, too.
    """
    scope = importer.GraphProto.current
    graph, node = scope.place
    loop = pruned(graph, node)
    body, (most, goes_on, *first) = loop.body, list(inputs)
    kept = [first[place] for place in loop.kept]
    for name in captured(body):
        value = scope.imported(name)
        value = value if value is None else importer.fold_constant(value)
        if value is not None and not isinstance(value, (relay.Constant, relay.Var)):
            carry(body, len(kept), name)
            kept.append(value)
    later = []  # the carried values that get their shape in the first iteration
    for place, initial in enumerate(kept):
        type_ = body.input[2 + place].type.tensor_type
        if not type_.elem_type:  # the types may be omitted
            type_.elem_type = element_type(dtype_of(initial))
        if set(sizes_of(initial)) <= {1} and body.input[2 + place].name != body.output[1 + place].name:
            if grows(body.output[1 + place]):
                later.append(place)
            elif not any(each.dim_param for each in body.output[1 + place].type.tensor_type.shape.dim):
                keep_shape(body, 1 + place, [1] * rank_of(initial))
    if later:
        names = [node.input[2 + loop.kept[place]] for place in later]
        for place, value in zip(later, _of_final_shape(importer, body, [most, goes_on, *kept], later, names)):
            kept[place] = value
    attrs["body"] = body
    scalars = [each if each is None else relay.reshape(each, []) for each in (most, goes_on)]
    made = stock(importer, "Loop")([*scalars, *kept], attrs, params)
    made = list(made) if isinstance(made, relay.TupleWrapper) else [made]
    results = first + made[len(kept) :]
    for place, result in zip(loop.kept, made):
        results[place] = result
    return several(*results) if len(results) > 1 else results[0]


def _of_final_shape(
    importer: ModuleType,
    body: onnx.GraphProto,
    given: list[relay.Expr | None],
    later: list[int],
    names: list[str],
) -> list[relay.Expr]:
    """Zeros for carried values of one element that an iteration replaces unread, by more elements."""
    most, goes_on, *_ = given
    runs = all(
        each is None or (isinstance(each, relay.Constant) and each.data.numpy() > 0)
        for each in (most, goes_on)
    )
    for place, name in zip(later, names):
        if is_read(body, place) or not runs:
            raise NotImplementedError(
                f"it carries '{name}', which has one element before the first round and may have more "
                "after it: give it its final shape before the loop"
            )
    once = onnx.GraphProto()
    once.CopyFrom(body)
    del once.input[:]
    types = [
        relay.TensorType((), "int64"),
        relay.TensorType((), "bool"),
        *(type_of(each) for each in given[2:]),
    ]
    variables = {each.name: relay.var(each.name, type_) for each, type_ in zip(body.input, types)}
    results = _inner(importer, once, variables)
    shapes = [
        all_sizes_of(results[1 + place], f"the carried value '{name}'") for place, name in zip(later, names)
    ]
    return [constant(np.zeros(shape, dtype_of(given[2 + place]))) for place, shape in zip(later, shapes)]


CONVERTERS: dict[str, Converter] = {"If": if_, "Loop": loop}
