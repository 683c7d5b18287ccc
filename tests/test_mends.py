"""The corrections of TVM's CUDA backend: fp16 code compiles with every CUDA from 12.0 on."""

import ctypes
import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from topi_ext.corrections.backend import HALF_TANH  # before tvm

import tvm
from tvm import relay, te
from tvm.relay.backend import te_compiler


@pytest.fixture(scope="module")
def source():
    """CUDA source with fp16 arithmetic, which nvcc has compiled by the time it is here."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    x = relay.var("x", shape=(64,), dtype="float16")
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.tanh(x) + relay.exp(x)))
    with tvm.transform.PassContext(opt_level=3):
        built = relay.build(mod, "cuda -arch=sm_80")
    return built.lib.imported_modules[0].get_source()


def test_tanh_is_defined_for_old_cuda_only(source):
    before, line, after = source.partition("CUDA_UNSUPPORTED_HALF_MATH_UNARY(htanh, tanhf)")
    assert line and before.rstrip().endswith("< 1208") and after.lstrip().startswith("#endif")


@pytest.fixture
def locale_stays():
    """NVRTC leaves the thread with a locale of its own, by which files of other tests would be read."""
    libc = ctypes.CDLL(None)
    libc.uselocale.restype = ctypes.c_void_p
    before = libc.uselocale(None)
    yield
    libc.uselocale(ctypes.c_void_p(before))


@pytest.mark.usefixtures("locale_stays")
def test_compiles_with_the_cuda_12_of_the_wheels(source):
    """NVRTC of the CUDA 12 wheels stands in for an nvcc 12, with the headers of that version."""
    nvidia = Path(next(iter(importlib.util.find_spec("nvidia").submodule_search_locations)))
    nvrtc = ctypes.CDLL(str(nvidia / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))
    headers = nvidia / "cuda_runtime" / "include"
    assert (headers / "cuda_fp16.h").is_file()
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"half.cu", 0, None, None) == 0
    options = [f"-I{headers}".encode(), b"--gpu-architecture=compute_80"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()


POSTPROC = "tvm_callback_cuda_postproc"


@pytest.mark.parametrize("calls_the_one_before", [False, True])
def test_what_a_callback_of_the_user_returns_is_corrected(calls_the_one_before):
    """Whenever it is registered, and whether it calls the one that was there or not."""
    before = tvm.get_global_func(POSTPROC)

    def theirs(code, target):
        code = str(before(code, target)) if calls_the_one_before else str(code)
        return f"// theirs\n{code}"

    tvm.register_func(POSTPROC, theirs, override=True)
    try:
        sources = [cuda_source(relay.maximum, (4, 300), (4, 300), dtype="float16") for _ in range(2)]
    finally:
        tvm.register_func(POSTPROC, before, override=True)
    for source in sources:
        corrected, line, _ = source.partition(HALF_TANH)
        assert line and corrected.rstrip().endswith("< 1208")
        assert source.count("#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1208") == 1
        assert source.count("__device__ __forceinline__ float greatest_of_two(") <= 1
        assert source.count("// theirs") == 1
    assert "// theirs" not in cuda_source(relay.tanh, (4, 300), dtype="float16")


def test_the_callback_is_there_again_after_the_user_has_removed_it():
    before = tvm.get_global_func(POSTPROC)
    tvm._ffi.registry.remove_global_func(POSTPROC)
    try:
        corrected, line, _ = cuda_source(relay.tanh, (4, 300), dtype="float16").partition(HALF_TANH)
    finally:
        tvm.register_func(POSTPROC, before, override=True)
    assert line and corrected.rstrip().endswith("< 1208")


def test_how_tvm_was_built_is_asked_once():
    x = relay.var("x", shape=(2, 3, 5, 7), dtype="float32")
    relay.build(tvm.IRModule.from_expr(relay.Function([x], relay.tanh(x))), "llvm")
    asked = te_compiler.libinfo.cache_info()
    assert asked.hits > 0 and asked.misses == 1


def cuda_source(build, *shapes, dtype):
    """What TVM generates for a function of tensors, without nvcc."""
    inputs = [relay.var(f"x{at}", shape=shape, dtype=dtype) for at, shape in enumerate(shapes)]
    mod = tvm.IRModule.from_expr(relay.Function(inputs, build(*inputs)))
    sources = []
    compiler = tvm.get_global_func("tvm_callback_cuda_compile")
    tvm.register_func(
        "tvm_callback_cuda_compile", lambda code, *_: sources.append(code) or b"", override=True
    )
    try:
        with tvm.transform.PassContext(opt_level=3):
            relay.build(mod, "cuda -arch=sm_90")
    finally:
        tvm.register_func("tvm_callback_cuda_compile", compiler, override=True)
    return sources[-1]


@pytest.mark.parametrize(
    "follow",
    [
        lambda y: relay.cast(y, "float32"),
        lambda y: relay.nn.relu(y + relay.const(1.0, "float16")),
        lambda y: relay.reshape(relay.cast(y, "float32"), (1, 2, 64, 64)),
    ],
)
def test_what_follows_a_batch_matmul_on_tensor_cores_has_threads(follow):
    product = lambda x, y: follow(relay.nn.batch_matmul(x, y))  # noqa: E731
    assert "mma_sync" in cuda_source(product, (2, 64, 64), (2, 64, 64), dtype="float16")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "uint8"])
def test_half_a_warp_does_not_wait_for_the_whole_block(dtype):
    for reduce in (relay.max, relay.argmax, relay.sum):
        if dtype == "bfloat16" and reduce is not relay.sum:
            continue  # by keys of int32
        source = cuda_source(lambda x, reduce=reduce: reduce(x, 1), (4, 300), dtype=dtype)
        divergent = re.search(r"if \(\(\(int\)threadIdx\.x\) < 16\) \{\n([^}]*)\}", source)
        assert "__syncwarp(" in divergent.group(1) and "__syncthreads" not in divergent.group(1)


@pytest.mark.parametrize("reduce", [relay.max, relay.argmax])
def test_extremes_of_bfloat16_are_found_by_shuffles(reduce):
    source = cuda_source(lambda x: reduce(x, 1), (4, 300), dtype="bfloat16")
    assert "__shfl_" in source and "__syncthreads" not in source


def test_reductions_of_bytes(emulated_cuda):
    x = relay.var("x", shape=(5, 300), dtype="int8")
    array = np.random.default_rng(0).integers(-128, 128, (5, 300)).astype("int8")
    for reduce, expected in ((relay.max, array.max(1)), (relay.argmax, array.argmax(1))):
        (found,) = emulated_cuda.run_relay(relay.Function([x], reduce(x, 1)), array)
        np.testing.assert_array_equal(found, expected)


def test_einsum(emulated_cuda):
    x, y = (relay.var(name, shape=(2, length, 5)) for name, length in (("x", 6), ("y", 7)))
    function = relay.Function(
        [x, y], relay.einsum([x, y * relay.const(2.0)], "bij,bkj->bik") + relay.const(1.0)
    )
    arrays = [np.random.default_rng(0).random((2, length, 5), "float32") for length in (6, 7)]
    (found,) = emulated_cuda.run_relay(function, *arrays)
    np.testing.assert_allclose(found, np.einsum("bij,bkj->bik", arrays[0], arrays[1] * 2) + 1, rtol=1e-5)


def test_lengths_are_int32():
    """Of a constant shape too: else what argmax gives is int64 outside of a fused function, int32 in it."""
    x = relay.var("x", shape=(2, 1, 3), dtype="uint8")
    wide = relay.broadcast_to(x, relay.const(np.array([2, 4, 3])))
    body = relay.Tuple([relay.cast(relay.argmin(wide, [2]), "int32"), relay.greater(wide, x)])
    places = relay.transform.InferType()(tvm.IRModule.from_expr(relay.argmin(wide, [2])))
    assert places["main"].ret_type == relay.TensorType((2, 4), "int32")
    with tvm.transform.PassContext(opt_level=3):
        relay.build(tvm.IRModule.from_expr(relay.Function([x], body)), "llvm")
    for made in (relay.ones, relay.zeros):
        mod = relay.transform.InferType()(tvm.IRModule.from_expr(made([np.int64(2), 3], "float32")))
        assert mod["main"].ret_type == relay.TensorType((2, 3), "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_constants_in_cuda_source_are_exact(emulated_cuda, dtype):
    constants = np.random.default_rng(0).standard_normal(40).astype(dtype)
    constants[:4] = 1 / 3, 1e-5, np.finfo(dtype).max, np.finfo(dtype).tiny
    x = relay.var("x", shape=(1,), dtype=dtype)
    products = [x * relay.const(constant, dtype) for constant in constants]
    found = emulated_cuda.run_relay(relay.Function([x], relay.Tuple(products)), np.ones(1, dtype))
    np.testing.assert_array_equal(np.concatenate(found), constants)


def test_what_folds_constants_is_built_once():
    build, target = tvm.get_global_func("relay.backend.build"), tvm.target.Target("llvm")

    def doubled(factor):
        x = te.placeholder((3,), "float32", "x")
        y = te.compute(x.shape, lambda i: x[i] * tvm.tir.const(factor, "float32"), "y")
        return tvm.lower(te.create_schedule(y.op), [x, y], name="doubled")

    once, again, other = (build(doubled(factor), target, None) for factor in (2, 2, 3))
    assert once.handle.value == again.handle.value != other.handle.value
