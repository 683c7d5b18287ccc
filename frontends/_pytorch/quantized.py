"""Operators of quantized tensors that TVM lacks, as torch defines them: by floats, quantized again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .untraced import untraced

QUANTIZED = {"QInt8", "QUInt8", "QInt32"}  # types of tensors in a trace
INSTEAD = "pass the nn.Module that was traced or scripted, or call dequantize() before"


def is_in_floats(node: torch.Node) -> bool:
    """Whether an operator has a converter that would take quantized tensors for bytes."""
    namespace, name = node.kind().split("::")
    return namespace == "aten" and name.rstrip("_") in IN_FLOATS


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, eps: float, *_: Any, **_2: Any
) -> torch.Tensor:
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


def _layer_norm(
    x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float, *_: Any, **_2: Any
) -> torch.Tensor:
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


def _group_norm(
    x: Any, num_groups: int, weight: Any, bias: Any, eps: float, *_: Any, **_2: Any
) -> torch.Tensor:
    return F.group_norm(x, num_groups, weight, bias, eps)


def _instance_norm(x: Any, weight: Any, bias: Any, eps: float, *_: Any, **_2: Any) -> torch.Tensor:
    return F.instance_norm(x, None, None, weight, bias, eps=eps)


def _elu(x: Any, _scale: float, _zero_point: int, alpha: float = 1.0, *_: Any) -> torch.Tensor:
    return F.elu(x, alpha)


def _celu(x: Any, _scale: float, _zero_point: int, alpha: float = 1.0, *_: Any) -> torch.Tensor:
    return F.celu(x, alpha)


def _softmax(x: Any, axis: int, *_: Any, **_2: Any) -> torch.Tensor:
    return torch.softmax(x, axis)


def _matmul(x: Any, y: Any, *_: Any, **_2: Any) -> torch.Tensor:
    return torch.matmul(x, y)


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> torch.Tensor:
    return torch.clamp(x, min_val, max_val)


def _relu6(x: Any, inplace: bool = False) -> torch.Tensor:
    return torch.clamp(x, 0.0, 6.0)


def _threshold(x: Any, threshold: float, value: float, inplace: bool = False) -> torch.Tensor:
    return F.threshold(x, threshold, value)


def _with_relu(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, **kwargs: torch.relu(compute(*args, **kwargs))


# By the name of a function or an operator: what it computes of floats. Those of the namespace `quantized`
# take the scale and the zero point of the result, too.
IN_FLOATS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"batch_norm{of}": _batch_norm for of in ("", "1d", "2d", "3d")},
    **{f"batch_norm{of}_relu": _with_relu(_batch_norm) for of in ("1d", "2d", "3d")},
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "elu": _elu,
    "celu": _celu,
    "softmax": _softmax,
    "matmul": _matmul,
    "add": torch.add,
    "add_relu": _with_relu(torch.add),
    "mul": torch.mul,
    "mul_relu": _with_relu(torch.mul),
    "tanh": torch.tanh,
    "clamp": torch.clamp,
    "clip": torch.clamp,
    "hardtanh": _hardtanh,
    "relu6": _relu6,
    "threshold": _threshold,
}
OF_TENSORS = {"add", "add_relu", "mul", "mul_relu"}  # which TVM knows, but not with a number


@contextmanager
def known_operators(model: torch.nn.Module) -> Iterator[None]:
    """Trace what TVM knows."""
    parts = [type(part) for part in model.modules()]
    if any("quantized" in f"{part.__module__}.{part.__name__}" for part in parts):
        with _InFloats():
            yield
    else:
        yield


class _InFloats(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        compute = IN_FLOATS.get(name.rstrip("_"))
        if compute is None or not any(map(_is_quantized, args)):
            return func(*args, **kwargs)
        if name in OF_TENSORS and all(map(_is_quantized, args[:2])):
            return func(*args, **kwargs)
        is_in_place = name.endswith("_") or kwargs.get("inplace", False)
        with untraced():
            copies = [arg.clone() if _is_quantized(arg) else arg for arg in args]
            result = func(*copies, **kwargs)
        floats = compute(*(arg.dequantize() if _is_quantized(arg) else arg for arg in args), **kwargs)
        scale, zero_point = result.q_scale(), result.q_zero_point()
        quantized = torch.quantize_per_tensor(floats, scale, zero_point, result.dtype)
        return args[0].copy_(quantized) if is_in_place else quantized


def _is_quantized(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_quantized
