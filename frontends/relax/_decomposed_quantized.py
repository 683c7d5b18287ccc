"""Writes quantization as `torch.export` has it (PT2E) by other operators of torch, as `_decompositions`.

`convert_pt2e` leaves a network in float32 in which each tensor is quantized and dequantized. It is computed
so: Relax has no convolutions of int8.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Any]

DEFINED_IN = "torch.ao.quantization.fx._decomposed"  # which is imported before a model has such operators
# torch's own definitions are traced where they take no numbers out of tensors.
DEFINED = (
    *("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel"),
    *("quantize_per_token", "dequantize_per_token", "dequantize_per_channel_group"),
    *("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"),
)


def decompositions() -> dict[Any, Call]:
    """By operator, what writes it by others."""
    module = sys.modules.get(DEFINED_IN)
    if module is None:
        return {}
    of = torch.ops.quantized_decomposed
    return {
        **{getattr(of, name).default: getattr(module, name) for name in DEFINED if hasattr(module, name)},
        of.choose_qparams.tensor: partial(_parameters, _scale_and_zero),
        of.choose_qparams_symmetric.tensor: partial(_parameters, _scale_around_zero),
        **dict.fromkeys((of.quantize_per_tensor.tensor, of.quantize_per_tensor.tensor2), _quantize),
        **dict.fromkeys((of.dequantize_per_tensor.tensor, of.dequantize_per_tensor.tensor2), _dequantize),
    }


def _quantize(x: Tensor, scale: Tensor, zero: Tensor, low: Any, high: Any, dtype: torch.dtype) -> Tensor:
    inverse = (1.0 / scale.double()).float().reshape(())  # as of a number of Python
    steps = torch.round(x.float() * inverse) + zero.float().reshape(())
    if isinstance(low, Tensor):
        low, high = (each.float().reshape(()) for each in (low, high))
    return steps.clamp(low, high).to(dtype)


def _dequantize(
    x: Tensor, scale: Tensor, zero: Tensor, *_: Any, out_dtype: torch.dtype | None = None
) -> Tensor:
    dtype = out_dtype or torch.float32
    centred = x.to(dtype) - zero.to(dtype).reshape(())
    exact = torch.promote_types(dtype, torch.float32)
    return (centred.to(exact) * scale.to(exact).reshape(())).to(dtype)


def _parameters(
    choose: Call, x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    x = x.float()
    least, most = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale, zero = choose(least, most, low, high, eps, dtype)
    return scale.double().reshape(1), zero.to(torch.int64).reshape(1)


def _scale_and_zero(
    least: Tensor, most: Tensor, low: int, high: int, eps: float, _: torch.dtype
) -> tuple[Tensor, Tensor]:
    scale = ((most - least) / (high - low)).clamp(min=eps)
    return scale, (low - torch.round(least / scale)).clamp(low, high)


def _scale_around_zero(
    least: Tensor, most: Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    scale = (torch.maximum(-least, most) / ((high - low) / 2)).clamp(min=eps)
    return scale, torch.full((), 128 if dtype == torch.uint8 else 0)
