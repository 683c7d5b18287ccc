"""oneDNN through its C interface: the few calls of it that kernels for CPUs make.

The wheel `onednn-cpu-gomp` brings the library; one that the system has (`libdnnl.so.3`) serves as well, since
all versions from 3.0 on have the same interface. oneDNN's own documentation says what the calls do.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._kernel import bytes_of
from .._tvm import TVMError
from ..bootstrap.threads import OF_TWO, looking_for_work

NAME = "onednn"  # in the target: `llvm -libs=onednn`
WHEEL, SONAME = "onednn-cpu-gomp", "libdnnl.so.3"
INSTALL = f"pip install {WHEEL}"
TYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
ALIGNMENT = 64  # bytes

# The numbers of dnnl_types.h
_UNIMPLEMENTED = 3
_CPU, _IN_ORDER, _INFERENCE, _DIRECT, _ANY_FORMAT = 1, 1, 96, 1, 1
_NAME, _WEIGHTS_OF, _SCRATCHPAD_OF = 8, 131, 136  # what a primitive is asked for
_SCRATCHPAD_OF_USER = 1
_END_OF_LAYOUT = "dnnl_memory_desc_destroy"
_AVX512 = 0x27
SOURCE, RESULT, WEIGHTS, BIAS, SCRATCHPAD = 1, 17, 33, 41, 80  # arguments
SECOND_SOURCE, OF_POST_OP = 2, 32768
ADD = 0x1FFF0
ELEMENTWISE = {
    "relu": 0x20,
    "leaky_relu": 0x20,
    "tanh": 0x21,
    "linear": 0x26,
    "sigmoid": 0x29,
    "gelu_tanh": 0x2B,
    "silu": 0x2C,
    "clip": 0x2F,
    "gelu": 0x31,
    "mish": 0x33,
    "hard_swish": 0x34,
}

EXECUTE, MOVE = "dnnl_primitive_execute", "dnnl_memory_set_data_handle"
CLASHING = 2048  # bytes from row to row, of which multiples share sets of the cache

Handle = ctypes.c_void_p


class NotImplementedByOneDNN(Exception):
    """oneDNN has no implementation of a primitive for this processor."""


class Argument(ctypes.Structure):
    """Which argument of a primitive, and the memory that it is in."""

    _fields_ = [("index", ctypes.c_int), ("memory", Handle)]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The loaded library, or None where there is none."""
    with looking_for_work(OF_TWO):  # unless OpenMP is loaded, and shared with TVM
        for path in _candidates():
            with suppress(OSError):
                return _declared(ctypes.CDLL(path))
    return None


def check_installed(operator: str) -> None:
    """Raise the error of compiled code that calls the library where there is none."""
    if library() is None:
        raise TVMError(
            f"{operator}: the target had -libs={NAME}, and oneDNN is missing here: {INSTALL}, or compile for "
            "a target without it"
        )


def version() -> str | None:
    found = library()
    if found is None:
        return None
    numbers = ctypes.cast(found.dnnl_version(), ctypes.POINTER(ctypes.c_int * 3)).contents
    return ".".join(map(str, numbers))


def _candidates() -> Iterator[str]:
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(WHEEL) or ():
            if file.name == SONAME:
                yield str(file.locate())
    yield SONAME


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    found.dnnl_version.restype = ctypes.c_void_p
    found.dnnl_primitive_desc_query_md.restype = Handle
    found.dnnl_primitive_desc_query_md.argtypes = [Handle, ctypes.c_int, ctypes.c_int]
    found.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    found.dnnl_memory_desc_get_size.argtypes = [Handle]
    found.dnnl_memory_desc_equal.argtypes = [Handle, Handle]
    found.dnnl_memory_set_data_handle.argtypes = [Handle, ctypes.c_void_p]
    found.dnnl_primitive_execute.argtypes = [Handle, Handle, ctypes.c_int, ctypes.c_void_p]
    return found


