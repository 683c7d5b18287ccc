"""TVM's interface for Python, compiled by its first import or not at all; and what goes through it."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.test_find_tvm import python
from topi_ext.bootstrap import fast_ffi, tvm_in_use, user_cache
from topi_ext.corrections import objects
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay, te

PRINT = "from topi_ext.bootstrap import tvm_in_use; print(tvm_in_use.ffi)"
is_chosen = pytest.mark.skipif("TVM_FFI" in os.environ, reason="TVM_FFI decides")
has_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


def in_folder(path):
    """The environment for a cache there."""
    return {"XDG_CACHE_HOME": str(path), user_cache.SWITCH: "0", "TVM_FFI": "auto"}


@has_compiler
@is_chosen
def test_it_is_in_use():
    assert tvm_in_use.ffi == "Cython"
    assert tvm.runtime.PackedFunc.__mro__[1].__module__ == fast_ffi.MODULE


@has_compiler
def test_it_is_compiled_once(tmp_path):
    first, second = (python(PRINT, **in_folder(tmp_path)) for _ in range(2))
    assert first.stdout.strip() == second.stdout.strip() == "Cython", first.stderr
    assert "Compiling" in first.stderr and "Compiling" not in second.stderr
    (library,) = (tmp_path / "tvm-vision-passes").iterdir()
    assert library.suffix == ".so"


@pytest.mark.parametrize(
    "environment, said",
    [
        ({"CXX": "/nowhere/g++"}, "ctypes (there is no /nowhere/g++)"),
        ({"CXX": "false"}, "ctypes (false failed)"),
        ({"XDG_CACHE_HOME": "/dev/null"}, "ctypes ([Errno 20] Not a directory"),
        ({"TVM_FFI": "ctypes"}, "ctypes"),
    ],
)
def test_without_it_all_works_as_before(tmp_path, environment, said):
    environment = {**in_folder(tmp_path), **environment}
    answer = python(PRINT + "; import tvm; print(tvm.nd.array([1]).numpy())", **environment)
    ffi, array = answer.stdout.strip().splitlines()
    assert ffi.startswith(said) and array == "[1]", answer.stderr


def test_a_tvm_without_its_sources(tmp_path):
    with pytest.raises(fast_ffi.CannotBuild, match=r"no core\.pyx"):
        fast_ffi._library(tmp_path)


def test_objects_arrays_and_errors_go_through():
    array = np.arange(6, dtype="int16").reshape(2, 3)
    passed = tvm.nd.from_dlpack(tvm.nd.array(array).to_dlpack())
    np.testing.assert_array_equal(passed.numpy(), array)
    call = tvm.runtime.convert(lambda *values: tvm.runtime.convert(list(values)))
    assert [int(value) for value in call(1, tvm.tir.IntImm("int64", 2))] == [1, 2]

    def fails(_):
        raise ValueError("of its own kind")

    with pytest.raises(ValueError, match="of its own kind"):
        tvm.runtime.convert(fails)(0)


def test_a_user_without_a_home(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("TVM_FFI", "auto")
    for name in ("XDG_CACHE_HOME", user_cache.SWITCH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fast_ffi.Path, "home", no_home)
    (tmp_path / "_ffi" / "_cython").mkdir(parents=True)
    (tmp_path / "_ffi" / "_cython" / "core.pyx").write_text("")
    with fast_ffi.compiled(tmp_path) as ffi:
        assert ffi == "ctypes (Could not determine home directory.)"


def test_it_is_the_same_wherever_the_files_are(tmp_path, monkeypatch):
    """A second clone compiled it again where its path came after that of TVM."""
    sources, name = tmp_path / "m", "core.pyx"
    sources.mkdir()
    (sources / name).write_text("pyx")

    def build(_, folder):
        (folder / "core.so").touch()
        return folder / "core.so"

    monkeypatch.setattr(fast_ffi, "_build", build)
    monkeypatch.setattr(fast_ffi.user_cache, "folder", lambda: tmp_path / "cache")
    for clone in ("a", "z"):
        (tmp_path / clone).mkdir()
        (tmp_path / clone / "c.h").write_text("header")
        monkeypatch.setattr(fast_ffi, "HEADERS", tmp_path / clone)
        fast_ffi._library(sources)
    assert len([*(tmp_path / "cache").iterdir()]) == 1


def test_what_is_changed_in_its_sources_is_there():
    sources = Path(tvm.__file__).parent / "_ffi" / "_cython"
    text = "".join(file.read_text() for file in sources.glob("*.pxi"))
    assert all(text.count(passage) == 1 for passage in fast_ffi.FASTER)


class Text(str):
    pass


@pytest.mark.parametrize(
    "given, taken",
    [
        *(("text", "text"), (Text("text"), "text"), (tvm.runtime.String("text"), "text"), ("ö", "ö")),
        *((True, 1), (-(2**63), -(2**63)), (np.int64(3), 3), (1.5, 1.5), (None, None)),
    ],
)
def test_texts_and_numbers_go_through(given, taken):
    assert tvm.runtime.convert(lambda value: value)(given) == taken


@has_compiler
@is_chosen
def test_an_integer_that_is_too_large_is_refused():
    with pytest.raises(OverflowError):
        tvm.runtime.convert(lambda value: value)(2**63)


UNTYPED = {tvm.ir.RelayExpr: (tvm.ir.Op,)}  # nodes that lack some of the fields


def nodes():
    x = relay.var("x", shape=(1, 8))
    mod = relay.transform.InferType()(
        tvm.IRModule.from_expr(relay.nn.relu(relay.TupleGetItem(relay.Tuple([x]), 0) + x))
    )
    found = [*Graph(mod["main"]).nodes, relay.const(1.0), x.type_annotation, tvm.tir.IntImm("int64", 3)]
    return [*found, relay.Tuple([x])]


def test_attributes_are_those_that_tvm_reads():
    seen = set()
    for node in nodes():
        for kind, names in objects.FIELDS.items():
            for name in names if isinstance(node, kind) and type(node) not in UNTYPED.get(kind, ()) else ():
                stock = tvm.runtime.object._ffi_node_api.NodeGetAttr(node, name)
                assert getattr(node, name) == stock, (kind, name)
                seen.add((kind, name))
    assert seen == {(kind, name) for kind, names in objects.FIELDS.items() for name in names}
    for missing in "nothing", "data":
        with pytest.raises(AttributeError, match=missing):
            getattr(relay.var("x"), missing)


def test_the_interface_of_another_tvm_stays_as_it_is(monkeypatch):
    """Whose sources have only some of the passages that are changed here."""
    other = type("Object", (type("ObjectBase", (), {}),), {})
    monkeypatch.setattr(objects, "Object", other)
    monkeypatch.setattr(objects, "FIELDS", {other: ("value",)})
    objects.apply()
    assert not {"__hash__", "__eq__", "value"} & vars(other).keys()


def test_objects_are_equal_where_tvm_has_one():
    x = relay.var("x", shape=(1, 8))
    call = relay.exp(x)
    again = call.args[0]
    assert again is not x and again == x and not x.__ne__(again) and {x: 1}[again] == 1
    assert hash(again) == hash(x) == tvm.runtime._ffi_api.ObjectPtrHash(x)
    assert x != relay.var("x", shape=(1, 8)) and x != 1 and x is not None and call not in {x: 1}
    # Others are equal by what their class says, types by their structure.
    assert relay.TensorType((1, 8)) == x.type_annotation
    assert not relay.TensorType((1, 8)).__ne__(x.type_annotation)
    tensor = tvm.te.placeholder((2, 3))
    assert tensor == tensor.op.output(0) and not tensor != tensor.op.output(0)  # noqa: SIM202


def test_what_compares_numbers_still_does():
    """Tensors and axes get their operators from a class behind that of all objects."""
    tensor, axis = te.placeholder((), "int32"), te.reduce_axis((0, 3))
    for made in (tensor > 1, tensor <= 1, axis.var < 2):
        assert made.dtype == "bool"
