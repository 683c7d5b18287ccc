"""Files that are no valid models: one clear line for each, and a process that lives on."""

import random
import shutil
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from frontends import ImportFailure, from_onnx
from frontends.errors import NO_REASON, gist
from tests.frontends.onnx_models import model_of, tensor_input, weights
from tests.hostile import seeds, trial
from tests.hostile.campaign import FOUND, run, written
from tests.hostile.mutators import change_bytes
from tests.hostile.trial import Trial, is_clear
from tvm_passes import runtime
from tvm_passes.runtime import FolderError
from tvm_passes.runtime.manifest import MANIFEST, PARAMETERS, library_of

import tvm
from tvm import relay


@pytest.fixture
def model():
    return seeds.network()


def refusal(model):
    with pytest.raises(ImportFailure) as failure:
        from_onnx(model)
    message = str(failure.value)
    assert is_clear(message), message
    return message


def chain(length, op="Relu"):
    nodes = [helper.make_node(op, [f"x{i}"], [f"x{i + 1}"]) for i in range(length)]
    return model_of(nodes, [tensor_input("x0", (2,))], [f"x{length}"])


class TestGraphs:
    def test_a_cycle(self, model):
        model.graph.node[0].input[0] = "a"
        assert "'conv1' (Conv) reads 'a', which only it or a later node computes" in refusal(model)

    def test_a_value_that_two_nodes_compute(self, model):
        model.graph.node[4].output[0] = "c1"
        assert "computes 'c1', which the node 'conv1' (Conv) computes already" in refusal(model)

    def test_two_weights_of_one_name(self, model):
        model.graph.initializer.append(model.graph.initializer[0])
        assert "'w1' is the name of more than one initializer" in refusal(model)

    def test_an_input_without_a_name(self, model):
        model.graph.input[0].name = ""
        assert "an input of the graph 'test' has no name" in refusal(model)

    def test_a_node_without_an_output(self, model):
        del model.graph.node[0].output[:]
        assert "'conv1' (Conv) has no output" in refusal(model)

    def test_no_outputs(self, model):
        del model.graph.output[:]
        assert refusal(model) == "the model has no outputs"

    def test_a_name_of_several_lines(self, model):
        model.graph.node[0].op_type = "Conv\nTraceback"
        with pytest.raises(ImportFailure) as failure:
            from_onnx(model)
        assert "\n" not in str(failure.value)

    def test_a_name_that_is_not_utf_8(self, model, tmp_path):
        data = model.SerializeToString()
        path = tmp_path / "model.onnx"
        path.write_bytes(data.replace(b"residual", b"resid\xffal"))
        assert "not UTF-8" in refusal(path) or "cannot be parsed" in refusal(path)

    def test_a_chain_that_would_overflow_the_stack(self):
        assert "ends a chain of more than 10000 operators" in refusal(chain(12_000))

    @pytest.mark.parametrize("opset", [-1, 0, 2**40])
    def test_an_opset_that_there_is_not(self, model, opset):
        model.opset_import[0].version = opset
        assert f"declares opset {opset}, which does not exist" in refusal(model)

    def test_an_opset_of_a_later_onnx(self, model):
        known = onnx.defs.onnx_opset_version()
        major, minor = map(int, onnx.__version__.split(".")[:2])
        model.opset_import[0].version = known + 2
        message = refusal(model)
        assert f"the installed onnx {onnx.__version__} knows 1 to {known}" in message
        assert f"pip install 'onnx>={major}.{minor + 2}'" in message


class TestFunctions:
    def calls(self, *callees):
        """A model of functions F0, F1, ..., and whom each calls."""
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
        model = model_of(
            [helper.make_node("F0", ["x"], ["y"], domain="f")],
            [tensor_input("x", (2,))],
            ["y"],
            opset=18,
            domains=["f"],
        )
        for index, called in enumerate(callees):
            nodes = [
                helper.make_node(f"F{other}", [f"a{place}"], [f"a{place + 1}"], domain="f")
                for place, other in enumerate(called)
            ]
            nodes = nodes or [helper.make_node("Relu", ["a0"], ["a1"])]
            last = [f"a{len(nodes)}"]
            model.functions.append(helper.make_function("f", f"F{index}", ["a0"], last, nodes, opsets))
        return model

    @pytest.mark.parametrize("callees", [[[0]], [[1], [0]], [[1], [2], [1]]])
    def test_that_call_themselves(self, callees):
        assert "calls itself" in refusal(self.calls(*callees))

    def test_that_double_many_times(self):
        model = self.calls(*[[index + 1, index + 1] for index in range(60)], [])
        assert "the model's functions, inlined, have more than 1000000 nodes" in refusal(model)

    def test_that_call_each_other_in_order(self):
        mod, _ = from_onnx(self.calls([1, 1], [2], []))
        assert mod["main"].checked_type.ret_type == relay.TensorType((2,))


