"""The arguments of an operator: which of them its converter reads, and how messages show them.

A converter that does not read an argument computes as if it were not there. So the arguments come in a list
that records what is read; one that is not read must be at its default, or be known not to change results.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

import torch

from tvm import relay

# Arguments of any operator about memory, gradients or the choice of a kernel, which do not change results.
# The dtype shows in the type of the result, which is checked separately.
NEUTRAL = {
    "allow_tf32", "benchmark", "copy", "cudnn_enable", "cudnn_enabled", "deterministic", "device", "dtype",
    "generator", "implicit", "layout", "memory_format", "non_blocking", "pin_memory", "requires_grad",
}  # fmt: skip
NEUTRAL_OF = {  # of one operator
    "aten::alpha_dropout": {"p"},
    "aten::batch_norm": {"momentum"},
    "aten::dropout": {"p"},
    "aten::embedding": {"padding_idx", "scale_grad_by_freq", "sparse"},
    "aten::feature_alpha_dropout": {"p"},
    "aten::feature_dropout": {"p"},
    "aten::gather": {"sparse_grad"},
    "aten::index_select": {"sparse_grad"},
    "aten::instance_norm": {"momentum"},
    "aten::native_batch_norm": {"momentum"},
    "aten::new_empty": {"self"},  # of which only the type matters
    "aten::new_full": {"self"},
    "aten::new_ones": {"self"},
    "aten::new_zeros": {"self"},
    "aten::topk": {"sorted"},  # sorted is one of the orders that torch may give
    "aten::type_as": {"other"},
    "aten::unflatten": {"names"},  # of its axes
    "aten::unique": {"sorted"},
}
# Of any operator: an argument without a default need not be read if it has this value.
OFF = {"indexing": "ij", "output_padding": 0, "train": False, "training": False}
MAX_CHARACTERS = 60  # characters of a value in a message


class Arguments(list):
    """A converter's inputs; `unread` are the places of those that have not been read yet.

    A slice reads nothing by itself: it reports what is read of it to the list that it comes from.
    """

    def __init__(
        self, values: Iterable[Any], places: Iterable[int] | None = None, unread: set[int] | None = None
    ) -> None:
        super().__init__(values)
        self.places = list(range(len(self)) if places is None else places)
        self.unread = set(self.places) if unread is None else unread

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return Arguments(super().__getitem__(key), self.places[key], self.unread)
        self.unread.difference_update(self.places[key : key + 1 or None])
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __add__(self, other: list[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def pop(self, index: SupportsIndex = -1) -> Any:
        value = self[int(index)]
        del self.places[index]
        super().pop(index)
        return value


def ignored(node: torch.Node, arguments: Arguments, values: list[Any]) -> list[tuple[str, Any]]:
    """The arguments, by name, that the converter has not read though they may change the results."""
    if node.kind().startswith("prim::"):
        return []
    kind = node.kind()[:-1] if node.kind().endswith("_") else node.kind()
    neutral = NEUTRAL | NEUTRAL_OF.get(kind, set())
    return [
        (parameter.name, value)
        for place, (parameter, value) in enumerate(zip(arguments_of(node), values))
        if place in arguments.unread and parameter.name not in neutral and not is_default(parameter, value)
    ]


def arguments_of(node: torch.Node) -> list[Any]:
    """The operator's parameters, as torch declares them; none if the node is not an operator."""
    return _arguments(node.schema())


@functools.lru_cache(None)
def _arguments(schema: str) -> list[Any]:
    return [] if schema == "(no schema)" else list(torch._C.parse_schema(schema).arguments)


def is_random(node: torch.Node) -> bool:
    """Whether an operator draws random numbers, which dropout does not in evaluation."""
    values = {parameter.name: value.toIValue() for parameter, value in zip(arguments_of(node), node.inputs())}
    draws = node.isNondeterministic() or "dropout" in node.kind()
    return draws and values.get("train", values.get("training")) is not False and values.get("dropout_p") != 0


def is_default(parameter: Any, value: Any) -> bool:
    if isinstance(value, relay.Expr) or (isinstance(value, list) and _has_tensors(value)):
        return False
    if not parameter.has_default_value():
        values = value if isinstance(value, list) else [value]
        return parameter.name in OFF and all(item == OFF[parameter.name] for item in values)
    default = parameter.default_value
    return bool(value == default) or (isinstance(default, list) and value in ([], default[:1]))


def call_text(converter: Any, node: torch.Node, values: list[Any]) -> str:
    """The arguments that are not at their defaults, for a message: `self=float32[2, 3], dim=None`."""
    schema = arguments_of(node)
    if len(schema) != len(values):
        return ", ".join(value_text(converter, value) for value in values)
    return ", ".join(
        f"{parameter.name}={value_text(converter, value)}"
        for parameter, value in zip(schema, values)
        if parameter.name not in NEUTRAL - {"dtype"} and not is_default(parameter, value)
    )


def value_text(converter: Any, value: Any) -> str:
    """A tensor by its type, anything else by its repr."""
    if isinstance(value, relay.Expr):
        return _type_text(converter, value)
    if isinstance(value, list) and _has_tensors(value):
        return f"[{', '.join(value_text(converter, item) for item in value)}]"
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def type_text(shape: Iterable[Any], dtype: str) -> str:
    return f"{dtype}[{', '.join(str(size) for size in shape)}]"


def _type_text(converter: Any, value: relay.Expr) -> str:
    try:
        found = converter.infer_type_with_prelude(value)
        return type_text(found.shape, found.dtype)
    except Exception:  # the type is not always known if something could not be converted
        return "a tensor"


def _has_tensors(values: list[Any]) -> bool:
    return any(isinstance(value, (relay.Expr, list)) for value in values)
