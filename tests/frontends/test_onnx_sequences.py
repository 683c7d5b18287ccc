"""Sequences of a length that the graph fixes are tensors side by side; functions of a model are inlined."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from frontends import ImportFailure, from_onnx
from tests.frontends.onnx_models import model_of, run, tensor_input, weights

X = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
NODE = helper.make_node
FLOAT, INT64, BOOL = (getattr(onnx.TensorProto, name) for name in ("FLOAT", "INT64", "BOOL"))


def assert_computes(nodes, outputs=("y",), shape=X.shape, **constants):
    model = model_of(nodes, [tensor_input("x", shape)], outputs, weights(**constants), 17)
    assert_equals_onnx_runtime(model)


def assert_equals_onnx_runtime(model):
    for output in model.graph.output:  # whose type ONNX Runtime finds itself
        output.CopyFrom(onnx.ValueInfoProto(name=output.name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, expected in zip(run(from_onnx(model)[0], X), session.run(None, {"x": X})):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("place", [0, 2, -1, -3])
def test_an_element(place):
    nodes = [NODE("Neg", ["x"], ["n"]), NODE("Exp", ["x"], ["e"])]
    nodes += [NODE("SequenceConstruct", ["x", "n", "e"], ["s"]), NODE("SequenceAt", ["s", "place"], ["y"])]
    assert_computes(nodes, place=np.int64(place))


def test_an_element_at_a_place_that_is_data_is_refused():
    nodes = [NODE("ArgMax", ["x"], ["row"], axis=0), NODE("ReduceMax", ["row"], ["place"], keepdims=0)]
    nodes += [NODE("SequenceConstruct", ["x", "x"], ["s"]), NODE("SequenceAt", ["s", "place"], ["y"])]
    with pytest.raises(
        ImportFailure, match=r"\(SequenceAt\) cannot be converted: which element it takes is .* stack"
    ):
        from_onnx(model_of(nodes, [tensor_input("x", X.shape)], ["y"], (), 17))


@pytest.mark.parametrize("place", [None, 0, 1, -1])
def test_insert_and_erase(place):
    at = {} if place is None else {"place": np.int64(place)}
    nodes = [
        NODE("Neg", ["x"], ["n"]),
        NODE("Exp", ["x"], ["e"]),
        NODE("SequenceConstruct", ["x", "n"], ["s"]),
    ]
    nodes += [
        NODE("SequenceInsert", ["s", "e", *at], ["more"]),
        NODE("SequenceErase", ["more", *at], ["less"]),
    ]
    nodes += [NODE("ConcatFromSequence", [name], [f"y_{name}"], axis=1) for name in ("more", "less")]
    nodes += [NODE("SequenceLength", ["less"], ["length"])]
    assert_computes(nodes, ["y_more", "y_less", "length"], **at)


@pytest.mark.parametrize(("axis", "new_axis"), [(0, 0), (-1, 0), (0, 1), (1, 1), (-1, 1)])
def test_concatenated(axis, new_axis):
    nodes = [NODE("Neg", ["x"], ["n"]), NODE("SequenceEmpty", [], ["none"], dtype=FLOAT)]
    nodes += [NODE("SequenceInsert", ["none", "x"], ["one"]), NODE("SequenceInsert", ["one", "n"], ["two"])]
    nodes += [NODE("ConcatFromSequence", ["two"], ["y"], axis=axis, new_axis=new_axis)]
    assert_computes(nodes)


@pytest.mark.parametrize(
    ("split", "options"),
    [
        (np.int64(2), {"axis": 1}),  # a shorter last part
        (np.array([1, 4]), {"axis": 1}),
        (np.array([2, 1]), {"axis": -2}),
        (None, {"axis": 0, "keepdims": 0}),
        (None, {"axis": 1, "keepdims": 1}),
        (None, {}),
    ],
)
def test_split(split, options):
    parts = {} if split is None else {"split": split}
    nodes = [
        NODE("SplitToSequence", ["x", *parts], ["s"], **options),
        NODE("SequenceAt", ["s", "last"], ["y"]),
    ]
    assert_computes(nodes, last=np.int64(-1), **parts)


def test_a_split_into_as_many_parts_as_only_the_runtime_knows_is_refused():
    nodes = [NODE("SplitToSequence", ["x"], ["s"], axis=0), NODE("SequenceAt", ["s", "first"], ["y"])]
    model = model_of(nodes, [tensor_input("x", ("n", 5))], ["y"], weights(first=np.int64(0)), 17)
    with pytest.raises(
        ImportFailure, match=r"\(SplitToSequence\) cannot be converted: .*shapes=\{'x': \(\?, 5\)\}"
    ):
        from_onnx(model)


def gathering_loop(count=None, goes_on="true"):
    """A list that a loop extends, read in another, as torch exports scripts that append to lists."""
    value = helper.make_tensor_value_info
    i, going, still = value("i", INT64, []), value("going", BOOL, []), value("still", BOOL, [])
    first = helper.make_graph(
        [
            NODE("Cast", ["i"], ["number"], to=FLOAT),
            NODE("Add", ["x", "number"], ["more"]),
            NODE("SequenceInsert", ["list", "more"], ["longer"]),
            NODE("Less", ["i", "three"], ["still"]),
            NODE("Neg", ["more"], ["row"]),
        ],
        "first",
        [i, going, helper.make_tensor_sequence_value_info("list", FLOAT, None)],
        [still, helper.make_tensor_sequence_value_info("longer", FLOAT, None), value("row", FLOAT, None)],
    )
    second = helper.make_graph(
        [
            NODE("Sub", ["two", "j"], ["place"]),
            NODE("SequenceAt", ["lists", "place"], ["item"]),
            NODE("Mul", ["sum", "factor"], ["scaled"]),
            NODE("Add", ["scaled", "item"], ["next"]),
            NODE("Identity", ["go"], ["same"]),
        ],
        "second",
        [value("j", INT64, []), value("go", BOOL, []), value("sum", FLOAT, None)],
        [value("same", BOOL, []), value("next", FLOAT, None)],
        weights(factor=np.float32(0.5)),
    )
    numbers = {"two": np.array(2), "three": np.array(3), "ten": np.array(10), "true": np.array(True)}
    nodes = [
        *(
            NODE("Constant", [], [name], value=numpy_helper.from_array(each))
            for name, each in numbers.items()
        ),
        NODE("SequenceEmpty", [], ["none"], dtype=FLOAT),
        NODE("ReduceMax", ["x"], ["largest"], keepdims=0),
        NODE("Cast", ["largest"], ["unknown"], to=INT64),
        NODE("Cast", ["largest"], ["unsure"], to=BOOL),
        NODE("Loop", [count or "", goes_on, "none"], ["lists", "rows"], "first", body=first),
        NODE("Loop", ["two", "true", "x"], ["y"], "second", body=second),
        NODE("ConcatFromSequence", ["lists"], ["all"], axis=0),
    ]
    return model_of(nodes, [tensor_input("x", X.shape)], ["y", "all", "rows"], (), 17)


@pytest.mark.parametrize("count", [None, "three", "ten"])  # of at most 4 by the condition
@pytest.mark.parametrize("freeze", [True, False])
def test_loops_that_gather_and_read_a_sequence(count, freeze):
    model = gathering_loop(count)
    mod, params = from_onnx(model, freeze_params=freeze)
    assert [*params] == [] if freeze else "factor" in params
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = run(mod, X, *(each.numpy() for each in params.values()))
    for each, expected in zip(found, session.run(None, {"x": X})):
        np.testing.assert_allclose(each, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"count": "unknown"}, "runtime knows how many rounds it has, and it reads sequences, whose"),
        ({"goes_on": "unsure"}, "runtime knows whether it goes on.*give the inputs fixed sizes"),
    ],
)
def test_loops_of_which_the_length_of_a_sequence_is_not_known_are_refused(given, reason):
    with pytest.raises(ImportFailure, match=reason):
        from_onnx(gathering_loop(**given))


def test_branches_that_give_sequences_are_refused():
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    branch = helper.make_graph([NODE("SequenceConstruct", ["x"], ["s"])], "branch", [], [sequence])
    nodes = [
        NODE("ReduceMax", ["x"], ["largest"], keepdims=0),
        NODE("Cast", ["largest"], ["unsure"], to=BOOL),
        NODE("If", ["unsure"], ["s"], then_branch=branch, else_branch=branch),
        NODE("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    with pytest.raises(ImportFailure, match=r"\(If\).*its branches give sequences, whose lengths must"):
        from_onnx(model_of(nodes, [tensor_input("x", X.shape)], ["y"], (), 17))


def test_functions_of_the_model():
    """One calls another, and hands an attribute on."""
    opset = helper.make_opsetid("", 17)
    slope = onnx.AttributeProto(name="slope", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    alpha = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    leaky, called = NODE("LeakyRelu", ["a"], ["b"]), NODE("Leaky", ["p"], ["q"], domain="mine")
    leaky.attribute.append(alpha)
    called.attribute.append(slope)
    inner = helper.make_function("mine", "Leaky", ["a"], ["b"], [leaky], [opset], ["slope"])
    nodes, opsets = [called, NODE("Add", ["q", "p"], ["r"])], [opset, helper.make_opsetid("mine", 1)]
    outer = helper.make_function("mine", "Block", ["p"], ["r"], nodes, opsets, ["slope"])
    calls = [NODE("Block", ["x"], ["h"], domain="mine", slope=0.5)]
    calls += [NODE("Block", ["h"], ["y"], domain="mine", slope=0.1)]
    model = model_of(calls, [tensor_input("x", X.shape)], ["y"], (), 17, ["mine"])
    model.functions.extend([inner, outer])
    assert_equals_onnx_runtime(model)


def test_a_function_has_defaults():
    """Which onnx's own inliner forgets."""
    elu = NODE("Elu", ["a"], ["b"])
    elu.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
    given = [helper.make_attribute("alpha", 0.5)]
    opset = helper.make_opsetid("", 17)
    function = helper.make_function("mine", "Mine", ["a"], ["b"], [elu], [opset], attribute_protos=given)
    calls = [NODE("Mine", ["x"], ["h"], domain="mine"), NODE("Mine", ["h"], ["y"], domain="mine", alpha=3.0)]
    model = model_of(calls, [tensor_input("x", X.shape)], ["y"], (), 17, ["mine"])
    model.functions.append(function)
    assert_equals_onnx_runtime(model)
