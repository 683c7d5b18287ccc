"""If and Loop."""

from __future__ import annotations

import warnings
from types import ModuleType

from tvm import relay

from ..loop_body import grows, keep_shape, pruned
from ..loops import known_loop
from ..schema import element_type
from ..scope import describe
from ._common import Attrs, Converter, Inputs, Params, dtype_of, rank_of, several, sizes_of, stock

DIFFERENT_RANKS = "If statement produced outputs with different rank"


def if_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own imports both branches of a constant condition: a dead one may not even type-check."""
    condition = inputs[0]
    if not isinstance(condition, relay.Constant):
        return _both(importer, inputs, attrs, params)
    then, otherwise = attrs["then_branch"], attrs["else_branch"]
    branch = then if condition.data.numpy().item() else otherwise
    outer = importer.GraphProto.current
    inner = importer.GraphProto(outer._shape, outer._dtype, outer._freeze_params, outer._op_type_dict)
    inner._nodes = outer._nodes.copy()
    with inner:
        result = inner.from_onnx(branch, outer.opset, get_output_expr=True)
    outer._params.update(inner._params)
    return relay.TupleWrapper(result, len(branch.output)) if len(branch.output) > 1 else result


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
    found = known_loop(graph, node, scope.imported)
    if found is None:
        return _recursive(importer, inputs, attrs, params)
    attrs["body"], list(inputs)  # count as read, since they were read as terms
    return several(*found) if len(found) > 1 else found[0]


def _recursive(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own, which needs a scalar as the condition, and types of what is carried that stay the same."""
    graph, node = importer.GraphProto.current.place
    loop = pruned(graph, node)
    body, (most, goes_on, *first) = loop.body, list(inputs)
    kept = [first[place] for place in loop.kept]
    for place, initial in enumerate(kept, start=1):
        type_ = body.input[1 + place].type.tensor_type
        if not type_.elem_type:  # the types may be omitted
            type_.elem_type = element_type(dtype_of(initial))
        if set(sizes_of(initial)) <= {1}:
            if grows(body.output[place]):
                name = node.input[2 + loop.kept[place - 1]]
                raise NotImplementedError(
                    f"it carries '{name}', which has one element before the first round and may have more "
                    "after it: give it its final shape before the loop"
                )
            if not any(each.dim_param for each in body.output[place].type.tensor_type.shape.dim):
                keep_shape(body, place, [1] * rank_of(initial))
    attrs["body"] = body
    scalars = [each if each is None else relay.reshape(each, []) for each in (most, goes_on)]
    made = stock(importer, "Loop")([*scalars, *kept], attrs, params)
    made = list(made) if isinstance(made, relay.TupleWrapper) else [made]
    results = first + made[len(kept) :]
    for place, result in zip(loop.kept, made):
        results[place] = result
    return several(*results) if len(results) > 1 else results[0]


CONVERTERS: dict[str, Converter] = {"If": if_, "Loop": loop}
