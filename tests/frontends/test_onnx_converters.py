"""The converters of this project's own, against onnx's reference, and the folding that shapes need."""

import numpy as np
import pytest
from onnx import helper

from frontends import from_onnx
from frontends._types import sizes
from tests.frontends.onnx_models import (
    assert_matches_reference,
    compiled,
    model_of,
    operators,
    run,
    tensor_input,
    weights,
)

RANDOM = np.random.default_rng(0)


class TestSlice:
    BOUNDS = [  # noqa: RUF012
        (0, 5, 1),
        (2, 5, 1),
        (2, 2**31 - 1, 1),
        (-3, 2**63 - 1, 1),
        (0, -2, 1),
        (-4, -1, 1),
        (5, 3, 1),
        (6, 9, 1),
        (1, 2**63 - 1, 3),
        (-1, -(2**63), -1),
        (4, 0, -2),
        (2**63 - 1, -4, -1),
    ]

    def sliced(self, size, start, end, step):
        node = helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])
        bounds = weights(
            start=np.array([start]), end=np.array([end]), axis=np.array([1]), step=np.array([step])
        )
        return model_of([node], [tensor_input("x", (2, size))], ["y"], bounds)

    @pytest.mark.parametrize("bounds", BOUNDS)
    def test_static(self, bounds):
        model = self.sliced(7, *bounds)
        assert_matches_reference(from_onnx(model)[0], model, RANDOM.normal(size=(2, 7)).astype("float32"))

    @pytest.mark.parametrize("bounds", BOUNDS)
    def test_along_a_size_known_at_run_time(self, bounds):
        model = self.sliced("n", *bounds)
        compute = compiled(from_onnx(model)[0])
        for size in (7, 3, 1):
            x = RANDOM.normal(size=(2, size)).astype("float32")
            np.testing.assert_array_equal(compute(x)[0], x[:, slice(*bounds)])

    @pytest.mark.parametrize("size", [7, "n"])
    def test_along_axes_known_at_run_time(self, size):
        names = ["start", "end", "axis", "step"]
        node = helper.make_node("Slice", ["x", *names], ["y"])
        inputs = [tensor_input("x", (2, size, 3)), *(tensor_input(name, (2,), "int64") for name in names)]
        model = model_of([node], inputs, ["y"])
        compute = compiled(from_onnx(model)[0])
        x = RANDOM.normal(size=(2, 7, 3)).astype("float32")
        for bounds in [(-100, 100, 1), (-100, 100, 3), (-1, -(2**63), -2), (2, 2**63 - 1, 1)]:
            for axis in (1, -2):
                rows = zip(bounds, (-2, 2, 1))
                start, end, step = (np.array(row) for row in rows)
                given = (x, start, end, np.array([axis, 2]), step)
                expected = x[:, slice(*bounds), -2:2]
                np.testing.assert_array_equal(compute(*given)[0], expected)

    @pytest.mark.parametrize("size", [7, "n"])
    @pytest.mark.parametrize("given", [["start"], ["end"], ["start", "end", "step"]])
    def test_by_bounds_known_at_run_time(self, size, given):
        outside = [(-9, 5, 1), (-20, -18, 1), (0, -20, 1), (3, 5, -1)]
        outside += [(-9, -20, -1), (-20, 0, -2), (-7, -8, -1), (9, -9, -3), (2**63 - 1, -(2**63), -1)]
        x = RANDOM.normal(size=(2, 7)).astype("float32")
        for fixed in [{"start": 2, "end": 2**63 - 1, "step": 1}, {"start": -3, "end": -1, "step": 1}]:
            model = self.sliced(size, *fixed.values())
            left = [each for each in model.graph.initializer if each.name not in given]
            del model.graph.initializer[:]
            model.graph.initializer.extend(left)
            model.graph.input.extend(tensor_input(name, (1,), "int64") for name in given)
            compute = compiled(from_onnx(model)[0])
            for bounds in [*self.BOUNDS, *outside]:
                asked = {name: dict(zip(fixed, bounds))[name] for name in given}
                found = compute(x, *(np.array([bound]) for bound in asked.values()))[0]
                expected = x[:, slice(*{**fixed, **asked}.values())]
                np.testing.assert_array_equal(found, expected, str({**fixed, **asked}))

    @pytest.mark.parametrize("size", [7, "n"])
    @pytest.mark.parametrize("end", [2**31 - 1, 2**63 - 1])
    def test_one_that_changes_nothing_is_gone(self, size, end):
        model = self.sliced(size, 0, end, 1)
        assert operators(from_onnx(model)[0]) == []

    def test_bounds_in_attributes(self):
        """As before opset 10."""
        node = helper.make_node("Slice", ["x"], ["y"], starts=[1, 0], ends=[3, 1000], axes=[1, 0])
        model = model_of([node], [tensor_input("x", (2, 4))], ["y"], opset=9)
        x = RANDOM.normal(size=(2, 4)).astype("float32")
        np.testing.assert_array_equal(run(from_onnx(model)[0], x)[0], x[:, 1:3])


