"""The table of operators: each column against what TVM computes, and what the table does not know."""

import numpy as np
import pytest

import topi_ext
from tests.analysis.test_evaluate import calls
from tests.helpers import module, run
from tvm_passes import FoldPreNMSFilter
from tvm_passes.analysis import operators
from tvm_passes.analysis.evaluate import TABLE, apply, evaluate
from tvm_passes.analysis.filters import mask_of_rows
from tvm_passes.analysis.limits import limits, never_negative
from tvm_passes.analysis.operators import (
    OPERATORS,
    Elements,
    Operator,
    Rows,
    computes_along,
    known_of,
    reduced_axes,
)
from tvm_passes.analysis.ranges import Limits
from tvm_passes.analysis.row_by_row import before_taking
from tvm_passes.engine import Graph

import tvm
from tvm import relay


def typed(expr):
    """An expression, with the types of all that is below it."""
    function = relay.Function(relay.analysis.free_vars(expr), expr)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"].body


NOTHING_KNOWN = __file__.replace("test_operators.py", "nothing_known.txt")
OTHER_DIALECTS = ("annotation.", "contrib.", "memory.", "parser.", "relax.", "relay.", "tir.", "tl.", "vm.")


def relay_operators():
    names = map(str, tvm.get_global_func("ir.ListOpNames")())
    return sorted(name for name in names if not name.startswith(OTHER_DIALECTS))


def test_what_nothing_is_known_of():
    """All of TVM's Relay operators: what is in the table, and the others by name."""
    unknown = [name for name in relay_operators() if name not in OPERATORS]
    with open(NOTHING_KNOWN) as file:
        listed = file.read().split()
    assert unknown == listed, f"{NOTHING_KNOWN} is another list"
    assert set(OPERATORS) <= set(relay_operators())


def test_what_works_element_by_element_is_fused_as_such():
    for name, known in OPERATORS.items():
        if known.elements is Elements.EACH:
            pattern = relay.op.get(name).get_attr("TOpPattern")
            assert pattern is not None and pattern <= relay.op.OpPattern.BROADCAST, name


def test_elements_are_where_the_table_says():
    seen = set()
    for expr in calls():
        call = expr.tuple_value if isinstance(expr, relay.TupleGetItem) else expr
        known, first = known_of(call), call.args[0] if call.args else None
        if known.elements in (None, Elements.EACH):
            continue
        seen.add(call.op.name)
        sources = first.fields if isinstance(first, relay.Tuple) else [first]
        given = np.concatenate([source.data.numpy().ravel() for source in sources])
        found = evaluate(call, relay.transform.InferTypeLocal(call))
        found = np.concatenate([part.ravel() for part in (found if isinstance(found, list) else [found])])
        if known.elements is Elements.SAME:
            np.testing.assert_array_equal(found, given)
        elif known.elements is Elements.MOVED:
            np.testing.assert_array_equal(np.sort(found), np.sort(given))
        else:
            assert set(found.tolist()) <= set(given.tolist())
    assert seen >= {"reshape", "squeeze", "transpose", "concatenate", "take", "split", "layout_transform"}


@pytest.mark.parametrize("seed", range(3))
def test_limits_hold(seed):
    random, seen = np.random.default_rng(seed), set()
    for name, known in OPERATORS.items():
        operands = {"where": 3}.get(name, int(relay.op.get(name).num_inputs))
        if known.limits is None or known.elements is not Elements.EACH or name not in TABLE:
            continue
        bounds = [sorted(random.integers(-9, 9, 2).tolist()) for _ in range(operands)]
        arrays = [random.integers(low, high + 1, 200) for low, high in bounds]
        found = known.limits(*(Limits(*each) for each in bounds))
        if name == "where":
            arrays[0] = arrays[0] > 0
        dtype = "bool" if known is operators.TRUTHS or name.startswith("is") else "int64"
        if found is None or name in ("cast", "isfinite") or (name.startswith("logical") and seed):
            continue
        seen.add(name)
        if name.startswith("logical"):
            arrays = [array > 0 for array in arrays]
        call = relay.Call(relay.op.get(name), [relay.const(array) for array in arrays])
        value = apply(call, relay.TensorType([200], dtype), arrays)
        assert found.least <= value.min() and value.max() <= found.greatest, (name, bounds, found)
    assert seen >= {"add", "subtract", "multiply", "maximum", "minimum", "where", "less"}


