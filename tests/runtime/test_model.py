"""Models on the CPU: tensors of every kind in and out, without copies, in both executors."""

import threading

import numpy as np
import pytest
import torch

import tvm_passes
from tests.helpers import convolution, module, numbers
from topi_ext.corrections import llvm
from tvm_passes import runtime

import tvm
from tvm import relay

SHAPE = (6, 16)
AS = {
    "torch": torch.from_numpy,
    "numpy": lambda array: array,
    "tvm": tvm.nd.array,
}
TYPES = {"torch": torch.Tensor, "numpy": np.ndarray, "tvm": tvm.nd.NDArray}


def to_numpy(output):
    return output if isinstance(output, np.ndarray) else output.numpy()


def network(dynamic=False):
    """2x + 1; sums, of a reshaped x, which is no kernel of its own; and that, x and a weight as they are."""
    x = relay.var("x", shape=(relay.Any() if dynamic else SHAPE[0], SHAPE[1]))
    w = relay.var("w", shape=(8,))
    halves = relay.reshape(x, (-1, 8))
    sums = relay.nn.dense(halves, relay.const(np.ones((3, 8), "float32")))
    mod = module(x, w, relay.Tuple([x * relay.const(2.0) + relay.const(1.0), sums, halves, x, w]))
    names = ["line", "sums", "halves", "same", "weight"]
    mod["main"] = mod["main"].with_attr("output_names", names)
    return mod, {"w": tvm.nd.array(np.arange(8, dtype="float32"))}


def expected(x):
    halves = x.reshape(-1, 8)
    return {
        "line": 2 * x + 1,
        "sums": np.repeat(halves.sum(1, keepdims=True), 3, 1),
        "halves": halves,
        "same": x,
        "weight": np.arange(8, dtype="float32"),
    }