class TestGather:
    @pytest.mark.parametrize("index", [0, -1, 2])
    def test_a_scalar_known_at_run_time(self, index):
        """TVM's own converter gives a wrong shape here."""
        node = helper.make_node("Gather", ["x", "index"], ["y"])
        model = model_of(
            [node], [tensor_input("x", ("n", "m", 3)), tensor_input("index", (), "int64")], ["y"]
        )
        x = RANDOM.normal(size=(4, 2, 3)).astype("float32")
        assert_matches_reference(from_onnx(model)[0], model, x, np.array(index))

    def test_indices_that_may_be_negative(self):
        node = helper.make_node("Gather", ["x", "index"], ["y"], axis=1)
        model = model_of([node], [tensor_input("x", (2, 5)), tensor_input("index", (3,), "int64")], ["y"])
        x = RANDOM.normal(size=(2, 5)).astype("float32")
        assert_matches_reference(from_onnx(model)[0], model, x, np.array([0, -1, -5]))

    def test_indices_that_cannot_be_negative_are_taken_as_they_are(self):
        nodes = [
            helper.make_node("NonZero", ["x"], ["found"]),
            helper.make_node("Squeeze", ["found", "axis"], ["indices"]),
            helper.make_node("Gather", ["x", "indices"], ["y"]),
        ]
        model = model_of(nodes, [tensor_input("x", (6,))], ["y"], weights(axis=np.array([0])))
        mod, _ = from_onnx(model)
        assert "where" not in operators(mod)
        assert_matches_reference(mod, model, np.array([0, 1, 0, 2, 3, 0], "float32"))


class TestRoiAlign:
    BOXES = np.array(  # inside, smaller than a pixel, empty, over the edge, wholly outside
        [[1, 1, 9, 7], [3, 3, 3.2, 3.4], [4, 4, 4, 4], [-3, -2, 30, 5], [40, 40, 60, 50]], "float32"
    )

    @pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel", None])
    @pytest.mark.parametrize("mode", ["avg", "max"])
    @pytest.mark.parametrize("ratio", [2, 0])
    def test_against_the_reference(self, coordinates, mode, ratio):
        if (mode, ratio, coordinates) == ("avg", 0, "output_half_pixel"):
            pytest.skip("TVM's own operator, whose buffer for adaptive samples is too small for such boxes")
        given = {"coordinate_transformation_mode": coordinates} if coordinates else {}
        node = helper.make_node(
            "RoiAlign",
            ["x", "boxes", "images"],
            ["y"],
            mode=mode,
            sampling_ratio=ratio,
            spatial_scale=0.5,
            output_height=3,
            output_width=2,
            **given,
        )
        inputs = [
            tensor_input("x", (2, 3, 8, 10)),
            tensor_input("boxes", ("n", 4)),
            tensor_input("images", ("n",), "int64"),
        ]
        model = model_of([node], inputs, ["y"])
        x = RANDOM.normal(size=(2, 3, 8, 10)).astype("float32")
        assert_matches_reference(from_onnx(model)[0], model, x, self.BOXES, np.array([0, 1, 0, 1, 1]))