class TestNodes:
    def node(self, op, *arguments, count=1, **attributes):
        nodes = [helper.make_node(op, list(arguments), ["y"], "it", **attributes)]
        return model_of(nodes, [tensor_input("x", (1, 2, 4, 4))], ["y"], weights(w=np.float32(1)))

    def test_an_attribute_of_another_type(self):
        message = refusal(self.node("MaxPool", "x", kernel_shape=2.5))
        assert message == (
            "the attribute kernel_shape of the node 'it' (MaxPool) is of type FLOAT; MaxPool expects INTS"
        )

    def test_an_attribute_that_is_missing(self):
        assert "lacks the attribute kernel_shape" in refusal(self.node("MaxPool", "x"))

    def test_an_attribute_that_is_there_twice(self):
        model = self.node("MaxPool", "x", kernel_shape=[2, 2])
        model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
        assert "has the attribute kernel_shape more than once" in refusal(model)

    @pytest.mark.parametrize("arguments", [[], ["x", "w"]])
    def test_too_few_or_too_many_inputs(self, arguments):
        assert f"has {len(arguments)} inputs; Relu has 1" in refusal(self.node("Relu", *arguments))

    def test_an_input_left_out_that_is_needed(self):
        assert "has no input 0 (A), which it needs" in refusal(self.node("Add", "", "x"))


class TestWeights:
    def weight(self, tensor):
        tensor.name = "w"
        nodes = [helper.make_node("Add", ["x", "w"], ["y"], "sum")]
        return model_of(nodes, [tensor_input("x", (2,))], ["y"], [tensor])

    def test_with_too_few_bytes(self):
        tensor = weights(w=np.ones(2, "float32"))[0]
        tensor.raw_data = tensor.raw_data[:-1]
        assert "'w' of type FLOAT[2] has 7 bytes instead of 8" in refusal(self.weight(tensor))

    def test_with_their_data_twice(self):
        tensor = weights(w=np.ones(2, "float32"))[0]
        tensor.float_data.extend([1, 2])
        assert "'w' has its data twice: in raw_data and in float_data" in refusal(self.weight(tensor))

    @pytest.mark.parametrize("dims", [[-1], [-2, -2]])
    def test_of_a_negative_size(self, dims):
        tensor = TensorProto(data_type=1, dims=dims)
        assert "'w' has a negative size" in refusal(self.weight(tensor))

    @pytest.mark.parametrize("dims", [[2**31], [2**40], [2**62, 4], [2**20, 2**20], [0, 2**40]])
    def test_of_a_huge_size(self, dims):
        tensor = TensorProto(data_type=1, dims=dims)
        assert "'w' is too large" in refusal(self.weight(tensor))

    def test_of_a_type_that_onnx_has_not(self):
        tensor = TensorProto(data_type=77, dims=[2], raw_data=bytes(8))
        assert "'w' has the element type 77, which does not exist in ONNX" in refusal(self.weight(tensor))

    @pytest.mark.parametrize("shape", [[2**31], [2**62], [2**16, 2**16]])
    def test_inputs_of_a_huge_size(self, shape):
        assert "the input 'x' is too large" in refusal(chain_of(shape))

    def test_a_result_of_a_huge_size(self):
        nodes = [helper.make_node("ConstantOfShape", ["shape"], ["y"], "fill")]
        model = model_of(nodes, [], ["y"], weights(shape=np.int64([2**20, 2**20])))
        assert "too large" in refusal(model)

    @pytest.mark.parametrize(
        "entry, reason",
        [
            ({"location": "weights.bin", "offset": "x"}, "cannot be read"),
            ({"location": "weights.bin", "offset": "-4"}, "with a negative offset"),
            ({"location": "weights.bin", "length": str(2**62)}, "the file is not complete"),
            ({"location": "a\0b"}, "cannot be read"),
            ({"location": "."}, "outside the model's folder"),
            ({"location": "link.bin"}, "outside the model's folder"),
        ],
    )
    def test_in_a_file_that_is_not_theirs(self, tmp_path, entry, reason):
        outside = tmp_path / "outside.bin"
        outside.write_bytes(bytes(64))
        tensor = TensorProto(data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
        for key, value in entry.items():
            tensor.external_data.add(key=key, value=value)
        path = written(self.weight(tensor).SerializeToString(), tmp_path / "model", outside)
        assert reason in refusal(path)


def chain_of(shape):
    return model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor_input("x", shape)], ["y"])


