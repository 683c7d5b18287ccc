"""CUDA kernels compiled in parallel, and the cache that they are kept in."""

import multiprocessing
import shutil

import numpy as np
import pytest

from tests.test_find_tvm import python
from topi_ext.bootstrap import user_cache
from topi_ext.corrections import compile_cuda
from tvm_passes import runtime

import tvm
from tvm import relay

pytestmark = pytest.mark.usefixtures("kernel_cache")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
TARGET = "cuda -arch=sm_80"
FLAGS = ("-gencode", "arch=compute_80,code=sm_80")
SOFTMAXES = 5


@pytest.fixture
def compiled(monkeypatch):
    """The sources that nvcc would get; it is not called."""
    sources = []

    def compile_(source):
        sources.append(source)
        return f"{source.flags} {source.code}".encode()

    monkeypatch.setattr(compile_cuda.Source, "compile", compile_)
    return sources


@pytest.fixture
def on_four_cores(monkeypatch):
    monkeypatch.setattr(compile_cuda, "cores", lambda: 4)
    monkeypatch.setattr(compile_cuda, "PART", 500)


def network():
    """Several kernels of different shapes."""
    x = relay.var("x", shape=(4, 24))
    rows = [relay.nn.softmax(relay.reshape(x, (-1, 2 + each))) for each in (0, 1, 2, 4, 6)]
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.Tuple([relay.exp(each) for each in rows])))
    return relay.transform.InferType()(mod)


def kernels(library):
    """The modules for the device."""
    host = library.lib
    found, waiting = [], [*host.imported_modules]
    while waiting:
        module = waiting.pop()
        waiting += module.imported_modules
        found += [module] if module.type_key == "cuda" else []
    return found


def names(sources):
    return sorted(name for source in sources for name in set(compile_cuda.KERNEL.findall(source)))


def source(code, flags=FLAGS):
    return compile_cuda.Source(code, flags)


# --- in parallel


def test_kernels_are_divided(compiled, on_four_cores):
    built = kernels(runtime.build_library(network(), TARGET))
    assert len(built) == len(compiled) == 4
    one = [runtime.build_library(network(), TARGET)]
    assert names(module.get_source() for module in built) == names(each.code for each in compiled)
    assert names(module.get_source() for module in kernels(*one)) == names(each.code for each in compiled)
    assert len(compiled) == 4  # the second time, all are known


def test_all_kernels_of_one_core_are_one_source(compiled, monkeypatch, on_four_cores):
    divided = names(module.get_source() for module in kernels(runtime.build_library(network(), TARGET)))
    monkeypatch.setattr(compile_cuda, "cores", lambda: 1)
    (whole,) = kernels(runtime.build_library(network(), TARGET))
    assert names([whole.get_source()]) == divided and len(divided) >= SOFTMAXES


def test_equal_functions_become_one_kernel(compiled):
    x, y = (relay.var(name, shape=(4, 24)) for name in "xy")
    mod = tvm.IRModule.from_expr(
        relay.Function([x, y], relay.Tuple([relay.nn.softmax(each) for each in (x, y)]))
    )
    (module,) = kernels(runtime.build_library(mod, TARGET))
    assert len(names([module.get_source()])) == 1


def test_the_callback_of_the_user_gets_the_whole(compiled, on_four_cores):
    stock, sources = tvm.get_global_func(compile_cuda.COMPILE), []
    tvm.register_func(compile_cuda.COMPILE, lambda code, _: sources.append(code) or b"", override=True)
    try:
        (built,) = kernels(runtime.build_library(network(), TARGET))
    finally:
        tvm.register_func(compile_cuda.COMPILE, stock, override=True)
    assert sources == [built.get_source()] and not compiled


@needs_nvcc
def test_the_folder_for_kernels_gets_the_whole(kernel_cache, tmp_path, on_four_cores):
    folder = tmp_path / "kernels"
    with tvm.transform.PassContext(opt_level=3, config={compile_cuda.OUTPUT_DIR: str(folder)}):
        (built,) = kernels(runtime.build_library(network(), TARGET))
    assert (folder / "tvm_kernels.cu").read_text() == built.get_source()
    assert not [*kernel_cache.glob(f"*{user_cache.SUFFIX}")]


@needs_nvcc
def test_an_error_of_nvcc_is_raised():
    with pytest.raises(RuntimeError, match="undefined_name"):
        compile_cuda.compile_all([source('extern "C" __global__ void f() { undefined_name(); }')])