def test_limits_of_products_with_what_is_not_known():
    x = relay.var("x", shape=(3,), dtype="int64")
    product = relay.multiply(x, relay.zeros((3,), "int64"))
    assert never_negative(product)
    body = typed(product)
    assert limits(Graph(relay.Function([], body)), body) == Limits(0, 0)


@pytest.mark.parametrize(
    "ids, most",
    [
        (lambda x: relay.argmax(x, axis=[1]), 4),
        (lambda x: relay.argmax(x, axis=[1], exclude=True), 2),
        (lambda x: relay.argmin(x), 14),
        (lambda x: relay.argsort(x, axis=0, dtype="int64"), 2),
        (lambda x: relay.adv_index([relay.argmax(x, axis=[1]), relay.const(np.int64([2, 2, 0]))]), 4),
        (lambda x: relay.cast(relay.zeros_like(x), "int64"), 0),
    ],
)
def test_limits_of_positions(ids, most):
    body = typed(ids(relay.var("x", shape=(3, 5))))
    assert limits(Graph(relay.Function([], body)), body) == Limits(0, most)


def test_positions_along_an_axis_of_unknown_length():
    body = typed(relay.argmax(relay.var("x", shape=(3, relay.Any())), axis=[1]))
    assert limits(Graph(relay.Function([], body)), body).greatest >= 2**31 - 1


CHANNELS = [relay.const(np.array(values, "float32")) for values in ([1.5, 0.5, 2, 1], [0, 0.5, 1, 2])]
SAMPLES = {  # a call over a batch of four, for each operator that is row-wise, along its first axis
    "all": lambda x: relay.all(x > relay.const(0.0), axis=[1]),
    "any": lambda x: relay.any(x > relay.const(0.0), axis=[1]),
    "argmax": lambda x: relay.argmax(x, axis=[1]),
    "argmin": lambda x: relay.argmin(x, axis=[1]),
    "argsort": lambda x: relay.argsort(x, axis=-1),
    "cumprod": lambda x: relay.cumprod(x, axis=2),
    "cumsum": lambda x: relay.cumsum(x, axis=1),
    "image.resize2d": lambda x: relay.image.resize2d(x, (3, 3)),
    "max": lambda x: relay.max(x, axis=[0], exclude=True),
    "mean": lambda x: relay.mean(x, axis=[1, 2], keepdims=True),
    "min": lambda x: relay.min(x, axis=[-1]),
    "nn.adaptive_avg_pool2d": lambda x: relay.nn.adaptive_avg_pool2d(x, (2, 2)),
    "nn.adaptive_max_pool2d": lambda x: relay.nn.adaptive_max_pool2d(x, (2, 2)),
    "nn.avg_pool2d": lambda x: relay.nn.avg_pool2d(x, (2, 2)),
    "nn.batch_flatten": relay.nn.batch_flatten,
    "nn.batch_norm": lambda x: relay.nn.batch_norm(x, *CHANNELS, *CHANNELS).astuple(),
    "nn.conv2d": lambda x: relay.nn.conv2d(
        x, relay.const(np.ones((3, 4, 2, 2), "float32")), channels=3, kernel_size=(2, 2)
    ),
    "nn.conv2d_transpose": lambda x: relay.nn.conv2d_transpose(
        x, relay.const(np.ones((4, 3, 2, 2), "float32")), channels=3, kernel_size=(2, 2)
    ),
    "nn.dense": lambda x: relay.nn.dense(relay.nn.batch_flatten(x), relay.const(np.ones((3, 64), "float32"))),
    "nn.depth_to_space": lambda x: relay.nn.depth_to_space(x, 2),
    "nn.global_avg_pool2d": relay.nn.global_avg_pool2d,
    "nn.global_max_pool2d": relay.nn.global_max_pool2d,
    "nn.group_norm": lambda x: relay.nn.group_norm(x, *CHANNELS, 2),
    "nn.instance_norm": lambda x: relay.nn.instance_norm(x, *CHANNELS),
    "nn.layer_norm": lambda x: relay.nn.layer_norm(x, *CHANNELS),
    "nn.log_softmax": lambda x: relay.nn.log_softmax(x, axis=1),
    "nn.max_pool2d": lambda x: relay.nn.max_pool2d(x, (2, 2)),
    "nn.softmax": lambda x: relay.nn.softmax(x, axis=-1),
    "nn.upsampling": lambda x: relay.nn.upsampling(x, 2, 2),
    "nn.space_to_depth": lambda x: relay.nn.space_to_depth(x, 2),
    "prod": lambda x: relay.prod(x, axis=[1]),
    "reverse": lambda x: relay.reverse(x, axis=3),
    "sort": lambda x: relay.sort(x, axis=1),
    "sum": lambda x: relay.sum(x, axis=[2, 3]),
    "topi_ext.group_norm": lambda x: topi_ext.group_norm(x, *CHANNELS, groups=2),
    "topi_ext.layer_norm": lambda x: topi_ext.layer_norm(x, *CHANNELS, axis=1),
    "topk": lambda x: relay.topk(x, 2, axis=1, ret_type="values"),
}
REGIONS = ("topi_ext.multiscale_roi_align", "topi_ext.roi_pool", "vision.roi_align")  # see their own tests


