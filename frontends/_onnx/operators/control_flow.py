"""If and Loop."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any

import onnx

import topi_ext
from tvm_passes.engine.expressions import type_of

from tvm import relay
from tvm.relay.frontend.common import set_span

from ..._recursion import recursion, with_final_shapes
from ..._slice import late_slice
from ..._types import sizes
from ..describe import describe
from ..imported import Imported
from ..loop_body import (
    captured,
    carry,
    is_read,
    node_count,
    pruned,
    without_inputs_and_initializers,
)
from ..loops import PastedMasks, known_loop
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    opset_of,
    rank_of,
    several,
    sizes_of,
    stock,
)

MOST_UNROLLED = 20_000  # nodes of all rounds
SEQUENCES = (
    "sequences, whose lengths must be known at import: give the inputs fixed sizes, or gather tensors by a "
    "concatenation"
)


def if_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own imports both branches of a constant condition: a dead one may not even type-check."""
    condition = inputs[0]
    if not isinstance(condition, relay.Constant):
        return _both(importer, inputs, attrs)
    then, otherwise = attrs["then_branch"], attrs["else_branch"]
    branch = then if condition.data.numpy().item() else otherwise
    results = _inner(importer, branch, {})
    return several(*results) if len(results) > 1 else results[0]


def _inner(
    importer: ModuleType, graph: onnx.GraphProto, inputs: Mapping[str, relay.Expr]
) -> list[relay.Expr]:
    """The results of a graph inside a node, which may read names from outside."""
    outer = importer.GraphProto.current
    inner = _scope_inside(importer)
    inner._nodes = {**outer._nodes, **inputs}
    with inner:
        result = inner.from_onnx(graph, outer.opset, get_output_expr=True)
    outer._params.update(inner._params)
    return list(result.fields) if len(graph.output) > 1 else [result]


def _scope_inside(importer: ModuleType) -> Any:
    outer = importer.GraphProto.current
    return importer.GraphProto(outer._shape, outer._dtype, outer._freeze_params, outer._op_type_dict)


def _both(importer: ModuleType, inputs: Inputs, attrs: Attrs) -> relay.Expr:
    """TVM's own refuses branches whose results differ in size, and its warning does not name the node."""
    scope = importer.GraphProto.current
    branches = [_inner(importer, attrs[name], {}) for name in ("then_branch", "else_branch")]
    if any(isinstance(result, relay.Tuple) for result in chain(*branches)):
        raise NotImplementedError(f"only the runtime knows its condition, and its branches give {SEQUENCES}")
    condition = relay.reshape(inputs[0], [])
    results = [_of_one_type(scope.place[1], condition, *pair) for pair in zip(*branches)]
    then, otherwise = (pair[0] if len(results) == 1 else relay.Tuple(pair) for pair in zip(*results))
    result = relay.If(condition, then, otherwise)
    scope._nodes.update({var.name_hint: var for var in relay.analysis.free_vars(result)})
    return relay.TupleWrapper(result, len(results)) if len(results) > 1 else result


def _of_one_type(node: onnx.NodeProto, condition: relay.Expr, *branches: relay.Expr) -> list[relay.Expr]:
    """The results of both branches, with one rank, and no sizes in their types that differ."""
    pair = list(branches)
    low, high = sorted((0, 1), key=lambda place: rank_of(pair[place]))
    if rank_of(pair[low]) < rank_of(pair[high]):
        ranks = "has branches of different ranks, the lower of which is broadcast to the higher"
        warnings.warn(f"from_onnx: {describe(node)} {ranks}: check the outputs", stacklevel=2)
        pair[low] = relay.broadcast_to_like(pair[low], pair[high])
    zero, bounds = relay.const(0, "int64"), {}
    for axis, (size, other) in enumerate(zip(*map(sizes_of, pair))):
        if size != other and None not in (size, other):
            # What depends on the condition no pass takes for known.
            bounds[axis] = 0, relay.where(condition, zero, relay.const(other, "int64")), 1
    if bounds:
        pair[1] = late_slice(pair[1], bounds)
    return pair