def call(name: str, *arguments: Any) -> None:
    """Call a function that returns a status."""
    status = getattr(library(), name)(*arguments)
    if status == _UNIMPLEMENTED:
        raise NotImplementedByOneDNN(name)
    if status:
        raise RuntimeError(f"oneDNN {version()}: {name} failed with status {status}")


def made(name: str, *arguments: Any, until: str | None = None) -> Handle:
    """What a function makes that returns it through its first argument.

    The function `until` destroys it, once nothing refers to the handle.
    """
    result = Handle()
    call(name, ctypes.byref(result), *arguments)
    if until:
        weakref.finalize(result, getattr(library(), until), Handle(result.value))
    return result


@functools.cache
def has_avx512() -> bool:
    return bool(library().dnnl_get_effective_cpu_isa() & _AVX512 == _AVX512)  # type: ignore[union-attr]


@functools.cache
def is_of_intel() -> bool:
    """Whether the processor is: a core reads less of its outer cache and memory than with AMD."""
    return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")


@functools.cache
def engine() -> Handle:
    return made("dnnl_engine_create", _CPU, ctypes.c_size_t(0))


def stream() -> Handle:
    return made("dnnl_stream_create", engine(), _IN_ORDER)


def extents(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * 12)(*values)


def layout(shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> Handle:
    """A description of a tensor's memory; without strides, oneDNN chooses."""
    head = len(shape), extents(shape), TYPES[dtype]
    if strides is None:
        return made("dnnl_memory_desc_create_with_tag", *head, _ANY_FORMAT, until=_END_OF_LAYOUT)
    return made("dnnl_memory_desc_create_with_strides", *head, extents(strides), until=_END_OF_LAYOUT)


def memory(layout: Handle, address: int) -> Handle:
    return made("dnnl_memory_create", layout, engine(), Handle(address), until="dnnl_memory_destroy")


def move(memory: Handle, address: int) -> None:
    getattr(library(), MOVE)(memory, address)


class Buffer:
    """Aligned memory of as many bytes as a layout needs."""

    def __init__(self, layout: Handle) -> None:
        self.size = library().dnnl_memory_desc_get_size(layout)  # type: ignore[union-attr]
        self._bytes = (ctypes.c_uint8 * (self.size + ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._bytes) // ALIGNMENT) * ALIGNMENT
        self.memory = memory(layout, self.address)


class PostOps:
    """What a primitive does with its result before it writes it, in order."""

    def __init__(self) -> None:
        self.handle, self.count = made("dnnl_post_ops_create", until="dnnl_post_ops_destroy"), 0

    def elementwise(self, name: str, alpha: float = 0.0, beta: float = 0.0) -> None:
        if name == "tanh" and not has_avx512():
            # There oneDNN takes several times as long for it as for the sigmoid, of which it is made: the
            # error is a rounding of numbers near 1.
            self.elementwise("linear", 2.0)
            self.elementwise("sigmoid")
            name, alpha, beta = "linear", 2.0, -1.0
        numbers = ELEMENTWISE[name], ctypes.c_float(alpha), ctypes.c_float(beta)
        call("dnnl_post_ops_append_eltwise", self.handle, *numbers)
        self.count += 1

    def prelu_of_channels(self) -> int:
        """Returns the index of the slopes among the arguments."""
        call("dnnl_post_ops_append_prelu", self.handle, 1 << 1)
        self.count += 1
        return (OF_POST_OP * self.count) | WEIGHTS

    def add(self, layout: Handle) -> int:
        """Returns the index of the tensor that is added among the arguments."""
        call("dnnl_post_ops_append_binary", self.handle, ADD, layout)
        self.count += 1
        return (OF_POST_OP * self.count) | SECOND_SOURCE


class Primitive:
    """A convolution or another computation, for tensors of fixed layouts. It keeps its scratch memory itself,
    so one thread at a time may run it."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        create = f"dnnl_{kind}_primitive_desc_create"
        self._description = made(create, *arguments, until="dnnl_primitive_desc_destroy")
        self.handle = made("dnnl_primitive_create", self._description, until="dnnl_primitive_destroy")
        self.scratchpad = Buffer(self._asked(_SCRATCHPAD_OF))

    @property
    def is_for_depthwise(self) -> bool:
        """Whether it is one of those for depthwise convolutions, by its name: brdgmm_dw, or jit_dw."""
        name = ctypes.c_char_p()
        call("dnnl_primitive_desc_query", self._description, _NAME, 0, ctypes.byref(name))
        return b"dw" in (name.value or b"")

    @property
    def weights(self) -> Handle:
        """The layout that oneDNN chose for the weights."""
        return self._asked(_WEIGHTS_OF)

    def _asked(self, what: int) -> Handle:
        return Handle(library().dnnl_primitive_desc_query_md(self._description, what, 0))  # type: ignore[union-attr]


def convolution(
    data: Handle,
    weights: Handle,
    bias: Handle | None,
    result: Handle,
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: tuple[Sequence[int], Sequence[int]],
    post_ops: PostOps,
) -> Primitive:
    """Raises NotImplementedByOneDNN where the processor has not what it takes."""
    gaps = [each - 1 for each in dilation]
    numbers = map(extents, (strides, gaps, *padding))
    arguments = engine(), _INFERENCE, _DIRECT, data, weights, bias, result, *numbers
    return Primitive("convolution_forward", *arguments, _attributes(post_ops))


def matmul(
    data: Handle, weights: Handle, bias: Handle | None, result: Handle, post_ops: PostOps
) -> Primitive:
    """The product of a matrix with weights, (length, columns)."""
    return Primitive("matmul", engine(), data, weights, bias, result, _attributes(post_ops))


def product(
    data: Handle, shape: Sequence[int], dtype: str, bias: Handle | None, result: Handle, post_ops: PostOps
) -> Primitive:
    """A `matmul` with weights (..., length, columns) in the layout that oneDNN chooses.

    Without AVX-512 it leaves them row after row. Where rows are a multiple of `CLASHING` apart, columns are
    multiplied in as little as half of the time, so they are one after the other then.
    """
    length, columns = shape[-2:]
    chosen = matmul(data, layout(shape, dtype), bias, result, post_ops)
    outer = [length * columns] * (len(shape) - 2)
    rows = layout(shape, dtype, [*outer, columns, 1])
    if columns * bytes_of(dtype) % CLASHING or not is_same(chosen.weights, rows):
        return chosen
    return matmul(data, layout(shape, dtype, [*outer, 1, length]), bias, result, post_ops)


def is_same(one: Handle, other: Handle) -> bool:
    """Whether two layouts are the same."""
    return bool(library().dnnl_memory_desc_equal(one, other))  # type: ignore[union-attr]


def reorder(source: Handle, result: Handle) -> Primitive:
    """Copies a tensor from one layout to another."""
    return Primitive("reorder", source, engine(), result, engine(), _attributes())


def _attributes(post_ops: PostOps | None = None) -> Handle:
    attributes = made("dnnl_primitive_attr_create", until="dnnl_primitive_attr_destroy")
    call("dnnl_primitive_attr_set_scratchpad_mode", attributes, _SCRATCHPAD_OF_USER)
    if post_ops is not None:
        call("dnnl_primitive_attr_set_post_ops", attributes, post_ops.handle)
    return attributes


class Execution:
    """A primitive with its arguments, which may move from call to call."""

    def __init__(self, primitive: Primitive, memories: dict[int, Handle]) -> None:
        self._primitive = primitive
        self._execute = getattr(library(), EXECUTE)
        given = {**memories, SCRATCHPAD: primitive.scratchpad.memory}
        self._arguments = (Argument * len(given))(*(Argument(*each) for each in given.items()))

    def run(self, stream: Handle) -> None:
        status = self._execute(self._primitive.handle, stream, len(self._arguments), self._arguments)
        if status:
            raise RuntimeError(f"oneDNN {version()}: a primitive failed with status {status}")

    def steps(self, stream: Handle) -> tuple[Any, ...]:
        """What to call oneDNN's function with, from outside."""
        arguments = self._arguments
        return self._primitive.handle, stream, ctypes.addressof(arguments), len(arguments)
