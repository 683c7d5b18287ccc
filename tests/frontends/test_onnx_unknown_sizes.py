"""Single operators of ONNX, all sizes of whose inputs are known only at run time, against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import frontends
from tests.frontends.onnx_models import compiled, model_of, tensor_input, weights

import tvm

VALUES = np.random.default_rng(0)


def numbers(*shape, dtype="float32"):
    return VALUES.normal(size=shape).astype(dtype)


IMAGE, ROWS, SQUARES = numbers(1, 2, 7, 6), numbers(2, 3, 5), numbers(2, 4, 4)
PADS = [0, 0, 2, 1, 0, 1, 3, 2]
CASES = {  # operator, opset, inputs of unknown sizes, constants, attributes
    "Pad by mirroring": ("Pad", 18, [IMAGE], {"pads": [0, 0, 2, 1, 0, 0, 3, 2]}, {"mode": "reflect"}),
    "Pad by wrapping": ("Pad", 19, [IMAGE], {"pads": PADS}, {"mode": "wrap"}),
    "Pad by wrapping as far as inputs say": ("Pad", 19, [IMAGE, np.array(PADS)], {}, {"mode": "wrap"}),
    "Pad by wrapping where inputs cut": (
        "Pad",
        19,
        [ROWS, np.array([0, -1, 0, 0, 0, 2])],
        {},
        {"mode": "wrap"},
    ),
    "Split where the last is shorter": ("Split", 18, [ROWS], {}, {"axis": 2, "num_outputs": 2}),
    "Split into three of one": ("Split", 18, [numbers(2, 7)], {}, {"axis": -1, "num_outputs": 3}),
    "Split evenly": ("Split", 13, [numbers(6, 2)], {}, {}),
    "Trilu": ("Trilu", 14, [SQUARES], {}, {}),
    "Trilu below": ("Trilu", 14, [ROWS], {"k": -1}, {"upper": 0}),
    "Trilu at run time": ("Trilu", 14, [numbers(3, 5), np.array(2)], {}, {"upper": 1}),
    "Trilu of truths": ("Trilu", 14, [SQUARES > 0], {"k": 1}, {}),
    "EyeLike": ("EyeLike", 9, [numbers(5, 2)], {}, {"k": 2}),
    "EyeLike of another type": ("EyeLike", 9, [numbers(3, 4)], {}, {"k": -1, "dtype": 7}),
    "Softmax of the last axes": ("Softmax", 11, [IMAGE], {}, {"axis": 1}),
    "Softmax of all axes": ("Softmax", 11, [ROWS * 60], {}, {"axis": 0}),
    "LRN": ("LRN", 13, [numbers(2, 6, 3, 4)], {}, {"size": 5, "alpha": 0.1}),
    "ScatterElements of fewer": (
        *(
            "ScatterElements",
            18,
            [numbers(3, 4, 5, 2), np.array([[[[1], [-1]]]] * 2), numbers(2, 1, 2, 1)],
            {},
        ),
        {"axis": 1},
    ),
    "MatMul by weights that tell the length": ("MatMul", 13, [numbers(3, 5, 2)], {"w": numbers(3, 2, 4)}, {}),
    "MatMul of a matrix by weights": ("MatMul", 13, [numbers(5, 3)], {"w": numbers(3, 4)}, {}),
    "MatMul of matrices": ("MatMul", 13, [numbers(5, 3), numbers(3, 2)], {}, {}),
    "MatMul of a matrix and a vector": ("MatMul", 13, [numbers(5, 3), numbers(3)], {}, {}),
    "MatMul of no matrices by one": ("MatMul", 13, [numbers(0, 5, 3), numbers(1, 3, 2)], {}, {}),
    "MatMul of some matrices by no": ("MatMul", 13, [numbers(2, 1, 5, 3), numbers(0, 3, 2)], {}, {}),
    "MatMul of batches that broadcast": ("MatMul", 13, [numbers(2, 1, 5, 3), numbers(4, 3, 2)], {}, {}),
    "MatMul of matrices by a known one": ("MatMul", 13, [numbers(2, 4, 5, 3)], {"w": numbers(3, 2)}, {}),
    "Gemm": ("Gemm", 13, [numbers(3, 5), numbers(5, 4), numbers(4)], {}, {"alpha": 0.5, "beta": 2.0}),
    "Gemm without an addend, as torch exports mm": (
        *("Gemm", 13, [numbers(3, 5), numbers(5, 4)], {}, {"beta": 0.0}),
    ),
    "Gemm of turned matrices": ("Gemm", 13, [numbers(5, 3), numbers(4, 5)], {}, {"transA": 1, "transB": 1}),
    "Gemm by weights that tell the length": (
        *("Gemm", 13, [numbers(3, 5)], {"w": numbers(5, 4), "b": numbers(4)}, {"alpha": 0.5}),
    ),
    "Size": ("Size", 13, [ROWS], {}, {}),
    "Scatter": ("Scatter", 9, [ROWS, np.array([[[0], [2]]]), numbers(1, 2, 1)], {}, {"axis": 1}),
    "GatherElements of fewer": ("GatherElements", 13, [ROWS, np.array([[[0, -1]]])], {}, {"axis": 2}),
    "GatherElements of fewer that are known": (
        *("GatherElements", 13, [ROWS], {"indices": np.array([[[0, -1]]])}, {"axis": 1}),
    ),
    "Range of vectors": ("Range", 11, [np.array([3]), np.array([-4]), np.array([-2])], {}, {}),
    "BitwiseNot": ("BitwiseNot", 18, [np.arange(5, dtype="uint8")], {}, {}),
}
EQUATIONS = {
    "bij,bjk->bik": [ROWS, numbers(2, 5, 4)],
    "b h q d , b h k d -> b h q k": [numbers(2, 3, 4, 5), numbers(2, 3, 6, 5)],
    "i,j->ij": [numbers(3), numbers(4)],
    "ij,jk": [numbers(3, 4), numbers(4, 2)],
    "ba": [numbers(3, 4)],
    "...ij,...jk->...ik": [numbers(1, 2, 3), numbers(4, 3, 2)],
    "b...,b->...": [ROWS, numbers(2)],
    "ij,kj,k->i": [numbers(3, 4), numbers(2, 4), numbers(2)],
    "abc->": [ROWS],
}


def assert_runs_as_in_onnxruntime(node, opset, inputs, constants, channels=None):
    names, outputs = list(inputs), list(node.output)
    free = {name: [f"{name}{axis}" for axis in range(array.ndim)] for name, array in inputs.items()}
    if channels is not None:
        free[names[0]][1] = channels
    if node.op_type == "Pad":
        free.update({name: [inputs[name].size] for name in names[1:]})
    given = [tensor_input(name, free[name], inputs[name].dtype) for name in names]
    model = model_of([node], given, outputs, weights(**constants), opset=opset)
    for output in model.graph.output:
        output.ClearField("type")
    mod, _ = frontends.from_onnx(model)
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    for found, expected in zip(compiled(mod)(*inputs.values()), session.run(None, inputs)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_operator(case):
    operator, opset, arrays, constants, attributes = CASES[case]
    inputs = {f"x{place}": array for place, array in enumerate(arrays)}
    outputs = [
        f"y{place}" for place in range(attributes.get("num_outputs", 3 if case == "Split evenly" else 1))
    ]
    node = helper.make_node(operator, [*inputs, *constants], outputs, "it", **attributes)
    constants = {name: np.asarray(value) for name, value in constants.items()}
    assert_runs_as_in_onnxruntime(node, opset, inputs, constants, 6 if operator == "LRN" else None)


def test_weights_before_points_of_any_number():
    node = helper.make_node("MatMul", ["w", "x"], ["y"], "it")
    assert_runs_as_in_onnxruntime(node, 13, {"x": numbers(3, 7)}, {"w": numbers(4, 3)})


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation):
    inputs = {f"x{place}": array for place, array in enumerate(EQUATIONS[equation])}
    node = helper.make_node("Einsum", list(inputs), ["y"], "it", equation=equation)
    assert_runs_as_in_onnxruntime(node, 13, inputs, {})


def test_einsum_of_a_diagonal_is_refused():
    node = helper.make_node("Einsum", ["x"], ["y"], "it", equation="ii->i")
    with pytest.raises(frontends.ImportFailure, match="takes a diagonal of an operand"):
        frontends.from_onnx(model_of([node], [tensor_input("x", ["n", "n"])], ["y"], opset=13))


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_channels_behind_a_reshape_are_those_of_the_weights(operator):
    """As where tokens become an image: `x.transpose(1, 2).reshape(batch, -1, height, width)`."""
    tokens, shape = numbers(2, 12, 6), np.array([2, -1, 3, 4])
    flipped = helper.make_node("Transpose", ["tokens"], ["flipped"], perm=[0, 2, 1])
    image = helper.make_node("Reshape", ["flipped", "shape"], ["image"])
    last = helper.make_node(operator, ["image", "w"], ["y"], group=2, pads=[1, 1, 1, 1])
    of_weights = numbers(4, 3, 3, 3) if operator == "Conv" else numbers(6, 2, 3, 3)
    inputs = [tensor_input("tokens", [None] * 3), tensor_input("shape", [4], "int64")]
    model = model_of([flipped, image, last], inputs, ["y"], weights(w=of_weights))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"tokens": tokens, "shape": shape})
    (found,) = compiled(frontends.from_onnx(model)[0])(tokens, shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_run_refuses_other_channels_than_the_weights_demand():
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Conv", ["z", "w"], ["y"])]
    model = model_of(nodes, [tensor_input("x", (1, "c", 8, "w"))], ["y"], weights(w=numbers(2, 4, 1, 1)))
    run = compiled(frontends.from_onnx(model)[0])
    assert run(numbers(1, 4, 8, 5))[0].shape == (1, 2, 8, 5)
    for channels in (2, 6):
        with pytest.raises(tvm.TVMError, match="another number of elements"):
            run(numbers(1, channels, 8, 5))


@pytest.mark.parametrize(
    "options", [{}, {"auto_pad": "SAME_UPPER", "dilations": [2, 2]}], ids=["plain", "padded"]
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_filters_of_as_many_objects_as_there_are(options, with_bias):
    """As SOLOv2 convolves by the kernels that its scores select."""
    inputs = [tensor_input("x", (2, 3, 4, 5)), tensor_input("w", ("n", 3, 1, 1)), tensor_input("b", ("n",))]
    names = ["x", "w", "b"] if with_bias else ["x", "w"]
    node = helper.make_node("Conv", names, ["y"], kernel_shape=[1, 1], **options)
    model = model_of([node], inputs[: len(names)], ["y"], (), 13)
    runs = compiled(frontends.from_onnx(model)[0])
    for count in (7, 1, 0):
        arrays = [numbers(2, 3, 4, 5), numbers(count, 3, 1, 1), numbers(count)][: len(names)]
        (found,) = runs(*arrays)
        expected = np.einsum("ncyx,fc->nfyx", arrays[0], arrays[1][:, :, 0, 0])
        expected = expected + arrays[2][:, None, None] if with_bias else expected
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_wider_filters_of_as_many_objects_as_there_are_are_refused():
    inputs = [tensor_input("x", (1, 3, 4, 5)), tensor_input("w", ("n", 3, 3, 3))]
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"])], inputs, ["y"], (), 13)
    with pytest.raises(frontends.ImportFailure, match="number of channels is known"):
        frontends.from_onnx(model)
