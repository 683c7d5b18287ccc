"""Arrays however they lie in memory are read or refused in one line; results are the caller's."""

import gc
import math
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.helpers import module, numbers
from tests.runtime.test_model import AS, TYPES_OF_ELEMENTS, aligned, to_numpy
from tvm_passes import runtime
from tvm_passes.runtime import tensors

import tvm
from tvm import relay

ANY = (relay.Any(),) * 4
STATIC = (2, 3, 4, 5)
slow_machines = settings(deadline=None, max_examples=60, derandomize=True)


@pytest.fixture(autouse=True, scope="module")
def freed_memory_is_overwritten():
    """Arrays that are freed before TVM copies them hold something else by then."""
    copy = tensors.copy

    def after_others_took_memory(source, into, stream):
        size = math.prod(into.shape) * np.dtype("uint64").itemsize
        others = [np.full(max(size // part, 1), 0xAB, "uint8") for part in (8, 4, 2, 1) for _ in range(3)]
        copy(source, into, stream)
        del others

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "copy", after_others_took_memory)
        yield


def copying(dtype, shape=ANY):
    """A model that returns a copy of its input that a kernel makes, and the input."""
    x = relay.var("x", shape=shape, dtype=dtype)
    return runtime.compile(module(x, relay.Tuple([relay.copy(x), x])), "llvm")


@pytest.fixture(scope="module")
def models():
    """By type of elements; compiled when they are asked for."""

    class Models(dict):
        def __missing__(self, dtype):
            self[dtype] = copying(dtype)
            return self[dtype]

    return Models()


def assert_read(model, value, wanted):
    for output in model(value).values():
        found = to_numpy(output)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


# --- NumPy


def numbered(shape, dtype):
    count = math.prod(shape)
    return (np.arange(count) % 127).astype(dtype).reshape(shape)


@st.composite
def arrays(draw, dtype):
    """Arrays of rank 4 whose elements lie in memory in every way."""
    shape = draw(st.tuples(*[st.integers(0, 5)] * 4))
    array = numbered(shape, dtype)
    if draw(st.booleans()):  # at an address that is no multiple of the size of an element
        memory = np.empty(array.nbytes + 1, "uint8")
        memory[1:] = np.frombuffer(array.tobytes(), "uint8")
        array = memory[1:].view(dtype).reshape(shape)
    if draw(st.booleans()):
        array = np.asfortranarray(array)
    array = array.transpose(draw(st.permutations(range(4))))
    steps = draw(st.tuples(*[st.sampled_from([1, 1, 2, -1, -2])] * 4))
    array = array[tuple(slice(None, None, step) for step in steps)]
    repeats = draw(st.tuples(*[st.integers(1, 3)] * 4))
    array = np.broadcast_to(
        array, [times if length == 1 else length for length, times in zip(array.shape, repeats)]
    )
    if draw(st.booleans()) and array.shape[0] > 1:  # rows that share memory
        strides = (array.strides[0] // 2 // array.itemsize * array.itemsize, *array.strides[1:])
        array = np.lib.stride_tricks.as_strided(array, (array.shape[0], *array.shape[1:]), strides)
    if array.flags.owndata or array.flags.writeable:
        array.flags.writeable = draw(st.booleans())
    return array


@pytest.mark.parametrize("dtype", TYPES_OF_ELEMENTS)
@slow_machines
@given(data=st.data())
def test_numpy_arrays(models, dtype, data):
    array = data.draw(arrays(dtype))
    assert_read(models[dtype], array, np.array(array))


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_the_usual_transposed_image(models, dtype):
    """Large enough that what is freed goes back to the system."""
    image = numbers(480, 640, 3).astype(dtype)
    view = image.transpose(2, 0, 1)[None]
    assert_read(models[dtype], view, np.ascontiguousarray(view))


def test_bfloat16_of_numpy():
    x = relay.var("x", shape=(4,), dtype="bfloat16")
    model = runtime.compile(module(x, x + x), "llvm")
    array = np.float32([1, -2.5, 3, 100]).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(model(array), [2, -5, 6, 200])
    np.testing.assert_array_equal(model(array[::-1]), [200, 6, -5, 2])


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0)])
def test_few_elements(shape):
    x = relay.var("x", shape=shape)
    model = runtime.compile(module(x, relay.copy(x)), "llvm")
    for kind in AS:
        value = np.full(shape, 3, "float32")
        value = value if kind == "numpy" else AS[kind](value)
        found = to_numpy(model(value))
        assert found.shape == shape and (found == 3).all()