class TestClip:
    X = np.array([-3, -1, 0, 2, 5], "float32")

    @pytest.mark.parametrize("low", [None, "constant", "input"])
    @pytest.mark.parametrize("high", [None, "constant", "input"])
    def test_bounds(self, low, high):
        """TVM's own converter forgets a constant upper bound that stands alone."""
        bounds = {"low": (low, np.float32(-1.5)), "high": (high, np.float32(2.5))}
        names = [name if kind else "" for name, (kind, _) in bounds.items()]
        given = {name: value for name, (kind, value) in bounds.items() if kind == "input"}
        constants = {name: value for name, (kind, value) in bounds.items() if kind == "constant"}
        inputs = [tensor_input("x", (5,)), *(tensor_input(name, ()) for name in given)]
        model = model_of(
            [helper.make_node("Clip", ["x", *names], ["y"])], inputs, ["y"], weights(**constants)
        )
        assert_matches_reference(from_onnx(model)[0], model, self.X, *given.values())

    @pytest.mark.parametrize("attributes", [{"min": -1.5}, {"max": 2.5}, {"min": -1.5, "max": 2.5}, {}])
    def test_bounds_in_attributes(self, attributes):
        """As before opset 11."""
        node = helper.make_node("Clip", ["x"], ["y"], **attributes)
        mod, _ = from_onnx(model_of([node], [tensor_input("x", (5,))], ["y"], opset=6))
        expected = np.clip(self.X, attributes.get("min", -np.inf), attributes.get("max", np.inf))
        np.testing.assert_array_equal(run(mod, self.X)[0], expected)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(mode):
    """Several channels: with one, both modes agree."""
    node = helper.make_node(
        "SpaceToDepth", ["x"], ["y"], blocksize=2, **({} if mode == "DCR" else {"mode": mode})
    )
    model = model_of([node], [tensor_input("x", (2, 3, 4, 6))], ["y"])
    x = RANDOM.normal(size=(2, 3, 4, 6)).astype("float32")
    tiles = x.reshape(2, 3, 2, 2, 3, 2).transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    np.testing.assert_array_equal(run(from_onnx(model)[0], x)[0], tiles.reshape(2, 12, 2, 3))


@pytest.mark.parametrize("operator", ["Identity", "Concat", "Split", "Cast"])
def test_what_changes_nothing_is_gone(operator):
    attributes = {"Concat": {"axis": 0}, "Split": {"axis": 0}, "Cast": {"to": 1}}.get(operator, {})
    nodes = [helper.make_node(operator, ["x"], ["a"], **attributes), helper.make_node("Relu", ["a"], ["y"])]
    model = model_of(nodes, [tensor_input("x", (2, 3))], ["y"])
    mod, _ = from_onnx(model)
    assert operators(mod) == ["nn.relu"]