def test_every_row_wise_operator_has_a_sample():
    assert {name for name, known in OPERATORS.items() if known.rows} == {*SAMPLES, *REGIONS}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_row_wise_operator_computes_each_row_by_itself(name):
    x = relay.var("x", shape=(4, 4, 4, 4))
    call = SAMPLES[name](x)
    mod = module(x, call)
    assert call.op.name == name
    if known_of(call).rows is Rows.NOT_REDUCED:
        assert 0 not in reduced_axes(typed(call))
    if known_of(call).rows is Rows.OTHER_AXES:
        assert not computes_along(typed(call), 0)
    rows = np.random.default_rng(0).standard_normal((4, 4, 4, 4)).astype("float32")
    order = [2, 0, 3, 1]
    whole, shuffled = run(mod, rows)[0], run(mod, rows[order])[0]
    np.testing.assert_allclose(shuffled, whole[order], rtol=1e-6)


def test_one_line_makes_an_operator_known(monkeypatch):
    """As CONTRIBUTING.md says: an operator that is row-wise by the table is so to every pass."""
    x, scores = relay.var("x", shape=(9, 4)), relay.var("scores", shape=(9,))
    mask = relay.greater(scores, relay.const(0.5))
    rows = relay.squeeze(relay.argwhere(mask), [1])
    taken = relay.nn.fast_softmax(relay.take(x, rows, axis=0), axis=1)
    body = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, scores], taken)))[
        "main"
    ].body
    mask = body.args[0].args[1].args[0].args[0]
    assert before_taking(body, mask) is None
    monkeypatch.setitem(OPERATORS, "nn.fast_softmax", Operator(rows=Rows.OTHER_AXES))
    assert before_taking(body, mask).op.name == "nn.fast_softmax"
    assert FoldPreNMSFilter  # which asks `before_taking`; MakeDetectionStatic asks the table itself


@pytest.mark.parametrize("along", ["reverse", "shuffle"])
def test_rows_in_another_order_are_not_those_of_a_mask(along):
    found = relay.argwhere(relay.var("mask", shape=(16,), dtype="bool"))
    rows = relay.squeeze(relay.transpose(found), [0])
    assert mask_of_rows(typed(rows)) is not None
    if along == "reverse":
        moved = relay.reverse(rows, axis=0)
    else:
        moved = relay.reshape(relay.nn.depth_to_space(relay.reshape(rows, (1, 4, 2, 2)), 2), (16,))
    assert mask_of_rows(typed(moved)) is None