def loop(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own makes every loop a recursive function; some loops over detections are one operator."""
    scope = importer.GraphProto.current
    graph, node = scope.place
    found = known_loop(graph, node, partial(_imported, scope))
    if found is None:
        return _unrolled_or_as_recursion(importer, inputs, attrs)
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


def _unrolled_or_as_recursion(importer: ModuleType, inputs: Inputs, attrs: Attrs) -> relay.Expr:
    """Sequences, which are tuples, change their length in a loop that is unrolled only."""
    scope = importer.GraphProto.current
    graph, node = scope.place
    loop = pruned(graph, node)
    attrs["body"]  # counts as read
    body, (most, goes_on, *first) = loop.body, [inputs[place] for place in range(len(inputs))]
    kept, names = [first[place] for place in loop.kept], [node.input[2 + place] for place in loop.kept]
    read = [scope.imported(name) for name in captured(body)]
    has_sequences = any(isinstance(value, relay.Tuple) for value in chain(kept, read))
    if has_sequences:
        made = _unrolled(importer, body, most, goes_on, kept)
    else:
        made = _recursive(importer, body, most, goes_on, kept, names)
    scope._nodes.update({var.name_hint: var for var in relay.analysis.free_vars(relay.Tuple(made))})
    results = first + made[len(kept) :]
    for place, result in zip(loop.kept, made):
        results[place] = result
    return several(*results) if len(results) > 1 else results[0]


def _unrolled(
    importer: ModuleType,
    body: onnx.GraphProto,
    most: relay.Expr | None,
    goes_on: relay.Expr | None,
    first: list[relay.Expr],
) -> list[relay.Expr]:
    """The values carried after the last round, and the rows gathered."""
    if not isinstance(most, (relay.Constant, type(None))):
        raise NotImplementedError(f"only the runtime knows how many rounds it has, and it reads {SEQUENCES}")
    rounds, count = None if most is None else int(most.data.numpy().item()), node_count(body)
    parameters = [value.name for value in body.input]
    own = _scope_inside(importer)
    own._parse_graph_initializers(body)
    # Made once, each is one parameter: a node replaces a variable that has no span by one that has.
    weights = {name: set_span(value, name) for name, value in own._nodes.items()}
    body = without_inputs_and_initializers(body)
    going = relay.const(True) if goes_on is None else goes_on
    values = first
    rows: list[list[relay.Expr]] = []
    while rounds is None or len(rows) < rounds:
        going = importer.fold_constant(going)
        if not isinstance(going, relay.Constant):
            raise NotImplementedError(f"only the runtime knows whether it goes on, and it reads {SEQUENCES}")
        if not going.data.numpy().item():
            break
        if len(rows) * count > MOST_UNROLLED:
            raise NotImplementedError(
                f"it reads sequences, and its rounds have more than {MOST_UNROLLED} nodes"
            )
        given = dict(zip(parameters, [relay.const(len(rows), "int64"), going, *values]))
        going, *made = _inner(importer, body, {**weights, **given})
        values = made[: len(first)]
        rows.append(made[len(first) :])
    if not rows and len(body.output) > 1 + len(first):
        raise NotImplementedError("it reads sequences and gathers rows, of which there are none")
    importer.GraphProto.current._params.update(own._params)
    return [*values, *(relay.stack(row, 0) for row in zip(*rows))]


def _recursive(
    importer: ModuleType,
    body: onnx.GraphProto,
    most: relay.Expr | None,
    goes_on: relay.Expr | None,
    first: list[relay.Expr],
    names: list[str],
) -> list[relay.Expr]:
    """A recursive function, which would compute in each round what its body reads from outside.

    So that is carried, too. What a round replaces unread, by more elements, has its final shape before.
    """
    scope = importer.GraphProto.current
    kept, names = [*first], [*names]
    for name in captured(body):
        value = scope.imported(name)
        value = value if value is None else importer.fold_constant(value)
        if value is not None and not isinstance(value, (relay.Constant, relay.Var)):
            carry(body, len(kept), name)
            kept.append(value)
            names.append(name)
    unread = [place for place in range(len(kept)) if not is_read(body, place)]
    parameters = [each.name for each in body.input]
    del body.input[:]

    def import_body(values: Sequence[relay.Expr]) -> list[relay.Expr]:
        return _inner(importer, body, dict(zip(parameters, values)))

    if unread and all(each is None or _is_positive(each) for each in (most, goes_on)):
        kept = with_final_shapes(import_body, kept, unread)
    most, goes_on = (each if each is None else relay.reshape(each, []) for each in (most, goes_on))
    made = recursion(import_body, most, goes_on, kept, names)
    return made[: len(first)] + made[len(kept) :]


def scan(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own fails without a reason where it does not know how many steps there are."""
    of_batch = opset_of(importer) < 9  # then the first input is the lengths
    count, of_state = attrs["num_scan_inputs"], len(attrs["body"].input) - attrs["num_scan_inputs"]
    axes = attrs.get("scan_input_axes") or [0] * count
    for place, axis in enumerate(axes):
        shape = sizes_of(inputs[of_batch + of_state + place])
        if shape[axis] is None or (of_batch and None in shape[:2]):
            steps = f"the number of its steps, which is axis {axis} of its input {of_state + place},"
            raise NotImplementedError(f"{steps} must be known")
    return stock(importer, "Scan")(inputs, attrs, params)


def _is_positive(expr: relay.Expr) -> bool:
    return isinstance(expr, relay.Constant) and bool(expr.data.numpy() > 0)


CONVERTERS: dict[str, Converter] = {"If": if_, "Loop": loop, "Scan": scan}
