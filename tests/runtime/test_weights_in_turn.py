"""The order in which convolutions with the same weights are computed on CPUs."""

import numpy as np
import pytest

from tests.helpers import ops, run
from topi_ext import conv2d_nhwc
from topi_ext.conv2d_nhwc.op import NAME
from topi_ext.onednn import library
from tvm_passes import runtime
from tvm_passes.runtime.libraries import relay as libraries
from tvm_passes.runtime.weights_in_turn import weights_in_turn

import tvm
from tvm import relay

LEVELS = (9, 5, 3)
WEIGHTS = {
    name: np.random.default_rng(seed).standard_normal((8, 3, 3, 8)).astype("float32")
    for seed, name in enumerate(["first", "second"])
}


def convolution(data, name):
    return conv2d_nhwc(data, relay.const(WEIGHTS[name]), padding=1, activation="relu", weight_id=name)


def typed(variables, result):
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, result)))


def levels():
    return [relay.var(f"level{size}", shape=(1, size, size, 8)) for size in LEVELS]


def order(mod):
    """The weights and sizes of convolutions, in the order in which a graph's nodes are computed."""
    found = []

    def visit(node):
        if isinstance(node, relay.Call) and node.op == tvm.ir.Op.get(NAME):
            found.append((str(node.attrs.weight_id), int(node.checked_type.shape[1])))

    relay.analysis.post_order_visit(mod["main"], visit)
    return found


def test_each_layer_of_all_levels_in_turn():
    variables = levels()
    layers = [convolution(convolution(each, "first"), "second") for each in variables]
    mod = typed(variables, relay.Tuple([*layers, relay.sum(layers[0])]))
    assert order(mod) == [(name, size) for size in LEVELS for name in WEIGHTS]
    changed = weights_in_turn(mod)
    assert sorted(order(changed)) == sorted(order(mod))
    assert [name for name, _ in order(changed)] == ["first"] * 3 + ["second"] * 3
    assert tvm.ir.structural_equal(changed["main"].checked_type, mod["main"].checked_type)
    arrays = [np.random.default_rng(size).random((1, size, size, 8), "float32") for size in LEVELS]
    targets = ["llvm", "llvm -libs=onednn"] if library.library() else ["llvm"]
    for target in targets:
        for found, wanted in zip(run(changed, *arrays, target=target), run(mod, *arrays)):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def applied_twice(data):
    return convolution(convolution(data[0], "first"), "first")


def in_a_branch(data):
    return relay.If(relay.const(True), convolution(data[0], "first"), convolution(data[0] * data[0], "first"))


def in_a_function(data):
    inner = relay.var("inner", shape=(1, *data[0].type_annotation.shape[1:]))
    function = relay.Function([inner], convolution(inner, "first"))
    return relay.Tuple([relay.Call(function, [data[0]]), convolution(data[1], "first")])


@pytest.mark.parametrize(
    "result",
    [
        applied_twice,
        in_a_branch,
        in_a_function,
        lambda data: relay.Tuple([convolution(data[0], "first"), convolution(data[1], "second")]),
        lambda data: convolution(convolution(data[0], "first"), "second"),
    ],
)
def test_what_is_left_as_it_is(result):
    variables = levels()
    mod = typed(variables, result(variables))
    assert weights_in_turn(mod).same_as(mod)


def test_layers_that_need_each_other_in_both_directions():
    one, other, _ = variables = levels()
    there = convolution(convolution(one, "first"), "second")
    back = convolution(convolution(other, "second"), "first")
    mod = typed(variables, relay.Tuple([there, back]))
    assert weights_in_turn(mod).same_as(mod)


def test_a_compiled_network_has_this_order(monkeypatch):
    if library.library() is None:
        pytest.skip("needs oneDNN")
    seen = []
    monkeypatch.setattr(libraries, "weights_in_turn", lambda mod: seen.append(mod) or weights_in_turn(mod))
    variables = levels()
    mod = typed(variables, relay.Tuple([convolution(each, "first") for each in variables]))
    for target in ("llvm", "llvm -libs=onednn"):
        model = runtime.compile(mod, target)
        results = model(*[np.ones((1, size, size, 8), "float32") for size in LEVELS])
        assert [result.shape[1] for result in results.values()] == [*LEVELS]
    assert len(seen) == 1 and "topi_ext.conv2d_nhwc" in ops(seen[0])
