"""Complex tensors between Fourier transforms, as a trace has them: by their real and their imaginary part.

Networks such as LaMa, GFNet and SwinFIR transform images, weight the result, and transform it back. While a
model is traced, the transforms of `torch.fft` are products with matrices of sines and cosines, and what they
give is a `ComplexTensor`, which knows what networks do with it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F

from ..errors import ImportFailure
from .patched import patched

# By name, without underscores: those that move elements or add them up, and so do it with each part.
OF_PARTS = {
    *("cat", "chunk", "clone", "concat", "contiguous", "expand", "fftshift", "flatten", "flip", "getitem"),
    *(
        "ifftshift",
        "index_select",
        "mean",
        "movedim",
        "narrow",
        "neg",
        "permute",
        "repeat",
        "reshape",
        "roll",
    ),
    *("select", "slice", "split", "squeeze", "stack", "sum", "swapaxes", "transpose", "unbind", "unflatten"),
    *("unsqueeze", "view"),
}
SUMS = {"add", "radd", "rsub", "sub", "subtract"}
PRODUCTS = {"bmm", "einsum", "matmul", "mul", "multiply", "rmul"}
MOST_FACTORS = 8  # of a power, which is that many products
SCALES = {"backward": (0, 1), "ortho": (0.5, 0.5), "forward": (1, 0)}  # powers of 1 / length, there and back


class ComplexTensor:
    """A complex tensor: two tensors of one shape."""

    def __init__(self, real: torch.Tensor, imag: torch.Tensor) -> None:
        self.real, self.imag = real, imag
        self.shape, self.ndim, self.device = real.shape, real.ndim, real.device
        self.dtype = torch.complex128 if real.dtype == torch.float64 else torch.complex64

    def dim(self) -> int:
        return self.ndim

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def is_complex(self) -> bool:
        return True

    @property
    def mT(self) -> ComplexTensor:
        return ComplexTensor(self.real.mT, self.imag.mT)

    def to(self, *args: Any, **kwargs: Any) -> ComplexTensor:
        """On the device and in the precision that the trace has."""
        if any(isinstance(each, torch.dtype) and not each.is_complex for each in (*args, *kwargs.values())):
            raise ImportFailure("complex numbers as real ones are not imported: use their real part")
        return self

    def __pow__(self, exponent: Any) -> Any:
        return _power(self, exponent)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        return functools.partial(_computed, getattr(torch.Tensor, name), self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, *args, **(kwargs or {}))


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *others: _computed(getattr(torch.Tensor, name), self, *others)


IN_PLACE = {"__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__setitem__"}
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "matmul", "truediv", "rtruediv", "neg", "getitem"):
    setattr(ComplexTensor, f"__{_name}__", _operator(f"__{_name}__"))
for _name in IN_PLACE:
    setattr(ComplexTensor, _name, _operator(_name))


def _computed(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function of torch gives for complex tensors."""
    written = func.__name__.partition(".")[0]  # behind it is an overload
    if written in IN_PLACE or (written.endswith("_") and not written.endswith("__")):
        raise ImportFailure(
            f"{written} changes complex numbers in place, which is not imported: compute new ones, "
            "as x = x + y does, and join parts by torch.cat"
        )
    name = written.strip("_").removeprefix("fft_")
    if name in OF_PARTS:
        return _joined(*(func(*_moved(args, part), **kwargs) for part in ("real", "imag")))
    if name in SUMS:
        parts = ("real", "imag")
        return _joined(*(func(*(_part(each, part) for each in args), **kwargs) for part in parts))
    if name in PRODUCTS:
        operands = [*args, *kwargs.values()]  # the second by name
        if len(operands) > 2 + (name == "einsum"):
            raise ImportFailure(
                f"{name} of more than two complex tensors is not imported: compute two at a time"
            )
        return _product(func, *operands)
    if name in OTHERS:
        return OTHERS[name](*args, **kwargs)
    raise ImportFailure(f"{name} of complex numbers is not imported: use their real and imaginary parts")


def _moved(args: Sequence[Any], part: str) -> list[Any]:
    """Arguments of which the complex tensors, in lists or not, are moved."""
    return [
        [_part(each, part) for each in arg]
        if isinstance(arg, (tuple, list)) and any(isinstance(each, ComplexTensor) for each in arg)
        else _part(arg, part)
        if isinstance(arg, ComplexTensor)
        else arg
        for arg in args
    ]


def _part(value: Any, part: str) -> Any:
    """A part of an operand, which may be real, and a number."""
    if isinstance(value, (ComplexTensor, complex)):
        return getattr(value, part)
    if part == "real":
        return value
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0


def _joined(real: Any, imag: Any) -> Any:
    if isinstance(real, torch.Tensor):
        return ComplexTensor(*torch.broadcast_tensors(real, imag))
    return type(real)(map(ComplexTensor, real, imag))


def _product(func: Callable[..., torch.Tensor], *args: Any) -> ComplexTensor:
    *first, x, y = args  # before the operands of einsum comes its equation
    a, b, c, d = (_part(each, part) for each in (x, y) for part in ("real", "imag"))
    if not isinstance(y, (ComplexTensor, complex)):
        return ComplexTensor(func(*first, a, c), func(*first, b, c))
    if not isinstance(x, ComplexTensor):
        return ComplexTensor(func(*first, a, c), func(*first, a, d))
    real = func(*first, a, c) - func(*first, b, d)
    return ComplexTensor(real, func(*first, a, d) + func(*first, b, c))


def _quotient(x: Any, y: Any) -> ComplexTensor:
    if isinstance(y, ComplexTensor):
        return _quotient(_computed(torch.mul, y.conj(), x), y.real * y.real + y.imag * y.imag)
    if isinstance(y, complex):
        return _product(torch.mul, x, 1 / y)
    return ComplexTensor(x.real / y, x.imag / y)