def assert_right(outputs, x):
    wanted = expected(x)
    assert list(outputs) == list(wanted)
    for name in wanted:
        np.testing.assert_allclose(to_numpy(outputs[name]), wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module", params=["graph executor", "virtual machine"])
def compiled(request):
    mod, params = network(dynamic=request.param == "virtual machine")
    model = runtime.compile(mod, "llvm", params)
    assert request.param in repr(model)
    return model


@pytest.fixture
def model(compiled):
    """Without buffers that another test left."""
    return runtime.Model(
        compiled.lib,
        output_names=compiled.output_names,
        input_types={"x": relay.TensorType((relay.Any(), SHAPE[1]))},
    )


@pytest.fixture
def addresses(model, monkeypatch):
    """Where the executor has read each input, in the order of calls."""
    seen, bind = [], model._executor.bind

    def spy(arrays):
        seen.extend(array.handle.contents.data for array in arrays)
        bind(arrays)

    monkeypatch.setattr(model._executor, "bind", spy)
    return seen


# --- what comes in goes out


@pytest.mark.parametrize("kind", AS)
def test_outputs_are_what_inputs_are(compiled, kind):
    for seed in (0, 1):
        x = numbers(*SHAPE, seed=seed)
        outputs = compiled(AS[kind](x))
        assert {type(output) for output in outputs.values()} == {TYPES[kind]}
        assert_right(outputs, x)


@pytest.mark.parametrize("kind", AS)
def test_an_input_that_no_operator_reads_is_returned(kind):
    x, rest = relay.var("x", shape=SHAPE), relay.const(np.ones(3, "float32"))
    model = runtime.compile(module(x, relay.Tuple([rest, x])), "llvm")
    for seed in range(3):
        value = numbers(*SHAPE, seed=seed)
        np.testing.assert_array_equal(to_numpy(model(AS[kind](value))["output1"]), value)


def test_mixed_inputs():
    a, b, c = (relay.var(name, shape=(3,)) for name in "abc")
    model = runtime.compile(module(a, b, c, a - b * c), "llvm")
    x, y, z = (numbers(3, seed=seed) for seed in range(3))
    for given, kind in (
        ((x, torch.from_numpy(y), tvm.nd.array(z)), torch.Tensor),
        ((x, tvm.nd.array(y), z), tvm.nd.NDArray),
        ((x, y, z), np.ndarray),
    ):
        output = model(given[0], c=given[2], b=given[1])
        assert type(output) is kind  # a single output is bare
        np.testing.assert_allclose(to_numpy(output), x - y * z, rtol=1e-6)


def test_inputs_that_have_the_names_that_tvm_gives_weights(tmp_path):
    x, p0, p2, w = (relay.var(name, shape=(3,)) for name in ("x", "p0", "p2", "w"))
    scaled = (p0 + relay.const(np.arange(3.0, dtype="float32"))) * p2
    mod = module(x, p0, p2, w, scaled * relay.const(np.full(3, 5.0, "float32")) + w - x)
    values, params = [numbers(3, seed=seed) for seed in range(3)], {"w": tvm.nd.array(np.ones(3, "float32"))}
    expected = (values[1] + np.arange(3)) * values[2] * 5 + 1 - values[0]
    runtime.save(tmp_path / "net", runtime.build_library(mod, "llvm", params), mod, "llvm")
    for model in (runtime.compile(mod, "llvm", params), runtime.load(tmp_path / "net")):
        assert list(model.inputs) == ["x", "p0", "p2"]
        np.testing.assert_allclose(model(*values), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="TVM named a weight p0, as an input is"):
        runtime.Model(relay.build(mod, "llvm", params=params))


@pytest.mark.parametrize("bound", [False, True])
def test_what_is_computed_of_weights_alone_is_not_compiled(monkeypatch, bound):
    """Whether they are given to `compile`, or in the network before."""
    values = numbers(3, 4)
    x = relay.var("x", shape=(4, 3))
    w = relay.const(values) if bound else relay.var("w", shape=(3, 4))
    mod = module(*([x] if bound else [x, w]), x + relay.transpose(relay.sqrt(w * w)))
    built, build = [], llvm._build
    monkeypatch.setattr(llvm, "_build", lambda *args: built.append(args) or build(*args))
    model = runtime.compile(mod, "llvm", None if bound else {"w": tvm.nd.array(values)})
    assert len(built) == 1
    np.testing.assert_allclose(model(numbers(4, 3)), numbers(4, 3) + abs(values.T), rtol=1e-6)


def test_dynamic_shapes():
    mod, params = network(dynamic=True)
    model = runtime.compile(mod, "llvm", params)
    for rows in (3, 0, 7):
        assert_right(model(torch.from_numpy(numbers(rows, 16))), numbers(rows, 16))
        assert_right(model(numbers(rows, 16)), numbers(rows, 16))


TYPES_OF_ELEMENTS = ("float32", "float16", "float64", "int8", "uint8", "int32", "int64", "bool")


@pytest.mark.parametrize("executor", ["graph", "vm"])
@pytest.mark.parametrize("dtype", TYPES_OF_ELEMENTS)
def test_types_of_elements(dtype, executor):
    x = relay.var("x", shape=(5 if executor == "graph" else relay.Any(),), dtype=dtype)
    scalar = relay.var("s", shape=(), dtype=dtype)
    model = runtime.compile(module(x, scalar, relay.Tuple([relay.equal(x, scalar), x, scalar])), "llvm")
    array = np.array([0, 1, 2, 1, 0]).astype(dtype)
    for kind in ("numpy", "torch"):
        same, x_again, s_again = model(AS[kind](array), AS[kind](array[1:2].reshape(()).copy())).values()
        np.testing.assert_array_equal(to_numpy(same), array == array[1])
        np.testing.assert_array_equal(to_numpy(x_again), array)
        assert to_numpy(s_again) == array[1] and str(x_again.dtype).endswith(dtype)


def test_bfloat16():
    x = relay.var("x", shape=(3,))
    halved = relay.cast(x, "bfloat16")
    array = np.float32([1.0, -2.5, 1e30])
    rounded = torch.from_numpy(array).bfloat16()
    assert torch.equal(runtime.compile(module(x, halved), "llvm")(torch.from_numpy(array)), rounded)
    found = runtime.compile(module(x, halved), "llvm")(array)
    np.testing.assert_array_equal(found, rounded.float().numpy())
    half = relay.var("x", shape=(3,), dtype="bfloat16")
    model = runtime.compile(module(half, half + half), "llvm")
    assert torch.equal(model(rounded), rounded + rounded)
    with pytest.raises(TypeError, match=r"give x as a torch\.Tensor"):
        model(array)


# --- without copies


def test_a_tensor_that_is_yet_to_be_negated():
    x = relay.var("x", shape=(16,))
    model = runtime.compile(module(x, x + x), "llvm")
    tensor = torch._neg_view(torch.arange(16.0))
    assert tensor.is_neg() and tensor.data_ptr() % 64 == 0
    assert torch.equal(model(tensor), -2 * torch.arange(16.0))


def aligned(array, offset=0):
    """A copy that begins so many bytes behind a multiple of 64."""
    memory = np.empty(array.nbytes + 128, "uint8")
    begin = -memory.ctypes.data % 64 + offset
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def of_torch(array):
    tensor = torch.from_numpy(aligned(array)).clone()
    return tensor, tensor.data_ptr()


def of_numpy(array):
    array = aligned(array)
    return array, array.ctypes.data


def of_tvm(array):
    array = tvm.nd.array(array)
    return array, array.handle.contents.data


@pytest.mark.parametrize("make", [of_torch, of_numpy, of_tvm])
def test_inputs_are_read_where_they_are(model, addresses, make):
    wanted = []
    for seed in range(3):
        value, address = make(numbers(*SHAPE, seed=seed))
        wanted.append(address)
        assert_right(model(value), numbers(*SHAPE, seed=seed))
    assert addresses == wanted


UNREADABLE = {
    "a misaligned view of torch": lambda x: torch.from_numpy(aligned(x, 4)),
    "a transposed one": lambda x: torch.from_numpy(x.T.copy()).T,
    "every other column": lambda x: torch.from_numpy(np.repeat(x, 2, 1))[:, ::2],
    "misaligned NumPy": lambda x: aligned(x, 16),
    "transposed NumPy": lambda x: np.asfortranarray(x),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_others_are_copied(model, addresses, what):
    """And the copy goes nowhere where an input has been read before."""
    before, address = of_torch(numbers(*SHAPE, seed=1))
    assert_right(model(before), numbers(*SHAPE, seed=1))
    x = UNREADABLE[what](numbers(*SHAPE))
    assert_right(model(x), numbers(*SHAPE))
    assert addresses[0] == address and addresses[1] % 64 == 0
    assert addresses[1] not in (address, x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data)
    np.testing.assert_array_equal(before, numbers(*SHAPE, seed=1))


def test_arrays_that_must_not_be_written(model):
    x = aligned(numbers(*SHAPE))
    x.flags.writeable = False
    assert_right(model(x), x)


def test_tensors_that_want_a_gradient(model):
    outputs = model(torch.nn.Parameter(torch.from_numpy(numbers(*SHAPE))))
    assert not outputs["line"].requires_grad
    assert_right(outputs, numbers(*SHAPE))


# --- whose memory outputs are


@pytest.mark.parametrize("kind", AS)
def test_outputs_are_the_callers(model, kind):
    x = AS[kind](aligned(numbers(*SHAPE)))
    first = model(x)
    model(AS[kind](numbers(*SHAPE, seed=1)))
    assert_right(first, numbers(*SHAPE))
    if kind == "torch":
        for output in first.values():
            output.zero_()
        assert_right(model(x), numbers(*SHAPE))


def test_outputs_without_a_copy():
    model = runtime.compile(*with_weights_last("llvm"), copy_outputs=False)
    first = model(torch.from_numpy(numbers(*SHAPE)))["line"]
    second = model(torch.from_numpy(numbers(*SHAPE, seed=1)))["line"]
    assert first.data_ptr() == second.data_ptr()
    np.testing.assert_allclose(first, 2 * numbers(*SHAPE, seed=1) + 1, rtol=1e-6)
    assert isinstance(model(tvm.nd.array(numbers(*SHAPE)))["line"], tvm.nd.NDArray)


def with_weights_last(target):
    mod, params = network()
    return mod, target, params


def test_calls_from_several_threads(model):
    right = []

    def call(seed):
        x = numbers(*SHAPE, seed=seed)
        for _ in range(50):
            assert_right(model(torch.from_numpy(x)), x)
        right.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(right) == list(range(4))


# --- errors


X = torch.zeros(SHAPE)
REFUSED = {
    "the inputs are x; x is missing": (TypeError, lambda model: model()),
    "the inputs are x; 2 were given": (TypeError, lambda model: model(X, X)),
    "the inputs are x; y is not one of them": (TypeError, lambda model: model(X, y=X)),
    "the inputs are x; x is given twice": (TypeError, lambda model: model(X, x=X)),
    "x is of type list; give one of torch.Tensor, tvm.nd.NDArray, numpy.ndarray": (
        TypeError,
        lambda model: model([1.0]),
    ),
    "not float64 (6, 16): give x.to(torch.float32)": (TypeError, lambda model: model(X.double())),
    'not int8 (6, 16): give x.astype("float32")': (
        TypeError,
        lambda model: model(np.zeros(SHAPE, "int8")),
    ),
    "16), not float32 (6, 15)": (ValueError, lambda model: model(X[:, 1:])),
    "16), not float32 (6, 16, 1)": (ValueError, lambda model: model(X[..., None])),
    'x is on meta, and the model on cpu: give x.to("cpu")': (ValueError, lambda model: model(X.to("meta"))),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_cannot_take(compiled, reason):
    error, call = REFUSED[reason]
    with pytest.raises(error) as raised:
        call(compiled)
    assert reason in str(raised.value)


def test_what_is_no_model():
    x = tvm.te.placeholder((3,), name="x")
    y = tvm.te.compute((3,), lambda i: x[i] + 1)
    lib = tvm.build(tvm.te.create_schedule(y.op), [x, y], "llvm")
    with pytest.raises(TypeError, match="of neither relay"):
        runtime.Model(lib)


def test_what_is_no_module():
    with pytest.raises(TypeError, match=r"'net\.so' is not a module; of a file"):
        runtime.Model("net.so")


@pytest.mark.parametrize("length", [3, relay.Any()])
def test_parameters_that_cannot_be_told_apart(length):
    a, b = relay.var("x", shape=(length,)), relay.var("x", shape=(length,))
    with pytest.raises(ValueError, match="two parameters named x"):
        runtime.compile(module(a, b, a - b), "llvm")


def test_a_tuple_as_a_parameter():
    pair = relay.var("pair", relay.TupleType([relay.TensorType((3,))] * 2))
    with pytest.raises(TypeError, match="pair must be a tensor, not of type"):
        runtime.compile(module(pair, relay.TupleGetItem(pair, 0) * relay.const(2.0)), "llvm")


def test_cuda_graph_where_there_is_none(compiled):
    with pytest.raises(ValueError, match="the device is not CUDA"):
        runtime.Model(compiled.lib, cuda_graph=True)


# --- building, and what is built already


@pytest.mark.parametrize("names", [None, ["a", "b", "c", "d", "e"]])
def test_saved_libraries(compiled, names, tmp_path):
    path = str(tmp_path / "network.so")
    compiled.lib.export_library(path)
    model = runtime.Model(tvm.runtime.load_module(path), tvm.cpu(), output_names=names)
    outputs = model(torch.from_numpy(numbers(*SHAPE)))
    assert list(outputs) == (names or [f"output{i}" for i in range(5)])
    assert_right(dict(zip(expected(numbers(*SHAPE)), outputs.values())), numbers(*SHAPE))


def test_what_tvm_built():
    mod, params = network()
    for build in (relay.build, relay.vm.compile):
        model = runtime.Model(build(mod, "llvm", params=params))
        np.testing.assert_allclose(model(numbers(*SHAPE))["output0"], 2 * numbers(*SHAPE) + 1, rtol=1e-6)


@pytest.mark.parametrize("names", [["a"], ["a", "a", "b", "c", "d"]])
def test_names_that_do_not_fit(compiled, names):
    with pytest.raises(ValueError, match="5 outputs cannot have the names a"):
        runtime.Model(compiled.lib, output_names=names)(numbers(*SHAPE))


def test_branches_are_for_the_virtual_machine():
    flag, x = relay.var("flag", shape=(), dtype="bool"), relay.var("x", shape=(3,))
    model = runtime.compile(module(flag, x, relay.If(flag, x, relay.negative(x))), "llvm")
    assert "virtual machine" in repr(model)
    np.testing.assert_array_equal(model(torch.tensor(False), torch.ones(3)), -torch.ones(3))


@pytest.mark.parametrize("level", [1, 3])
def test_a_pass_context_around_it_counts(level):
    names = []

    @tvm.instrument.pass_instrument
    class Seen:
        def run_before_pass(self, _mod, info):
            names.append(info.name)

    mod, params = network()
    with tvm.transform.PassContext(level, instruments=[Seen()], disabled_pass=["CanonicalizeOps"]):
        runtime.compile(mod, "llvm", params)
    assert "EliminateCommonSubexpr" in names  # at level 3
    assert "CanonicalizeOps" not in names


@pytest.mark.parametrize(
    "dtype, shift, scale, x", [("float16", 1000, 100, 1001), ("float32", 1e6, 1e3, 1e6 + 0.0625)]
)
def test_constants_stay_in_their_order(dtype, shift, scale, x):
    """TVM's SimplifyExpr makes `x * scale - shift * scale` of it: infinite in half precision, or rounded."""
    data = relay.var("x", shape=(4,), dtype=dtype)
    moved = relay.add(data, relay.const(-shift, dtype))
    mod = module(data, relay.multiply(moved, relay.const(scale, dtype)))
    result = runtime.compile(mod, "llvm")(np.full(4, x, dtype))
    np.testing.assert_array_equal(np.asarray(result), (x - shift) * scale)


@pytest.mark.parametrize("disabled", [[], ["ForwardFoldScaleAxis"]])
def test_a_pass_context_in_which_tvm_divides_by_0(disabled, recwarn):
    """It has instruments, so no other one can be put inside it."""

    @tvm.instrument.pass_instrument
    class Looks:
        pass

    x, gamma = relay.var("x", shape=(1, 2, 4, 4)), relay.const(np.float32([0, 1]))
    one = relay.const(np.ones(2, "float32"))
    norm = relay.nn.batch_norm(x, gamma, one, one, one)[0]
    mod, array = module(x, convolution(relay.nn.relu(norm), 4, 2)), numbers(1, 2, 4, 4)
    with tvm.transform.PassContext(3, instruments=[Looks()], disabled_pass=disabled):
        found = runtime.compile(mod, "llvm")(array)
    is_warned = any("batch norm multiplies by 0" in str(each.message) for each in recwarn)
    assert is_warned == (not disabled)
    if disabled:
        np.testing.assert_allclose(found, runtime.compile(mod, "llvm")(array), rtol=1e-5, atol=1e-5)


def test_it_comes_with_the_package():
    assert tvm_passes.runtime is runtime


# --- outputs that share memory, and inputs that are outputs


@pytest.mark.parametrize("like", [torch.from_numpy, tvm.nd.array])
def test_an_output_that_is_a_reshaped_input_keeps_it(like):
    x = relay.var("x", shape=(64, 64))
    mod = module(x, relay.Tuple([relay.reshape(x, (4096,)), relay.exp(x)]))
    model = runtime.compile(mod, "llvm", copy_outputs=False)
    found = model(like(np.ones((64, 64), "float32")))["output0"]
    _others = [like(np.full((64, 64), 7, "float32")) for _ in range(50)]
    assert found.shape == (4096,) and (found.numpy() == 1).all()


def test_an_output_may_be_the_next_input():
    """Which the run would overwrite while it reads it."""
    x = relay.var("x", shape=(4, 16))
    model = runtime.compile(module(x, relay.reverse(x, axis=0)), "llvm", copy_outputs=False)
    given = torch.arange(64.0).view(4, 16)
    np.testing.assert_array_equal(model(model(given)), given)


def test_a_library_of_unknown_types_takes_no_others():
    x = relay.var("x", shape=(relay.Any(), 4))
    model = runtime.Model(runtime.build_library(module(x, relay.exp(x)), "llvm"))
    np.testing.assert_allclose(model(np.ones((2, 4), "float32")), np.full((2, 4), np.e), rtol=1e-6)
    for dtype in ("float64", "float16", "int32"):
        with pytest.raises(tvm.TVMError, match="shape or type is not what it was compiled for"):
            model(np.ones((2, 4), dtype))