class TestShapeArithmetic:
    def test_sizes_that_are_known_of_a_shape_that_is_not(self):
        """Reshape(x, [Shape(x)[0], Shape(x)[1] * Shape(x)[2]]): the first is what is left."""
        nodes = [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "zero"], ["n"]),
            helper.make_node("Gather", ["shape", "one"], ["channels"]),
            helper.make_node("Gather", ["shape", "two"], ["width"]),
            helper.make_node("Mul", ["channels", "width"], ["features"]),
            helper.make_node("Concat", ["n", "features"], ["new_shape"], axis=0),
            helper.make_node("Reshape", ["x", "new_shape"], ["y"]),
        ]
        indices = weights(zero=np.array([0]), one=np.array([1]), two=np.array([2]))
        model = model_of(nodes, [tensor_input("x", ("n", 3, 5))], ["y"], indices)
        mod, _ = from_onnx(model)
        assert operators(mod) == ["reshape"]
        assert_matches_reference(mod, model, RANDOM.normal(size=(4, 3, 5)).astype("float32"))

    def test_an_operator_that_is_told_its_shape_keeps_the_sizes_that_are_known(self):
        nodes = [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("ConstantOfShape", ["shape"], ["y"]),
        ]
        model = model_of(nodes, [tensor_input("x", ("n", 3))], ["y"])
        mod, _ = from_onnx(model)
        result = mod["main"].checked_type.ret_type
        assert sizes(result) == (None, 3)
        assert run(mod, np.ones((5, 3), "float32"))[0].shape == (5, 3)

    @pytest.mark.parametrize("rows", [0, 1, 5])
    def test_expand_to_a_number_of_rows_known_at_run_time(self, rows):
        nodes = [
            helper.make_node("Shape", ["like"], ["new_shape"]),
            helper.make_node("Expand", ["x", "new_shape"], ["y"]),
        ]
        model = model_of(nodes, [tensor_input("x", (1, 3)), tensor_input("like", ("n", 1))], ["y"])
        mod, _ = from_onnx(model)
        x = np.arange(3, dtype="float32").reshape(1, 3)
        (found,) = run(mod, x, np.zeros((rows, 1), "float32"))
        np.testing.assert_array_equal(found, np.broadcast_to(x, (rows, 3)))

    @pytest.mark.parametrize("rows", [0, 1, 5])
    @pytest.mark.parametrize("new_shape, shape", [([1, 1], (-1, 3)), ([2, 1, 3], (2, -1, 3)), ([1], (-1, 3))])
    def test_expand_of_a_number_of_rows_known_at_run_time(self, new_shape, shape, rows):
        nodes = [helper.make_node("Expand", ["x", "new_shape"], ["y"])]
        constants = weights(new_shape=np.array(new_shape))
        mod, _ = from_onnx(model_of(nodes, [tensor_input("x", ("n", 3))], ["y"], constants))
        x = np.arange(rows * 3, dtype="float32").reshape(rows, 3)
        (found,) = run(mod, x)
        np.testing.assert_array_equal(found, np.broadcast_to(x, [rows if n < 0 else n for n in shape]))

    def test_the_idiom_of_expand(self):
        """Where(shape == -1, 1, shape), which PyTorch's exporter writes, folds."""
        nodes = [
            helper.make_node("ConstantOfShape", ["rank"], ["ones"], value=weights(v=np.array([1]))[0]),
            helper.make_node("Mul", ["ones", "minus_one"], ["minus_ones"]),
            helper.make_node("Equal", ["shape", "minus_ones"], ["kept"]),
            helper.make_node("Where", ["kept", "ones", "shape"], ["new_shape"]),
            helper.make_node("Expand", ["x", "new_shape"], ["y"]),
        ]
        constants = weights(rank=np.array([2]), minus_one=np.array([-1]), shape=np.array([4, -1]))
        model = model_of(nodes, [tensor_input("x", (1, 3))], ["y"], constants)
        mod, _ = from_onnx(model)
        assert operators(mod) == ["broadcast_to"]


def test_nearest_resize_as_tensorflow_counts_centres():
    x = RANDOM.normal(size=(1, 1, 7, 9)).astype("float32")
    node = helper.make_node(
        "Resize",
        ["x", "none", "none", "sizes"],  # neither was optional in opset 11
        ["y"],
        coordinate_transformation_mode="tf_half_pixel_for_nn",
        nearest_mode="floor",
    )
    values = weights(none=np.zeros(0, "float32"), sizes=np.array([1, 1, 5, 20]))
    mod, _ = from_onnx(model_of([node], [tensor_input("x", x.shape)], ["y"], values, opset=11))
    rows, columns = (np.floor((np.arange(n) + 0.5) * size / n).astype(int) for n, size in ((5, 7), (20, 9)))
    np.testing.assert_array_equal(run(mod, x)[0], x[:, :, rows][..., columns])