def test_subclasses_of_numpy(models, tmp_path):
    array = numbered(STATIC, "float32")
    mapped = np.memmap(tmp_path / "array", "float32", "w+", shape=STATIC)
    mapped[:] = array
    for value in (mapped, np.memmap(tmp_path / "array", "float32", "r", shape=STATIC), np.ma.array(array)):
        assert_read(models["float32"], value, array)
    x = relay.var("x", shape=(2, 3))
    model = runtime.compile(module(x, relay.copy(x)), "llvm")
    np.testing.assert_array_equal(model(np.matrix(array[0, :2, 0, :3])), array[0, :2, 0, :3])
    np.testing.assert_array_equal(model(np.matrix(array[0, 0, :3, :2]).T), array[0, 0, :3, :2].T)


# --- torch


@st.composite
def torch_views(draw):
    tensor = torch.from_numpy(numbered(draw(st.tuples(*[st.integers(0, 5)] * 4)), "float32")).clone()
    if draw(st.booleans()):
        tensor = tensor.to(memory_format=torch.channels_last)
    tensor = tensor.permute(draw(st.permutations(range(4))))
    axis = draw(st.integers(0, 3))
    tensor = tensor[(slice(None),) * axis + (slice(draw(st.integers(0, 2)), None, draw(st.integers(1, 2))),)]
    repeats = draw(st.tuples(*[st.integers(1, 3)] * 4))
    tensor = tensor.expand([times if length == 1 else -1 for length, times in zip(tensor.shape, repeats)])
    if draw(st.booleans()):
        tensor = torch._neg_view(tensor)
    if draw(st.booleans()):
        tensor = torch.nn.Parameter(tensor) if tensor.is_leaf else tensor
    return tensor


@slow_machines
@given(tensor=torch_views())
def test_views_of_torch(models, tensor):
    assert_read(models["float32"], tensor, np.array(tensor.detach().resolve_neg().numpy()))


def test_modes_of_torch(models):
    wanted = numbered(STATIC, "float32")
    x = torch.from_numpy(wanted).clone()
    with torch.inference_mode():
        assert_read(models["float32"], x, wanted)
        inside = x + 0
        assert_read(models["float32"], inside, wanted)
    assert_read(models["float32"], inside, wanted)
    assert_read(models["float32"], (x.requires_grad_() * 1), wanted)
    imaginary = torch.complex(x.detach(), -x.detach()).conj().imag
    assert imaginary.is_neg()
    assert_read(models["float32"], imaginary, wanted)


# --- TVM


def test_views_of_tvm(models):
    whole = tvm.nd.array(numbered((4, *STATIC[1:]), "float32"))
    create_view = tvm.get_global_func("runtime.TVMArrayCreateView")
    assert_read(models["float32"], create_view(whole, tvm.runtime.ShapeTuple(STATIC)), whole.numpy()[:2])
    view = create_view(whole, tvm.runtime.ShapeTuple(STATIC))
    view.handle.contents.byte_offset = 2 * 3 * 4 * 5 * 4
    outputs = models["float32"](view)
    for output in outputs.values():
        np.testing.assert_array_equal(output.numpy(), whole.numpy()[2:])
    view.handle.contents.byte_offset = 0


# --- what is refused


X = np.zeros(STATIC, "float32")
T = torch.from_numpy(X)
REFUSED = {
    'another byte order than this machine: give x.astype("float32")': X.astype(">f4"),
    "has masked elements: give x.filled()": np.ma.masked_less(X, 1),
    "has elements of type object, which TVM lacks": X.astype(object),
    "has elements of type [('a', '<f4')], which TVM lacks": np.zeros(STATIC, [("a", "f4")]),
    "has elements of type complex64, which TVM lacks": X.astype("complex64"),
    "has elements of type float128, which TVM lacks": X.astype("longdouble"),
    "has elements of type datetime64[s], which TVM lacks": X.astype("datetime64[s]"),
    "has elements of type <U1, which TVM lacks": np.full(STATIC, "a"),
    "is sparse_coo: give x.to_dense()": T.to_sparse(),
    "is _mkldnn: give x.to_dense()": T.to_mkldnn(),
    "is quantized: give x.dequantize()": torch.quantize_per_tensor(T, 1.0, 0, torch.quint8),
    "is torch.complex64, which TVM lacks: give x.real": T.to(torch.complex64),
    'is on meta, and the model on cpu: give x.to("cpu")': T.to("meta"),
}


@pytest.fixture(scope="module")
def untyped():
    """A virtual machine that knows nothing of what it takes."""
    x = relay.var("x", shape=ANY)
    return runtime.Model(relay.vm.compile(module(x, relay.copy(x)), "llvm"))


@pytest.mark.parametrize("reason", REFUSED)
def test_what_no_model_takes(models, untyped, reason):
    for model in (models["float32"], untyped):
        with pytest.raises((TypeError, ValueError)) as raised:
            model(REFUSED[reason])
        assert reason in str(raised.value) and "\n" not in str(raised.value)


