"""Converters that TVM's importer has wrong or not at all, against onnx's reference, and what is refused."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from frontends import ImportFailure, from_onnx
from tests.frontends.onnx_models import (
    assert_matches_reference,
    compiled,
    model_of,
    operators,
    run,
    tensor_input,
    weights,
)

VALUES = np.random.default_rng(0)
IMAGE = VALUES.normal(size=(1, 2, 7, 6)).astype("float32")
ROWS = VALUES.normal(size=(3, 4, 5)).astype("float32")
MATRIX = VALUES.normal(size=(2, 1, 5, 3)).astype("float32")
WITH_NAN = np.array([[np.nan, 1, -np.inf], [1, 2, np.nan]], "float32")

CASES = {  # operator, inputs, constants, attributes
    "ReduceSum of several axes": ("ReduceSum", [ROWS], {"axes": [0, 2]}, {"keepdims": 0}),
    "ReduceL2 of an axis that is an input": ("ReduceL2", [ROWS], {"axes": [1]}, {}),
    "ReduceLogSumExp": ("ReduceLogSumExp", [ROWS * 100], {"axes": [-1]}, {"keepdims": 0}),
    "ReduceMean of axes at run time": ("ReduceMean", [ROWS, np.array([-1, 0])], {}, {"keepdims": 0}),
    "MaxPool with ceil_mode": (
        "MaxPool",
        [IMAGE],
        {},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1},
    ),
    "AveragePool with dilation and padding": (
        "AveragePool",
        [IMAGE],
        {},
        {"kernel_shape": [2, 2], "dilations": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "LpPool": ("LpPool", [IMAGE], {}, {"kernel_shape": [2, 2], "p": 3}),
    "Pad of some axes": ("Pad", [IMAGE], {"pads": [1, 2], "": None, "axes": [-1]}, {}),
    "Pad by wrapping": ("Pad", [ROWS], {"pads": [0, 1, 0, 1, 0, 2]}, {"mode": "wrap"}),
    "Clip of uint8": ("Clip", [np.arange(9, dtype="uint8")], {"lo": np.uint8(2), "hi": np.uint8(5)}, {}),
    "Clip of int64 from below": ("Clip", [np.arange(-4, 5)], {"lo": np.int64(-1)}, {}),
    "Round": ("Round", [np.array([-1.5, -0.5, 0.5, 2.5, 8388609.0, np.inf], "float32")], {}, {}),
    "Gelu by tanh": ("Gelu", [ROWS], {}, {"approximate": "tanh"}),
    "MatMul with batches on both sides": ("MatMul", [ROWS[None], MATRIX], {}, {}),
    "ArgMax of the lowest": ("ArgMax", [np.full((2, 3), -np.inf, "float32")], {}, {"axis": 1}),
    "Pow of integers": ("Pow", [np.array([16777217], "int32")], {"n": np.array([1])}, {}),
    "Split with a shorter last part": ("Split", [np.arange(7)], {}, {"num_outputs": 2}),
    "ScatterND from the end": ("ScatterND", [ROWS, np.array([[-1], [0]]), ROWS[:2] * 2], {}, {}),
    "ScatterND from the end of two axes": (
        "ScatterND",
        [ROWS],
        {"indices": np.array([[-1, -2], [0, -1]]), "updates": ROWS[0, :2]},
        {"reduction": "add"},
    ),
    "GatherND from the end": ("GatherND", [ROWS, np.array([[-1], [0]])], {}, {}),
    "GatherND from the end of a batch": (
        "GatherND",
        [ROWS, np.array([[-1], [0], [-4]])],
        {},
        {"batch_dims": 1},
    ),
    "ScatterND of no reduction": ("ScatterND", [ROWS, np.array([[1]]), ROWS[:1]], {}, {"reduction": "none"}),
    "ScatterElements of no reduction": (
        "ScatterElements",
        [ROWS, np.array([[[-1, 0, 1]]]), ROWS[:1, :1, :3]],
        {},
        {"reduction": "none", "axis": 2},
    ),
    "Unsqueeze from both ends": ("Unsqueeze", [ROWS], {"axes": [-1, 0]}, {}),
    "Unsqueeze at run time": ("Unsqueeze", [ROWS, np.array([-1, 0])], {}, {}),
    "Unsqueeze of a scalar": ("Unsqueeze", [np.float32(2)], {"axes": [-1, 0]}, {}),
    "Mean that broadcasts": ("Mean", [ROWS, ROWS[0], np.float32(3)], {}, {}),
    "Max that broadcasts and keeps NaN": ("Max", [WITH_NAN, WITH_NAN[0, ::-1].copy()], {}, {}),
    "Min that broadcasts and keeps NaN": ("Min", [WITH_NAN[1], WITH_NAN], {}, {}),
    "TopK of the smallest": ("TopK", [ROWS], {"k": [2]}, {"largest": 0, "axis": 1}),
    "TopK of the smallest at run time": ("TopK", [ROWS, np.array([3])], {}, {"largest": 0}),
    "TopK of none": ("TopK", [ROWS], {"k": [0]}, {}),
    "MatMulInteger of unsigned by signed": (
        "MatMulInteger",
        [np.arange(250, 256, dtype="uint8").reshape(2, 3), np.arange(-128, -116, dtype="int8").reshape(3, 4)],
        {"a zero": np.uint8(3), "b zero": np.arange(4, dtype="int8")},
        {},
    ),
    "MatMulInteger of signed by unsigned, with one zero point": (
        "MatMulInteger",
        [np.arange(-6, 6, dtype="int8").reshape(2, 2, 3), np.arange(6, dtype="uint8").reshape(3, 2)],
        {"": None, "b zero": np.uint8(200)},
        {},
    ),
    "Gather from the end of the last axis": ("Gather", [ROWS, np.array([-1, 0])], {}, {"axis": -1}),
    "OneHot of a depth of floats": (
        "OneHot",
        [np.array([1, -1, 0])],
        {"depth": np.float32(3), "values": np.float32([0, 2])},
        {},
    ),
    "Sign of NaN": ("Sign", [WITH_NAN], {}, {}),
    "Sign of unsigned numbers": ("Sign", [np.arange(3, dtype="uint8")], {}, {}),
    "Clip of NaN from below": ("Clip", [WITH_NAN], {"lo": np.float32(0)}, {}),
    "Tile of none": ("Tile", [ROWS], {"repeats": [1, 0, 2]}, {}),
    "MatMul of a vector and matrices": ("MatMul", [ROWS[0, 0], MATRIX], {}, {}),
    "MatMul of matrices and a vector": ("MatMul", [ROWS, ROWS[0, 0]], {}, {}),
    "Conv without the bias that it names": (
        "Conv",
        [IMAGE],
        {"weight": MATRIX[:, :, :2], "": None},
        {"group": 2},
    ),
    "Gemm without the addend that it names": ("Gemm", [ROWS[0]], {"b": ROWS[1], "": None}, {"transB": 1}),
    "Gemm of an addend times 0": (
        "Gemm",
        [ROWS[0]],
        {"b": ROWS[1], "c": WITH_NAN[0, :1]},
        {"transB": 1, "beta": 0.0},
    ),
    "Trilu without the diagonal that it names": ("Trilu", [ROWS], {"": None}, {}),
    "ConvInteger along one axis": (
        "ConvInteger",
        [np.arange(16, dtype="uint8").reshape(1, 2, 8)],
        {"w": np.arange(-9, 9, dtype="int8").reshape(3, 2, 3), "x zero": np.uint8(3), "w zero": np.int8(2)},
        {"pads": [1, 1]},
    ),
    "BatchNormalization of one axis": (
        "BatchNormalization",
        [ROWS[0, 0]],
        dict(zip("sbmv", np.float32([[0.5], [2], [0.1], [3]]))),
        {},
    ),
    "Constant ints": ("Identity", [np.array([2**40])], {}, {}),
}


def model_and_arrays(operator, arrays, constants, attributes, opset=20, outputs=("y",)):
    names = [f"x{place}" for place in range(len(arrays))]
    inputs = [tensor_input(name, array.shape, array.dtype) for name, array in zip(names, arrays)]
    node = helper.make_node(operator, [*names, *constants], list(outputs), "it", **attributes)
    given = weights(**{name: np.asarray(value) for name, value in constants.items() if name})
    return model_of([node], inputs, list(outputs), given, opset=opset)


COLUMNS = VALUES.normal(size=(2, 12, 12)).astype("float32")
FOLDS = {  # columns, the size of the image, of a window, attributes
    "side by side": (COLUMNS, [8, 6], [2, 2], {"strides": [2, 2]}),
    "overlapping": (COLUMNS, [5, 5], [2, 3], {}),
    "padded on two sides": (COLUMNS, [4, 4], [3, 2], {"pads": [0, 1, 2, 0], "dilations": [1, 2]}),
    "of a sequence": (COLUMNS, [15], [4], {}),
    "of a volume": (COLUMNS, [2, 3, 5], [1, 2, 3], {"strides": [1, 1, 1]}),
}


@pytest.mark.parametrize("name", FOLDS)
def test_images_of_columns(name):
    columns, size, window, attributes = FOLDS[name]
    sizes = {"size": np.array(size), "window": np.array(window)}
    model = model_and_arrays("Col2Im", [columns], sizes, attributes, opset=18)
    assert_matches_reference(from_onnx(model)[0], model, columns)


def test_columns_that_do_not_fit_the_image_are_refused():
    sizes = {"size": np.array([8, 8]), "window": np.array([2, 2])}
    model = model_and_arrays("Col2Im", [COLUMNS], sizes, {}, opset=18)
    with pytest.raises(ImportFailure, match=r"give columns of \[channels \* 4, 49\], not of \[12, 12\]"):
        from_onnx(model)


@pytest.mark.parametrize("name", CASES)
def test_operator(name):
    operator, arrays, constants, attributes = CASES[name]
    outputs = ("y", "z") if operator in ("Split", "TopK") else ("y",)
    model = model_and_arrays(operator, arrays, constants, attributes, outputs=outputs)
    assert_matches_reference(from_onnx(model)[0], model, *arrays)


@pytest.mark.parametrize(
    ("operator", "x", "expected"),
    [("Softplus", [-200, 0, 200], [0, np.log(2), 200]), ("LogSoftmax", [0, 200, 100], [-200, 0, -100])],
)
def test_no_overflow(operator, x, expected):
    """As in onnx's reference and TVM's own."""
    x = np.array(x, "float32")
    np.testing.assert_allclose(run(from_onnx(model_and_arrays(operator, [x], {}, {}))[0], x)[0], expected)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "ReduceLogSumExp", "ReduceMean", "ReduceL2"])
def test_sums_of_float16_are_of_float32(operator):
    x = np.random.default_rng(0).random((2, 4096)).astype("float16")
    halves, floats = (model_and_arrays(operator, [array], {}, {}) for array in (x, x.astype("float32")))
    (expected,) = ReferenceEvaluator(floats).run(None, {"x0": x.astype("float32")})
    np.testing.assert_allclose(run(from_onnx(halves)[0], x)[0], expected, rtol=1e-3)


@pytest.mark.parametrize("operator", ["Mish", "Softplus"])
def test_digits_far_below_zero(operator):
    """TVM's own rounds exp(x) away where it is added to 1."""
    x = np.array([-15, -10, -4, -1, 0.5, 3, 100], "float32")
    expected = np.logaddexp(0, x.astype("float64"))
    expected = x * np.tanh(expected) if operator == "Mish" else expected
    model = model_and_arrays(operator, [x], {}, {})
    np.testing.assert_allclose(run(from_onnx(model)[0], x)[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("ReduceL2", lambda x: np.sqrt((x * x).sum(1))),
        ("ReduceLogSum", lambda x: np.log(x.sum(1))),
        ("ReduceLogSumExp", lambda x: np.log(np.exp(x).sum(1))),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_reduction_of_integers_is_that_of_floats_truncated(operator, function, dtype):
    x = np.array([[2, 3, 5], [40, 0, 41]], dtype)
    model = model_and_arrays(operator, [x], {"axes": [1]}, {"keepdims": 0})
    (found,) = run(from_onnx(model)[0], x)
    np.testing.assert_array_equal(found, function(x.astype("float64")).astype(dtype), strict=True)


def test_an_empty_list_of_axes_is_all_of_them():
    """As PyTorch exports `x.amax()`."""
    x = np.random.default_rng(0).random((3, 4), "float32")
    model = model_and_arrays("ReduceMax", [x], {}, {"keepdims": 0}, opset=17)
    model.graph.node[0].attribute.add(name="axes", type=onnx.AttributeProto.INTS)
    (found,) = run(from_onnx(model)[0], x)
    assert found == x.max()


@pytest.mark.parametrize(("operator", "of_none"), [("ReduceSum", 0), ("ReduceMin", np.inf)])
def test_reduction_of_an_axis_that_is_empty_at_run_time(operator, of_none):
    inputs = [tensor_input("x", (2, "n", 4)), tensor_input("axes", (1,), "int64")]
    model = model_of([helper.make_node(operator, ["x", "axes"], ["y"])], inputs, ["y"], opset=18)
    compute = compiled(from_onnx(model)[0])
    (found,) = compute(np.zeros((2, 0, 4), "float32"), np.array([1]))
    np.testing.assert_array_equal(found, np.full((2, 1, 4), of_none, "float32"))
    (found,) = compute(np.ones((2, 3, 4), "float32"), np.array([1]))
    np.testing.assert_array_equal(found, np.full((2, 1, 4), 3 if operator == "ReduceSum" else 1, "float32"))


def test_align_corners_by_scales_that_give_no_whole_size_is_refused():
    constants = {"": None, "scales": np.array([1, 1, 1, 0.7], "float32")}
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    model = model_and_arrays("Resize", [IMAGE], constants, attributes)
    with pytest.raises(ImportFailure, match="its scales give sizes that are not whole"):
        from_onnx(model)


def test_operators_of_one_name_and_two_domains():
    """TVM's importer takes ONNX's Attention for Microsoft's."""
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"], "it")
    with pytest.raises(ImportFailure, match=r"no converter for the operator of the node 'it' \(Attention\)"):
        from_onnx(model_of([node], [tensor_input("x", (1, 2, 4, 8))], ["y"]))


@pytest.mark.parametrize("known", [True, False])
def test_pad_by_negative_amounts(known):
    """Which onnx's reference does not know, and TVM's own reads beyond the tensor for."""
    pads = np.array([0, -1, 2, -1, 1, -2])
    arrays, constants = ([ROWS], {"pads": pads}) if known else ([ROWS, pads], {})
    (found,) = run(from_onnx(model_and_arrays("Pad", arrays, constants, {}))[0], *arrays)
    np.testing.assert_array_equal(found, np.pad(ROWS[:-1, 1:, :-2], [(0, 0), (0, 1), (2, 0)]))


@pytest.mark.parametrize("scale", [1.5, 1.3, 0.7, 0.5, 2.0])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_takes_the_scale_that_is_given(mode, scale):
    """TVM's own takes the ratio of the sizes, 10 / 7 for 1.5, which is another one."""
    constants = {"roi": np.zeros(0, "float32"), "scales": np.array([1, 1, scale, scale], "float32")}
    model = model_and_arrays("Resize", [IMAGE], constants, {"mode": mode}, opset=13)
    (found,) = run(from_onnx(model)[0], IMAGE)
    expected = IMAGE
    for axis in (2, 3):
        expected = resized(expected, axis, scale, mode)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_extremes_of_many_are_one_operator_each(operator):
    """More would be computed again in each that follows."""
    arrays = [np.array(row, "float32") for row in ([1, np.nan, 3], [2, 0, np.nan], [0, 9, 9], [7, 7, 7])]
    model = model_and_arrays(operator, arrays, {}, {})
    mod, _ = from_onnx(model)
    assert len(operators(mod)) == 3
    assert_matches_reference(mod, model, *arrays)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("scale", [0.5, 0.6, 1.5])
def test_resize_of_opset_10_takes_the_element_behind_where_it_makes_smaller(scale, known):
    """As in ONNX's own example for it, and in ONNX Runtime."""
    scales = np.array([1, 1, scale, 1], "float32")
    arrays, constants = ([IMAGE], {"scales": scales}) if known else ([IMAGE, scales], {})
    model = model_and_arrays("Resize", arrays, constants, {"mode": "nearest"}, opset=10)
    (found,) = run(from_onnx(model)[0], *arrays)
    at = np.arange(int(IMAGE.shape[2] * np.float32(scale))) / np.float32(scale)
    rows = (np.ceil(at) if scale < 1 else np.floor(at)).astype(int)
    np.testing.assert_array_equal(found, IMAGE[:, :, np.minimum(rows, IMAGE.shape[2] - 1)])


@pytest.mark.parametrize("shapes", [((3,), (2, "n", 4)), (("m", 3, 4), (4,))])
def test_a_matmul_of_a_vector_and_a_batch_known_at_run_time(shapes):
    inputs = [tensor_input(name, shape) for name, shape in zip("ab", shapes)]
    model = model_of([helper.make_node("MatMul", ["a", "b"], ["y"])], inputs, ["y"])
    arrays = [
        VALUES.normal(size=[{"m": 2, "n": 3}.get(size, size) for size in shape]).astype("float32")
        for shape in shapes
    ]
    assert_matches_reference(from_onnx(model)[0], model, *arrays)


def test_slopes_of_channels_where_sizes_are_known_at_run_time():
    inputs = [tensor_input("x", ("n", 2, "h", "w"))]
    slope = weights(slope=np.float32([0.5, -2]).reshape(2, 1, 1))
    model = model_of([helper.make_node("PRelu", ["x", "slope"], ["y"])], inputs, ["y"], slope)
    assert_matches_reference(from_onnx(model)[0], model, IMAGE)


@pytest.mark.parametrize("operator", ["PRelu", "Gemm"])
def test_what_broadcasts_before_opset_7(operator):
    """A slope for each channel; and an addend by an attribute that says so."""
    constants = {"PRelu": {"slope": ROWS[0, 0, :2]}, "Gemm": {"b": ROWS[0], "c": ROWS[0, 0]}}[operator]
    x, attributes = (IMAGE, {}) if operator == "PRelu" else (ROWS[0, :, :4].copy(), {"broadcast": 1})
    (found,) = run(from_onnx(model_and_arrays(operator, [x], constants, attributes, opset=6))[0], x)
    if operator == "PRelu":
        expected = np.where(x > 0, x, x * constants["slope"].reshape(1, 2, 1, 1))
    else:
        expected = x @ constants["b"] + constants["c"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_transposed_convolution_of_volumes_in_groups():
    """For which TVM has no kernel: each group is that of one channel."""
    x = VALUES.normal(size=(1, 2, 3, 4, 2)).astype("float32")
    weight = VALUES.normal(size=(2, 3, 2, 2, 2)).astype("float32")

    def convolved(x, weight, group):
        attributes = {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 0], "group": group}
        return run(from_onnx(model_and_arrays("ConvTranspose", [x], {"w": weight}, attributes))[0], x)[0]

    expected = [convolved(x[:, place : place + 1].copy(), weight[place : place + 1], 1) for place in (0, 1)]
    np.testing.assert_allclose(convolved(x, weight, 2), np.concatenate(expected, 1), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_fewer_elements_are_gathered_from_the_end(axis):
    indices = VALUES.integers(-3, 3, (2, 3, 2))
    model = model_and_arrays("GatherElements", [ROWS, indices], {}, {"axis": axis})
    kept = tuple(
        slice(None) if place == axis % 3 else slice(size) for place, size in enumerate(indices.shape)
    )
    expected = np.take_along_axis(ROWS[kept], indices, axis)
    np.testing.assert_array_equal(run(from_onnx(model)[0], ROWS, indices)[0], expected)


@pytest.mark.parametrize("outside", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [[4, 9], [3, 2]])
def test_an_antialiased_resize(mode, outside, sizes):
    """Pixels off the image are those at its border, unless they are excluded."""
    attributes = {"mode": mode, "antialias": 1, "exclude_outside": outside, "axes": [2, 3]}
    model = resize("sizes", sizes, attributes)
    assert_matches_reference(from_onnx(model)[0], model, IMAGE)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", [[4, 4], [10, 9]])
def test_a_resize_that_keeps_the_aspect_ratio_has_one_scale(mode, policy, sizes):
    """Which is not the ratio of the sizes, which are rounded."""
    attributes = {"mode": mode, "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    model = resize("sizes", sizes, attributes)
    assert_matches_reference(from_onnx(model)[0], model, IMAGE)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scale", [2, 3, 4])
def test_a_nearest_resize_by_a_whole_factor(scale, rounding):
    """Rounded down or up, centres lead to other elements than corners do."""
    scales = np.array([1, 1, scale, scale], "float32")
    model = resize("scales", scales, {"mode": "nearest", "nearest_mode": rounding})
    assert_matches_reference(from_onnx(model)[0], model, IMAGE)


def resize(name, value, attributes):
    """A Resize by `scales` or `sizes`."""
    omitted = ["", ""] if name == "sizes" else [""]
    node = helper.make_node("Resize", ["x", *omitted, name], ["y"], "it", **attributes)
    return model_of([node], [tensor_input("x", IMAGE.shape)], ["y"], weights(**{name: value}), opset=19)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (1, 5, 2, 3), (1, 5, 2, 1, 3)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_a_local_response_normalization(shape, size):
    """Of any rank and size; onnx's reference takes images of as many channels as there are."""
    x = VALUES.normal(size=shape).astype("float32")
    squares = np.zeros_like(x)
    for channel in range(5):
        first, last = max(0, channel - (size - 1) // 2), channel + size // 2
        squares[:, channel] = (x[:, first : last + 1] ** 2).sum(1)
    model = model_and_arrays("LRN", [x], {}, {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    (found,) = run(from_onnx(model)[0], x)
    np.testing.assert_allclose(found, x / (1.5 + 0.5 / size * squares) ** 0.6, rtol=1e-5)


def resized(x, axis, scale, mode):
    """As ONNX says for half_pixel and round_prefer_floor; neighbours off the map are those at its border."""
    size = x.shape[axis]
    places = np.arange(int(size * np.float32(scale)), dtype="float32")
    at = (places + np.float32(0.5)) / np.float32(scale) - np.float32(0.5)
    if mode == "nearest":
        return np.take(x, np.clip(np.ceil(at - 0.5).astype(int), 0, size - 1), axis)
    before, a = np.floor(at), -0.75
    result = 0
    for k in range(-1, 3):
        d = np.abs(at - before - k)
        cubic = np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, ((d - 5) * d + 8) * d * a - 4 * a)
        weight = np.maximum(1 - d, 0) if mode == "linear" else cubic
        taken = np.take(x, np.clip(before + k, 0, size - 1).astype(int), axis)
        result = result + taken * weight.reshape([-1 if place == axis else 1 for place in range(x.ndim)])
    return result


@pytest.mark.parametrize("operator", ["RNN", "LSTM", "GRU"])
def test_a_recurrent_network_backwards(operator):
    """TVM's own ignores the direction."""
    gates, hidden = {"RNN": 1, "LSTM": 4, "GRU": 3}[operator], 3
    constants = {
        "w": VALUES.normal(size=(1, gates * hidden, 2)).astype("float32"),
        "r": VALUES.normal(size=(1, gates * hidden, hidden)).astype("float32"),
    }
    x = VALUES.normal(size=(4, 1, 2)).astype("float32")

    def outputs(direction, array):
        attributes = {"hidden_size": hidden, "direction": direction}
        model = model_and_arrays(operator, [array], constants, attributes, 14, ("y", "last"))
        return run(from_onnx(model)[0], array)

    backwards, forwards = outputs("reverse", x), outputs("forward", x[::-1].copy())
    np.testing.assert_allclose(backwards[0], forwards[0][::-1], rtol=1e-5)
    np.testing.assert_allclose(backwards[1], forwards[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("operator", "attributes", "reason"),
    [
        ("LSTM", {"hidden_size": 3, "clip": 1.0}, r"its attribute clip=1\.0 is not supported"),
        ("Cast", {"to": onnx.TensorProto.FLOAT8E5M2}, "TVM has no tensors of type FLOAT8E5M2"),
        ("Dropout", {}, "its result in training is random"),
        ("RandomUniformLike", {}, "its result is random"),
        ("Resize", {"mode": "linear", "antialias": 1}, "it needs either scales or sizes"),
        ("TopK", {}, "it selects 5 of 2"),
        ("RNN", {"activations": ["Affine"]}, "ONNX has no alpha and beta for its activations"),
        ("NonZero", {}, "it is of a scalar"),
        ("Unsqueeze", {}, r"its axes \[4, -1\] name one more than once"),
    ],
)
def test_what_a_converter_does_not_know_is_refused(operator, attributes, reason):
    constants = {
        "LSTM": {"w": np.ones((1, 12, 2), "float32"), "r": np.ones((1, 12, 3), "float32")},
        "Dropout": {"ratio": np.float32(0.5), "training": np.array(True)},
        "RNN": {"w": np.ones((1, 3, 2), "float32"), "r": np.ones((1, 3, 3), "float32")},
        "TopK": {"k": [5]},
        "Unsqueeze": {"axes": [4, -1]},
    }.get(operator, {})
    outputs = ("y", "z") if operator == "TopK" else ("y",)
    x = np.ones(() if operator == "NonZero" else (4, 1, 2), "float32")
    model = model_and_arrays(operator, [x], constants, attributes, outputs=outputs)
    with pytest.raises(ImportFailure, match=rf"the node 'it' \({operator}\) cannot be converted: {reason}"):
        from_onnx(model)


def test_sizes_known_at_run_time_are_refused_where_tvm_has_no_kernel():
    node = helper.make_node("ReverseSequence", ["x", "n"], ["y"], "it", batch_axis=0, time_axis=1)
    model = model_of([node], [tensor_input("x", (2, "t", 3))], ["y"], weights(n=[1, 2]))
    refusal = "the node 'it' has dynamic sizes, and TVM compiles 'reverse_sequence' only for static shapes"
    with pytest.raises(ImportFailure, match=refusal):
        from_onnx(model)


def test_the_size_of_a_scalar_is_one():
    nodes = [helper.make_node("Size", ["x"], ["of all"]), helper.make_node("Size", ["of all"], ["y"])]
    model = model_of(nodes, [tensor_input("x", ROWS.shape)], ["y", "of all"])
    assert_matches_reference(from_onnx(model)[0], model, ROWS)


@pytest.mark.parametrize("operator", ["Abs", "Erf", "LogSoftmax", "Sin"])
def test_sizes_known_at_run_time(operator):
    """TVM has no shape function for these."""
    model = model_of([helper.make_node(operator, ["x"], ["y"])], [tensor_input("x", ("n", 3))], ["y"])
    assert_matches_reference(from_onnx(model)[0], model, ROWS[0, :, :3].copy())


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_a_global_pool_of_nothing_to_pool_is_refused(operator, shape):
    model = model_and_arrays(operator, [np.ones(shape, "float32")], {}, {})
    with pytest.raises(ImportFailure, match=f"its input has {len(shape)} axes, and none after batch"):
        from_onnx(model)