def test_numbers_on_the_emulated_device(emulated_cuda, on_four_cores):
    array = np.random.default_rng(0).standard_normal((4, 24)).astype("float32")
    for result, expected in zip(
        emulated_cuda.run_relay(network(), array), _on_the_cpu(network(), array), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.gpu
def test_numbers_on_a_gpu(tmp_path, on_four_cores):
    """Divided, from the cache, and from a file."""
    target = f"cuda -arch=sm_{tvm.cuda(0).compute_version.replace('.', '')}"
    array = np.random.default_rng(0).standard_normal((4, 24)).astype("float32")
    expected = _on_the_cpu(network(), array)
    for _ in range(2):
        library = runtime.build_library(network(), target)
        assert len(kernels(library)) == 4
    runtime.save(tmp_path / "saved", library, network(), target)
    for model in (runtime.Model(library, "cuda"), runtime.load(tmp_path / "saved")):
        for result, wanted in zip(model(array).values(), expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-5)


def _on_the_cpu(mod, array):
    return [*runtime.compile(mod, "llvm")(array).values()]


# --- the cache


def test_what_is_compiled_is_kept(compiled, kernel_cache):
    first = compile_cuda.compile_all([source("a"), source("b"), source("a")])
    assert compile_cuda.compile_all([source("b"), source("a")]) == first
    assert sorted(each.code for each in compiled) == ["a", "b"]
    assert {path.suffix for path in kernel_cache.iterdir()} == {user_cache.SUFFIX}


def test_the_order_of_kernels_does_not_matter(compiled):
    before, *both = (f'extern "C" __global__ void {name}() {{}}\n\n' for name in ("a", "b", "c"))
    compile_cuda.compile_all([source(before + "".join(both))])
    compile_cuda.compile_all([source(before + "".join(reversed(both)))])
    assert len(compiled) == 1


@pytest.mark.parametrize("change", ["flags", "code", "nvcc", "variable"])
def test_what_differs_is_compiled(compiled, monkeypatch, change):
    compile_cuda.compile_all([source("a")])
    other = source("b" if change == "code" else "a", ("-arch=sm_90",) if change == "flags" else FLAGS)
    if change == "nvcc":
        monkeypatch.setattr(compile_cuda, "_version_of", lambda program: "another")
    if change == "variable":
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "--use_fast_math")
    compile_cuda.compile_all([other])
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", [lambda old: old[:-1], lambda old: b"", lambda old: old[:-1] + b"?"])
def test_a_damaged_entry_is_made_anew(compiled, kernel_cache, damage):
    expected = compile_cuda.compile_all([source("a")])
    (path,) = kernel_cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):
        assert compile_cuda.compile_all([source("a")]) == expected
    assert len(compiled) == 2


@pytest.mark.parametrize("folder", ["0", "", "/dev/null/cache"])
def test_without_a_cache(compiled, kernel_cache, monkeypatch, folder):
    monkeypatch.setenv(user_cache.SWITCH, folder)
    for _ in range(2):
        compile_cuda.compile_all([source("a")])
    assert len(compiled) == 2 and not [*kernel_cache.iterdir()]


def test_the_cache_is_bounded(kernel_cache, monkeypatch):
    monkeypatch.setattr(user_cache, "MAX_BYTES", 2_500)
    for key in "abab":  # the second time, each is used again
        user_cache.load(key) or user_cache.store(key, key.encode() * 1_000)
    user_cache.load("a")
    user_cache.store("c", b"c" * 1_000)
    assert user_cache.load("b") is None
    assert user_cache.load("a") and user_cache.load("c")


def test_several_processes_at_once(kernel_cache, monkeypatch):
    monkeypatch.setenv("TVM_FFI", "ctypes")  # compile no interface into this folder
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert all(pool.map(_store_and_load, [str(kernel_cache)] * 4))
    (path,) = kernel_cache.iterdir()
    assert user_cache.load(path.stem) == b"x" * 100_000


def _store_and_load(folder):
    """Whether whatever is found is complete."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(user_cache.SWITCH, folder)
        for _ in range(50):
            user_cache.store("shared", b"x" * 100_000)
            if user_cache.load("shared") != b"x" * 100_000:
                return False
    return True


def test_a_folder_of_the_users_choice(tmp_path):
    show = "from topi_ext.bootstrap import user_cache; print(user_cache.folder())"
    answer = python(show, TVM_PASSES_CACHE=str(tmp_path), TVM_FFI="ctypes")
    assert answer.stdout.strip() == str(tmp_path), answer.stderr


@needs_nvcc
def test_a_known_kernel_is_what_nvcc_made(kernel_cache):
    code = source('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1; }')
    made = compile_cuda.compile_all([code])[code]
    assert made == user_cache.load(code.key) and b"\x7fELF" in made