@pytest.mark.parametrize(
    "error, said",
    [
        (AttributeError("'NoneType' object has no attribute 'shape'"), NO_REASON),
        (KeyError("axis"), NO_REASON),
        (AssertionError(), NO_REASON),
        (
            tvm.TVMError("Stack trace:\n  0: x\nInternalError: Check failed: (a < 2) is false: no 3-D"),
            "no 3-D",
        ),
        (tvm.TVMError("Check failed: (ok) is false: "), NO_REASON),
        (ValueError("axis 7 is out of bounds"), "axis 7 is out of bounds"),
        (ValueError("not enough values to unpack (expected 2, got 1)"), NO_REASON),
        (ValueError("'x' is not in list"), NO_REASON),
        (ValueError("max() arg is an empty sequence"), NO_REASON),
        (ZeroDivisionError("integer division or modulo by zero"), NO_REASON),
        (IndexError("list index out of range"), NO_REASON),
        (tvm.TVMError("Traceback (most recent call last):\n  0: f\nKeyError: 'axis'"), NO_REASON),
        (tvm.TVMError("Traceback (most recent call last):\n  0: f\nValueError: axis 7 of 2"), "axis 7 of 2"),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            "some text in it is not UTF-8: the file is damaged",
        ),
        (
            ValueError("All inputs to infer must be available in params."),
            "it needs the value of an input at import, which is known only at run time",
        ),
        (MemoryError(), "it needs more memory than there is"),
    ],
)
def test_what_an_error_of_tvm_says_to_users(error, said):
    assert gist(error) == said


def test_memory_is_what_an_import_takes_beyond_its_process(monkeypatch, tmp_path):
    monkeypatch.setattr(trial, "BYTES", 384 << 20)
    held = np.ones(64 << 20)  # 512 MiB
    path = written(seeds.seed_models()["convolution"].SerializeToString(), tmp_path / "small", tmp_path)
    assert [outcome.kind for outcome in ended(path)] == ["imported"]
    monkeypatch.setattr(trial, "import_model", lambda *_: (np.ones(held.shape), time.sleep(60)))
    assert [outcome.kind for outcome in ended(path)] == ["memory"]


@pytest.mark.slow
def test_mutations():
    """The same that `python -m tests.hostile` makes 10,000 of."""
    campaign = run(count=250, seed=0, compile_every=0)
    assert not campaign.bad
    assert campaign.counts["import", "imported"] > 30 and campaign.counts["import", "refused"] > 100


@pytest.mark.slow
def test_what_is_imported_does_not_crash_when_it_runs():
    campaign = run(count=60, seed=1)
    assert not campaign.bad
    assert campaign.counts["run", "imported"] > 5


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.onnx")), ids=lambda path: path.stem)
def test_files_that_were_found(path):
    assert not [outcome for outcome in ended(path) if outcome.is_bad]


def ended(path):
    watched = Trial(path, as_proto=False, seen=set(), to_compile=False)
    while not watched.poll():
        time.sleep(0.01)
    return watched.outcomes


class TestFolders:
    """Of compiled models: a manifest or weights that were changed are refused."""

    @pytest.fixture(scope="class")
    def compiled(self, tmp_path_factory):
        x = relay.var("x", shape=(2, 3))
        function = relay.Function([x], relay.nn.relu(x) + relay.const(np.ones((2, 3), "float32")))
        mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
        folder = tmp_path_factory.mktemp("compiled")
        runtime.save(folder, runtime.build_library(mod, "llvm"), mod, "llvm")
        return folder

    def test_changed_bytes(self, compiled, tmp_path):
        data, expected = np.ones((2, 3), "float32"), np.full((2, 3), 2, "float32")
        folder = shutil.copytree(compiled, tmp_path / "copy")
        chance, refused = random.Random(0), 0
        for _ in range(500):
            name = chance.choice((MANIFEST, MANIFEST, PARAMETERS, library_of(None)))
            good = (compiled / name).read_bytes()
            (folder / name).write_bytes(change_bytes(good, chance))
            try:
                np.testing.assert_array_equal(runtime.load(folder)(data), expected)
            except FolderError as error:
                refused += 1
                assert "\n" not in str(error)
            (folder / name).write_bytes(good)
        assert refused > 400
