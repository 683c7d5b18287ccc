"""What `from_onnx` takes, what it gives, and what it says where it cannot."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_passes
from frontends import ImportFailure, from_onnx
from tests.frontends.onnx_models import (
    assert_matches_reference,
    compiled,
    convolution,
    model_of,
    operators,
    reference,
    run,
    tensor_input,
    weights,
)

import tvm
from tvm import relay

IMAGE = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype("float32")


def affine(shape, opset=16):
    """y = x * scale, x of the shape given."""
    return model_of(
        [helper.make_node("Mul", ["x", "scale"], ["y"], "scaled")],
        [tensor_input("x", shape)],
        ["y"],
        weights(scale=np.float32(2.0)),
        opset,
    )


@pytest.fixture
def external(tmp_path):
    """A model saved with its weights in a file beside it; gives its path."""
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(convolution(), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def relocate(path, location):
    """Make a model name another file for its weights."""
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(location)
    path.write_bytes(model.SerializeToString())


class TestSources:
    def test_model_proto(self):
        model = convolution()
        mod, params = from_onnx(model)
        assert params == {}
        assert_matches_reference(mod, model, IMAGE)

    @pytest.mark.parametrize("kind", [str, lambda path: path])
    def test_path(self, tmp_path, kind):
        path = tmp_path / "model.onnx"
        onnx.save(convolution(), str(path))
        assert_matches_reference(from_onnx(kind(path))[0], convolution(), IMAGE)

    def test_the_users_model_is_not_changed(self):
        model = convolution()
        for node in model.graph.node:
            node.name = ""
        before = model.SerializeToString(deterministic=True)
        from_onnx(model)
        assert model.SerializeToString(deterministic=True) == before

    def test_the_numbers_of_the_stock_importer(self):
        if not hasattr(onnx, "mapping"):
            pytest.skip("TVM's own importer does not work with this onnx")
        stock, _ = relay.frontend.from_onnx(convolution())
        ours, _ = from_onnx(convolution())
        for found, expected in zip(run(ours, IMAGE), run(stock, IMAGE)):
            np.testing.assert_array_equal(found, expected)

    def test_the_stock_importer_stays_as_it_is(self):
        module = relay.frontend.onnx
        before = dict(vars(module)), dict(vars(relay.frontend.common))
        filters = list(relay.frontend.common.logger.filters)
        from_onnx(convolution())
        assert (dict(vars(module)), dict(vars(relay.frontend.common))) == before
        assert relay.frontend.common.logger.filters == filters

    def test_parameters_that_are_not_frozen(self):
        mod, params = from_onnx(convolution(), freeze_params=False)
        assert sorted(params) == ["bias", "kernel"]
        assert [param.name_hint for param in mod["main"].params] == ["image", "kernel", "bias"]

    def test_something_else(self):
        with pytest.raises(TypeError, match=r"path or an onnx.ModelProto, not int"):
            from_onnx(3)


class TestExternalData:
    def test_beside_the_model(self, external):
        assert_matches_reference(from_onnx(external)[0], convolution(), IMAGE)

    def test_from_another_working_directory(self, external, monkeypatch):
        monkeypatch.chdir(external.parent.parent)
        assert_matches_reference(from_onnx("model/model.onnx")[0], convolution(), IMAGE)

    def test_not_loaded(self, external):
        model = onnx.load(str(external), load_external_data=False)
        with pytest.raises(ImportFailure, match=r"'kernel' are in a file beside the model.*pass the path"):
            from_onnx(model)

    @pytest.mark.parametrize("location", ["../weights.bin", "inner/../../weights.bin"])
    def test_above_the_folder(self, external, location):
        os.replace(external.parent / "weights.bin", external.parent.parent / "weights.bin")
        relocate(external, location)
        with pytest.raises(ImportFailure, match=r"outside the model's folder .*; it is not read"):
            from_onnx(external)

    def test_absolute(self, external):
        relocate(external, external.parent / "weights.bin")
        with pytest.raises(ImportFailure, match=r"outside the model's folder"):
            from_onnx(external)

    @pytest.mark.parametrize("link", ["weights.bin", "inner"])
    def test_through_a_symbolic_link(self, external, link):
        elsewhere = external.parent.parent / "elsewhere"
        elsewhere.mkdir()
        os.replace(external.parent / "weights.bin", elsewhere / "weights.bin")
        if link == "inner":
            (external.parent / "inner").symlink_to(elsewhere)
            relocate(external, "inner/weights.bin")
        else:
            (external.parent / "weights.bin").symlink_to(elsewhere / "weights.bin")
        with pytest.raises(ImportFailure, match=r"outside the model's folder"):
            from_onnx(external)

    def test_missing(self, external):
        (external.parent / "weights.bin").unlink()
        with pytest.raises(ImportFailure, match=r"'weights.bin', but there is no such file"):
            from_onnx(external)

    def test_cut_short(self, external):
        data = external.parent / "weights.bin"
        data.write_bytes(data.read_bytes()[:-1])
        with pytest.raises(ImportFailure, match="the file is not complete"):
            from_onnx(external)

    def test_in_a_constant_inside_a_branch(self, external):
        """Not only initializers have tensors."""
        value = weights(value=np.float32(1.0))[0]
        value.data_location = onnx.TensorProto.EXTERNAL
        value.external_data.add(key="location", value="../secret")
        constant = helper.make_node("Constant", [], ["one"], value=value)
        outputs = [helper.make_tensor_value_info("one", 1, [])]
        branch = helper.make_graph([constant], "branch", [], outputs)
        node = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)
        model = model_of([node], [tensor_input("condition", (), "bool")], ["y"])
        external.write_bytes(model.SerializeToString())
        with pytest.raises(ImportFailure, match=r"'../secret', which is outside"):
            from_onnx(external)


class TestBrokenModels:
    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no ONNX model at .*absent.onnx"):
            from_onnx(tmp_path / "absent.onnx")

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
    def test_truncated(self, tmp_path, part):
        whole = convolution().SerializeToString()
        path = tmp_path / "model.onnx"
        path.write_bytes(whole[: int(part * len(whole))])
        with pytest.raises(ImportFailure, match=r"not an ONNX model|is not complete") as failure:
            from_onnx(path)
        assert "\n" not in str(failure.value)

    @pytest.mark.parametrize("content", [b"no model at all\n" * 20, bytes(range(256))])
    def test_another_kind_of_file(self, tmp_path, content):
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        with pytest.raises(ImportFailure, match=r"model.onnx is not an ONNX model"):
            from_onnx(path)

    def test_a_value_that_nothing_computes(self):
        model = convolution()
        del model.graph.initializer[:]
        with pytest.raises(ImportFailure, match=r"the node 'conv' \(Conv\) reads 'kernel'.*not complete"):
            from_onnx(model)

    def test_an_output_that_nothing_computes(self):
        model = convolution()
        del model.graph.node[2]
        with pytest.raises(ImportFailure, match="no node computes the output 'mean'"):
            from_onnx(model)

    def test_operators_that_nobody_knows(self):
        model = model_of(
            [
                helper.make_node("Relu", ["x"], ["a"], "known", domain="my.domain"),
                helper.make_node("Frobnicate", ["a"], ["y"], "second"),
            ],
            [tensor_input("x", (2,))],
            ["y"],
            domains=["my.domain"],
        )
        with pytest.raises(ImportFailure) as failure:
            from_onnx(model)
        assert "'known' (my.domain.Relu)" in str(failure.value)
        assert "'second' (Frobnicate)" in str(failure.value)

    def test_a_node_that_cannot_be_converted(self, capfd):
        model = model_of(
            [helper.make_node("Add", ["x", "w"], ["y"], "sum")],
            [tensor_input("x", (2, 3))],
            ["y"],
            weights(w=np.ones(4, "float32")),
        )
        with pytest.raises(ImportFailure, match=r"the node 'sum' \(Add\) cannot be converted") as failure:
            from_onnx(model)
        assert "\n" not in str(failure.value)
        assert failure.value.__cause__ is not None
        assert capfd.readouterr() == ("", "")

    def test_a_node_without_a_name_is_named_by_its_output(self):
        model = model_of([helper.make_node("Frobnicate", ["x"], ["y"])], [tensor_input("x", (2,))], ["y"])
        with pytest.raises(ImportFailure, match=r"the node 'y' \(Frobnicate\)"):
            from_onnx(model)


class TestShapes:
    def test_no_shape(self):
        with pytest.raises(ImportFailure, match=r"shape of the input 'x'; pass shapes=\{'x': \(...\)\}"):
            from_onnx(affine(None))

    def test_no_shape_in_the_model_but_in_the_call(self):
        mod, _ = from_onnx(affine(None), shapes={"x": (2, 3)})
        assert mod["main"].params[0].checked_type == relay.TensorType((2, 3))

    @pytest.mark.parametrize("size", ["batch", None])
    def test_a_size_that_is_not_known_stays_dynamic(self, size):
        model = affine((size, 3))
        mod, _ = from_onnx(model)
        assert tvm.ir.structural_equal(mod["main"].params[0].checked_type, relay.TensorType((relay.Any(), 3)))
        assert_matches_reference(mod, model, np.ones((5, 3), "float32"))

    def test_fixed(self):
        mod, _ = from_onnx(affine(("batch", 3)), shapes={"x": (np.int64(4), 3)})
        assert mod["main"].checked_type.ret_type == relay.TensorType((4, 3))

    def test_changed(self):
        mod, _ = from_onnx(affine((1, 3)), shapes={"x": (None, 3)})
        assert tvm.ir.structural_equal(mod["main"].params[0].checked_type, relay.TensorType((relay.Any(), 3)))

    def test_another_rank(self):
        with pytest.raises(ImportFailure, match="the input 'x' has 2 dimensions"):
            from_onnx(affine((1, 3)), shapes={"x": (1, 3, 4)})

    def test_a_size_by_name(self):
        with pytest.raises(ImportFailure, match=r"shapes has 'batch' as a size of the input 'x': give each"):
            from_onnx(affine(("batch", 3)), shapes={"x": ("batch", 3)})

    def test_no_such_input(self):
        with pytest.raises(
            ImportFailure, match=r"shapes has 'z', which is not an input; the inputs are \['x'\]"
        ):
            from_onnx(affine((1, 3)), shapes={"z": (1, 3)})

    def test_an_initializer_is_no_input(self):
        """Old models list their weights among the inputs."""
        model = affine((2,))
        model.graph.input.append(tensor_input("scale", ()))
        mod, _ = from_onnx(model)
        assert list(mod["main"].attrs["input_names"]) == ["x"]

    def test_an_element_type_that_tvm_has_not(self):
        model = affine((2,))
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E5M2
        with pytest.raises(
            ImportFailure, match="the input 'x' cannot be imported: TVM has no tensors of type FLOAT8"
        ):
            from_onnx(model)

    def test_an_input_that_is_no_tensor(self):
        model = affine((2,))
        sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2]))
        model.graph.input.append(helper.make_value_info("xs", sequence))
        with pytest.raises(ImportFailure, match="the input 'xs' is not a tensor"):
            from_onnx(model)


class TestResult:
    def test_names_of_inputs_and_outputs(self):
        mod, _ = from_onnx(convolution())
        assert list(mod["main"].attrs["input_names"]) == ["image"]
        assert list(mod["main"].attrs["output_names"]) == ["features", "mean"]

    def test_spans_name_the_nodes(self):
        found = set()

        def visit(expr):
            if isinstance(expr, relay.Call) and expr.span:
                found.add(expr.span.source_name.name)

        with tvm.transform.PassContext(config={"relay.frontend.fill_span": False}):
            mod, _ = from_onnx(convolution())
        relay.analysis.post_order_visit(mod["main"], visit)
        assert found == {"conv", "relu", "pool"}

    def test_nothing_is_printed_without_a_terminal(self, capfd, monkeypatch):
        monkeypatch.setattr("tvm_passes.progress.SECONDS_BEFORE_SHOWN", 0)
        from_onnx(convolution())
        assert capfd.readouterr() == ("", "")

    def test_progress_on_a_terminal(self):
        """In a child process, whose standard error is a terminal."""
        script = (
            "import frontends, tvm_passes.progress\n"
            "tvm_passes.progress.SECONDS_BEFORE_SHOWN = 0\n"
            "from tests.frontends.onnx_models import convolution\n"
            "frontends.from_onnx(convolution())\n"
        )
        written = _on_a_terminal(script)
        assert b"Importing ONNX" in written and b"100%" in written


def _on_a_terminal(script):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as child:
        child.wait(timeout=120)
    os.set_blocking(ours, False)
    written = os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    return written


@pytest.mark.parametrize("size", [3, "n"])
def test_branches_whose_results_differ_in_size(size):
    """The size of the result is known only at run time; after the passes, too."""

    def branch(name, *nodes):
        outputs = [tensor_input(f"{name}{place}", None) for place in range(2)]
        return helper.make_graph(nodes, name, [], outputs)

    then = branch(
        "a", helper.make_node("Concat", ["x", "x"], ["a0"], axis=0), helper.make_node("Neg", ["x"], ["a1"])
    )
    otherwise = branch(
        "b", helper.make_node("Identity", ["x"], ["b0"]), helper.make_node("Identity", ["none"], ["b1"])
    )
    node = helper.make_node("If", ["condition"], ["y", "z"], "it", then_branch=then, else_branch=otherwise)
    inputs = [tensor_input("x", (size, 2)), tensor_input("condition", (1,), "bool")]
    model = model_of([node], inputs, ["y", "z"], weights(none=np.zeros((0, 2), "float32")))
    mod, _ = from_onnx(model)
    x = np.random.default_rng(0).normal(size=(3, 2)).astype("float32")
    for compute in compiled(mod), compiled(tvm_passes.default_pipeline()(mod)):
        for holds in True, False:
            arrays = x, np.array([holds])
            for found, expected in zip(compute(*arrays), reference(model, *arrays)):
                np.testing.assert_array_equal(found, expected)


class TestDeadBranches:
    def branches(self, condition_from):
        """If(condition) x + 1 else x - 1, with a condition that is computed or given."""

        def output(name):
            return helper.make_tensor_value_info(name, 1, None)

        then = helper.make_graph(
            [helper.make_node("Add", ["x", "one"], ["a"], "then")], "then", [], [output("a")]
        )
        otherwise = helper.make_graph(
            [helper.make_node("Sub", ["x", "one"], ["b"], "else")], "else", [], [output("b")]
        )
        node = helper.make_node("If", ["condition"], ["y"], "if", then_branch=then, else_branch=otherwise)
        return [*condition_from, node]

    def test_a_condition_on_a_static_shape(self):
        nodes = self.branches(
            [
                helper.make_node("Size", ["x"], ["size"]),
                helper.make_node("Equal", ["size", "zero"], ["is_empty"]),
                helper.make_node("Not", ["is_empty"], ["condition"]),
            ]
        )
        initializers = weights(one=np.float32(1), zero=np.int64(0))
        model = model_of(nodes, [tensor_input("x", (3,))], ["y"], initializers)
        mod, _ = from_onnx(model)
        assert operators(mod) == ["add"]
        assert "if" not in mod.astext()

    @pytest.mark.parametrize("condition", [True, False])
    def test_a_condition_known_at_run_time_only(self, condition):
        inputs = [tensor_input("x", (3,)), tensor_input("condition", (), "bool")]
        model = model_of(self.branches([]), inputs, ["y"], weights(one=np.float32(1)))
        mod, _ = from_onnx(model)
        assert_matches_reference(mod, model, np.ones(3, "float32"), np.array(condition))
