"""`torch.cond`, also in exported programs: a trace has both branches, and an operator that chooses one.

In Relay the branch that is not taken is not computed: it is what an `If` alone needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

CHOOSE = "frontends::choose"  # condition, results of one branch, results of the other
_library = torch.library.Library("frontends", "FRAGMENT")
_library.define("choose(Tensor condition, Tensor[] if_true, Tensor[] if_false) -> Tensor[]")


def _choose(
    condition: torch.Tensor, if_true: list[torch.Tensor], if_false: list[torch.Tensor]
) -> list[torch.Tensor]:
    return [result.clone() for result in (if_true if condition.item() else if_false)]


_library.impl("choose", _choose, "CompositeExplicitAutograd")


@contextlib.contextmanager
def branches_by_functions() -> Iterator[None]:
    """Inside, `torch.cond` traces both of its functions."""
    with contextlib.ExitStack() as stack:
        for place in (torch, torch.ops.higher_order):  # where models call it, and where exported programs do
            if hasattr(place, "cond"):
                stack.enter_context(mock.patch.object(place, "cond", _cond))
        yield


def _cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
) -> Any:
    if not isinstance(pred, torch.Tensor):  # of sizes, which are the example's
        return (true_fn if pred else false_fn)(*operands)
    (if_true, structure), (if_false, _) = (tree_flatten(f(*operands)) for f in (true_fn, false_fn))
    return tree_unflatten(torch.ops.frontends.choose(pred, if_true, if_false), structure)
