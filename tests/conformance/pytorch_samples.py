"""PyTorch's own samples of its operators, what its developers test them with; with those of torchvision.

Which operators and samples count is decided here, by rules alone:

- an operator with a public name, in each of its variants (`div` by rounding mode, `interpolate` by mode);
- whose results do not depend on random numbers;
- samples with tensors in and only tensors out, none of them empty, complex, sparse or quantized, without
  `out=` and `inplace=`;
- of these, the first PER_OPERATOR that differ in shapes or in what else the operator is called with.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.conformance import torchvision_samples

DTYPES = ("float32", "float16", "int64", "bool")
PER_OPERATOR = 3
LOOKED_AT = 40  # of an operator's samples: a few operators have thousands
IN_PLACE = ("inplace", "out")
# What op_db seeds inside, so that it looks deterministic; the others are found by their results.
RANDOM = {
    "bernoulli", "cauchy", "empty_like", "exponential", "geometric", "log_normal", "multinomial", "new_empty",
    "new_empty_strided", "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "normal", "rand_like", "randint_like",
    "randn_like", "svd_lowrank", "pca_lowrank", "uniform",
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One call of an operator, by its place, since the tensors themselves stay in their process."""

    operator: str
    dtype: str
    number: int  # among those of the operator that are tried

    @property
    def name(self) -> str:
        return f"{self.operator} {self.dtype} {self.number}"


class Call(torch.nn.Module):
    """A sample as a model: its tensors are the inputs, and everything else is part of the model."""

    def __init__(self, operator: Callable[..., Any], parts: list[Any], structure: Any) -> None:
        super().__init__()
        self.operator, self.parts, self.structure = operator, parts, structure
        self.tensors = tuple(part for part in parts if isinstance(part, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        parts = [next(given) if isinstance(part, torch.Tensor) else part for part in self.parts]
        first, arguments, options = tree_unflatten(parts, self.structure)
        return self.operator(first, *arguments, **options)


def samples(dtype: str, only: str | None = None) -> list[Sample]:
    """All samples of a dtype, or those of one operator (in all its variants)."""
    every = (*operators(), *of_torchvision(dtype))
    names = [name for name in every if only in (None, name, name.split(" ")[0])]
    return [Sample(name, dtype, number) for name in names for number in range(len(calls(name, dtype)))]


@functools.lru_cache(None)
def operators() -> dict[str, Any]:
    """Every operator that counts by its name, by name and variant."""
    public = (info for info in op_db if _is_public(info.name) and info.name not in RANDOM)
    return {" ".join(filter(None, (info.name, info.variant_test_name))): info for info in public}


def _is_public(name: str) -> bool:
    return not name.startswith(("_", "ops.")) and not name.endswith(
        "_"
    )  # those with _ at the end are in place


@functools.lru_cache(None)
def calls(operator: str, dtype: str) -> list[Call]:
    """The samples of an operator that count, as models."""
    if operator in of_torchvision(dtype):
        return [of_torchvision(dtype)[operator]]
    return list(
        itertools.islice(_distinct(_calls(operators()[operator], getattr(torch, dtype))), PER_OPERATOR)
    )


@functools.lru_cache(None)
def of_torchvision(dtype: str) -> dict[str, Call]:
    """The samples of torchvision's operators, which are functions of floats."""
    if dtype != "float32":
        return {}
    with torch.random.fork_rng(devices=[]):
        found = {
            f"torchvision {name}": Call(function, *tree_flatten((tensors[0], tuple(tensors[1:]), {})))
            for name, function, tensors in torchvision_samples.samples(getattr(torch, dtype))
        }
    return {name: call for name, call in found.items() if _counts(call)}


def _calls(info: Any, dtype: torch.dtype) -> Iterator[Call]:
    if not info.supports_dtype(dtype, "cpu"):
        return
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = info.sample_inputs("cpu", dtype, requires_grad=False)
        for sample in itertools.islice(found, LOOKED_AT):
            call = Call(info.op, *tree_flatten((sample.input, sample.args, sample.kwargs)))
            if not any(sample.kwargs.get(name) not in (None, False) for name in IN_PLACE) and _counts(call):
                yield call


def _counts(call: Call) -> bool:
    try:
        outputs, _ = tree_flatten(run(call))
    except Exception:  # a sample that torch itself does not take, such as of a dtype it lacks here
        return False
    tensors = [*call.tensors, *outputs]
    return bool(call.tensors and outputs) and all(map(_is_plain, tensors))


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.dtype is not torch.bfloat16  # which NumPy lacks
        and not (value.is_complex() or value.is_quantized or value.numel() == 0)
    )


def run(call: Call) -> Any:
    """What torch computes, without changing the sample."""
    with torch.no_grad():
        return call(*(tensor.clone() for tensor in call.tensors))


def _distinct(found: Iterator[Call]) -> Iterator[Call]:
    seen = set()
    for call in found:
        parts = (
            (tuple(part.shape), part.dtype) if isinstance(part, torch.Tensor) else part for part in call.parts
        )
        signature = (repr(list(parts)), repr(call.structure))
        if signature not in seen:
            seen.add(signature)
            yield call
