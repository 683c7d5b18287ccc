"""Networks of the idioms that the passes look for, with their near misses, drawn by hypothesis.

A network is described by plain Python, which hypothesis draws and shrinks and a file keeps; `build` makes a
module of it that PyTorch runs and `from_pytorch` imports.
"""

from __future__ import annotations

import ast
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import frontends

from tvm import relay

from ..check import Case, Result, check, gist
from ..oracles import torch_oracle
from . import functions, images, suppression

if TYPE_CHECKING:
    from ..campaign import Job

BATCH = 8  # hypothesis draws better by several
SECONDS_TO_SHRINK = 240
FAMILIES = {"images": images, "suppression": suppression, "functions": functions}
Description = tuple[str, Any]

descriptions: st.SearchStrategy[Description] = st.one_of(
    *(st.tuples(st.just(name), family.descriptions()) for name, family in FAMILIES.items())
)


def build(description: Description) -> tuple[torch.nn.Module, list[np.ndarray]]:
    name, parts = description
    torch.manual_seed(0)
    return FAMILIES[name].build(parts)


def case(description: Description) -> Case:
    module, inputs = build(description)
    module.eval().requires_grad_(False)
    tensors = tuple(map(torch.from_numpy, inputs))

    def stock() -> Any:
        traced = torch.jit.trace(module, tensors)
        shapes = [(f"input{place}", (array.shape, str(array.dtype))) for place, array in enumerate(inputs)]
        return relay.frontend.from_pytorch(traced, shapes)

    return Case(
        lambda: frontends.from_pytorch(module, tensors),
        inputs,
        [torch_oracle(module, inputs)],
        stock,
        of_our_own=True,
    )


def checked(description: Description, target: str = "llvm", with_stock: bool = False) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = case(description)
        except Exception as error:
            return Result("not made", gist(error))
        return check(made, target, with_stock)


def _run(seed: int, function: Callable[[Description], None], *phases: Phase) -> None:
    @given(descriptions)
    def test(description: Description) -> None:
        function(description)

    drawn = settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )(test)
    hypothesis.seed(seed)(drawn)()


@lru_cache(maxsize=2)
def _batch(seed: int) -> list[Description]:
    drawn: list[Description] = []
    _run(seed, drawn.append, Phase.generate)
    return drawn


def describe(seed: int) -> Description:
    drawn = _batch(seed // BATCH)
    return drawn[seed % BATCH % len(drawn)]


class OwnSource:
    """Networks of our own for a campaign."""

    def __init__(self, found: Path, target: str) -> None:
        self._found, self._target = found, target

    def check(self, job: Job) -> Result:
        return checked(describe(job.seed), self._target, job.with_stock)

    def shrink(self, job: Job) -> str:
        until = time.monotonic() + SECONDS_TO_SHRINK
        smallest = describe(job.seed)
        bad = checked(smallest, self._target)

        def fail_likewise(description: Description) -> None:
            nonlocal smallest
            if time.monotonic() > until:
                return
            result = checked(description, self._target)
            if result.kind == bad.kind and (bad.kind != "error" or result.reason == bad.reason):
                smallest = description
                raise AssertionError

        try:
            _run(job.seed // BATCH, fail_likewise, Phase.generate, Phase.shrink)
        except BaseException as error:  # hypothesis says in its own way that it found what it was to find
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
        return self._keep(smallest, f"{bad.kind}_{job.seed}")

    def keep(self, job: Job, kind: str) -> str:
        return self._keep(describe(job.seed), f"{kind}_{job.seed}")

    def _keep(self, description: Description, name: str) -> str:
        self._found.mkdir(parents=True, exist_ok=True)
        path = self._found / f"{name}.txt"
        path.write_text(as_text(description))
        return f"{path}: {description!r}"


def as_text(description: Description) -> str:
    """A line that `ast.literal_eval` reads, which has no word for infinity."""
    return f"{description!r}\n".replace(": inf", ": 1e999")


def load(path: Path) -> Case:
    """A network that was kept."""
    return case(ast.literal_eval(path.read_text()))