def test_nested_and_transformed_tensors(models):
    with warnings.catch_warnings():  # torch warns, once in a process, that they are a prototype
        warnings.simplefilter("ignore", UserWarning)
        nested = torch.nested.nested_tensor([torch.zeros(3, 4, 5), torch.zeros(3, 4, 5)])
    with pytest.raises(TypeError, match="Model: x is nested: give torch"):
        models["float32"](nested)
    with pytest.raises(TypeError, match="Model: x has no memory of its own"):
        torch.func.vmap(lambda x: models["float32"](x)["output0"])(torch.zeros(2, *STATIC))
    with FakeTensorMode(), pytest.raises(TypeError, match="Model: x has no memory of its own"):
        models["float32"](torch.zeros(STATIC))
    with pytest.raises(TypeError, match="Model: x is being traced, and a trace would keep this one result"):
        torch.jit.trace(lambda x: models["float32"](x)["output0"], torch.zeros(STATIC))


# --- results, and what happens to inputs, models and memory afterwards


@pytest.fixture(scope="module")
def entrances(tmp_path_factory):
    """Functions that make a model of the same network, by every way to one."""
    made = []
    for length in (2, relay.Any()):
        mod, params = network(length)
        lib, folder = runtime.build_library(mod, "llvm", params), tmp_path_factory.mktemp("saved")
        runtime.save(folder, lib, mod, "llvm")
        made += [
            lambda lib=lib: runtime.Model(lib),
            lambda lib=lib: runtime.Model(lib, copy_outputs=False),
            lambda folder=folder: runtime.load(folder),
        ]
    return made


def network(length):
    """2x, a reshaped x, x, and a weight, all as they are."""
    x, w = relay.var("x", shape=(length, 64, 32)), relay.var("w", shape=(8,))
    flat = relay.reshape(x, (-1, 2048))
    outputs = [x + x, flat, relay.reshape(flat, (-1, 64, 32)), x, w, flat]
    return module(x, w, relay.Tuple(outputs)), {"w": tvm.nd.array(np.arange(8, dtype="float32"))}


def assert_results(outputs, x):
    wanted = [2 * x, x.reshape(-1, 2048), x, x, np.arange(8), x.reshape(-1, 2048)]
    for found, expected in zip(outputs.values(), wanted):
        np.testing.assert_array_equal(to_numpy(found), expected)


def test_results_outlive_the_model(entrances):
    x = numbers(2, 64, 32)
    for make in entrances:
        kept = []
        for give in (*AS.values(), lambda x: np.asfortranarray(x)):
            model = make()
            kept.append(model(give(x.copy())))
            del model
            gc.collect()
        other = [np.full(x.shape, 7, "float32") for _ in range(20)]
        for outputs in kept:
            assert_results(outputs, x)
        del other


def test_results_stay_what_they_are(entrances):
    """Through later calls, and when inputs are overwritten."""
    xs = [numbers(2, 64, 32, seed=seed) for seed in range(8)]
    for make in entrances:
        model = make()
        if not model._copy_outputs:
            continue
        for give in (lambda x: torch.from_numpy(aligned(x)), lambda x: aligned(x), tvm.nd.array):
            kept = []
            for x in xs:
                value = give(x)
                kept.append(model(value))
                value.copyfrom(-x) if isinstance(value, tvm.nd.NDArray) else value.__setitem__(..., 0)
            for x, outputs in zip(xs, kept):
                assert_results(outputs, x)


@pytest.mark.parametrize("give", AS.values())
def test_inputs_are_only_read(entrances, give):
    x = aligned(numbers(2, 64, 32))
    for make in entrances:
        value = give(x.copy())
        model = make()
        outputs = model(value)
        if model._copy_outputs and isinstance(value, torch.Tensor):
            for output in outputs.values():
                output.zero_()
        np.testing.assert_array_equal(to_numpy(value), x)


def test_one_tensor_as_two_inputs():
    a, b = relay.var("a", shape=(64,)), relay.var("b", shape=(64,))
    model = runtime.compile(module(a, b, relay.Tuple([a - b, a, b])), "llvm")
    for give in AS.values():
        x = give(numbers(64))
        difference, *same = map(to_numpy, model(x, x).values())
        assert not difference.any() and all((each == numbers(64)).all() for each in same)


@pytest.mark.parametrize("shared", [False, True])
def test_threads(entrances, shared):
    """One model of each executor, or two, with arrays that are copied and others that are not."""
    models = [make() for make in (entrances[0], entrances[3]) for _ in range(2)]
    if shared:
        models[1], models[3] = models[0], models[2]
    failures = []

    def call(model, seed):
        x = numbers(2, 64, 32, seed=seed)
        try:
            for _ in range(30):
                for value in (torch.from_numpy(x), np.asfortranarray(x), tvm.nd.array(x)):
                    assert_results(model(value), x)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, args=item) for item in zip(models, range(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