def _power(x: ComplexTensor, exponent: Any) -> ComplexTensor:
    if not isinstance(exponent, int) or not 1 <= exponent <= MOST_FACTORS:
        raise ImportFailure(
            f"the power {exponent} of complex numbers is not imported: write it by abs, angle and polar"
        )
    return functools.reduce(functools.partial(_product, torch.mul), [x] * exponent)


def _polar(length: torch.Tensor, angle: torch.Tensor) -> ComplexTensor:
    return ComplexTensor(length * torch.cos(angle), length * torch.sin(angle))


def _length(x: ComplexTensor) -> torch.Tensor:
    return torch.sqrt(x.real * x.real + x.imag * x.imag)


OTHERS: dict[str, Callable[..., Any]] = {
    "abs": _length,
    "absolute": _length,
    "angle": lambda x: torch.atan2(x.imag, x.real),
    "conj": lambda x: ComplexTensor(x.real, -x.imag),
    "conj_physical": lambda x: ComplexTensor(x.real, -x.imag),
    "div": _quotient,
    "imag": lambda x: x.imag,
    "is_complex": lambda x: True,
    "pow": _power,
    "rdiv": lambda x, y: _quotient(y, x),  # as torch names __rtruediv__
    "real": lambda x: x.real,
    "resolve_conj": lambda x: x,
    "truediv": _quotient,
    "view_as_real": lambda x: torch.stack([x.real, x.imag], -1),
}


# --- Fourier transforms


def _transformed(
    x: Any, axis: int, length: int | None, norm: str | None, back: bool, to: str = "complex"
) -> Any:
    """The transform along an axis, by one product; `to` is "complex", "half" of it, or "real"."""
    parts = [x.real, x.imag] if isinstance(x, ComplexTensor) else [x]
    size = parts[0].shape[axis]
    count = int(length if length is not None else 2 * (size - 1) if to == "real" else size)
    kept = count // 2 + 1 if to == "half" else count
    used = min(size, count // 2 + 1 if to == "real" else count)  # what is missing counts as zero
    turns = np.outer(np.arange(used), np.arange(kept)) % count / count
    wave = np.exp((2j if back else -2j) * np.pi * turns) * float(count) ** -SCALES[norm or "backward"][back]
    if to == "real":  # what is missing is the mirror image of the rest
        place = np.arange(used)
        wave *= np.where((place > 0) & (2 * place < count), 2, 1)[:, None]
    rows = np.block([[wave.real, wave.imag], [-wave.imag, wave.real]])
    rows = rows[: used * len(parts), : kept if to == "real" else 2 * kept]
    parts = [part if part.is_floating_point() else part.float() for part in parts]
    last = torch.cat([part.movedim(axis, -1)[..., :used] for part in parts], -1)
    made = F.linear(last, torch.from_numpy(rows.T.copy()).to(last.dtype)).movedim(-1, axis)
    return made if to == "real" else ComplexTensor(*made.split(kept, axis))


def _along_all(
    to: str,
    back: bool,
    default: tuple[int, ...] | None,
    input: Any,
    s: Any = None,
    dim: Any = None,
    norm: Any = None,
) -> Any:
    """The transform along several axes, of which the last is that with a real side."""
    dim = default if dim is None else [dim] if isinstance(dim, int) else dim
    if dim is None:
        dim = range(-(input.ndim if s is None else len(s)), 0)
    steps = list(zip(dim, [None] * len(dim) if s is None else [None if each == -1 else each for each in s]))
    *others, last = steps
    if to == "half":
        input = _transformed(input, *last, norm, back, to)
    for step in others if to != "complex" else steps:
        input = _transformed(input, *step, norm, back)
    return _transformed(input, *last, norm, back, to) if to == "real" else input


def _along_one(to: str, back: bool, input: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:
    return _transformed(input, dim, n, norm, back, to)


TRANSFORMS: dict[str, Callable[..., Any]] = {}
for _prefix, _to, _back in (
    *(("", "complex", False), ("i", "complex", True)),
    *(("r", "half", False), ("ir", "real", True)),
):
    TRANSFORMS[f"{_prefix}fft"] = functools.partial(_along_one, _to, _back)
    TRANSFORMS[f"{_prefix}fft2"] = functools.partial(_along_all, _to, _back, (-2, -1))
    TRANSFORMS[f"{_prefix}fftn"] = functools.partial(_along_all, _to, _back, None)
MAKERS: dict[str, Callable[..., Any]] = {
    "complex": ComplexTensor,
    "polar": _polar,
    "view_as_complex": lambda x: ComplexTensor(x[..., 0], x[..., 1]),
}


@contextmanager
def complex_by_parts(model: torch.nn.Module) -> Iterator[None]:
    """Trace what makes complex tensors as what makes their parts, also where a model's module imports it."""
    instead = {id(getattr(torch, name)): function for name, function in MAKERS.items()}
    instead.update((id(getattr(torch.fft, name)), function) for name, function in TRANSFORMS.items())
    named = {**MAKERS, **{f"fft_{name}": transform for name, transform in TRANSFORMS.items()}}
    of_parts = {type(part).__module__ for part in model.modules()}
    with ExitStack() as stack:
        for module in [
            sys.modules[name] for name in {"torch", "torch.fft", *of_parts} if name in sys.modules
        ]:
            for name, value in list(vars(module).items()):
                if id(value) in instead:
                    stack.enter_context(patched(module, name, instead[id(value)]))
        for name, function in named.items():  # as exported programs call them
            overload = getattr(torch.ops.aten, name).default
            stack.enter_context(mock.patch.object(overload, "_op", function))
        yield
