"""Places between pixels, values there, and what a network takes for them, emitted alike for every target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._floats import Locals
from .._kernel import clamp
from .._tvm import te, tir
from .._types import IntExpr
from .problem import Problem


@dataclass(frozen=True)
class Place:
    """Between pixel `low` and the next; or on `low`, where there is no `fraction`."""

    low: tir.PrimExpr
    fraction: tir.PrimExpr | None = None


def place(local: Locals, at: tir.PrimExpr, given: int, size: int) -> Place:
    """Where pixel `at` of `size` lies along an axis of `given` pixels; on the last one, if beyond all.

    What is on the last pixel is told by its distance to the one before: the next pixel is always there.
    """
    if given == size or given == 1:
        return Place(local("low", clamp(at, 0, given - 1)))
    # (at + 0.5) * given / size - 0.5, in parts of which 2 * size make a pixel
    parts = 2 * size
    source = local("source", clamp((2 * at + 1) * given - size, 0, (given - 1) * parts))
    low = local("low", tir.min(tir.truncdiv(source, parts), given - 2))
    fraction = (source - low * parts).astype("float32") * local.exact(1 / parts)
    return Place(low, local("fraction", fraction))


def between(low: tir.PrimExpr, high: tir.PrimExpr, fraction: tir.PrimExpr) -> tir.PrimExpr:
    """The value at this fraction of the way from one value to another."""
    return low + (high - low) * fraction


def normalisation(local: Locals, problem: Problem, channel: IntExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
    """The factor and the summand that make of a pixel `(pixel - mean) / std`.

    The channel may be known only at run time.
    """
    factors = [1 / std for std in problem.std]
    summands = [-mean / std for mean, std in zip(problem.mean, problem.std)]
    return tuple(_of_channel(local, numbers, channel) for numbers in (factors, summands))


def _of_channel(local: Locals, numbers: Sequence[float], channel: IntExpr) -> tir.PrimExpr:
    if isinstance(channel, int):
        return local.exact(numbers[channel])
    value = local.exact(numbers[-1])
    for other, number in enumerate(numbers[:-1]):
        value = tir.Select(channel == other, local.exact(number), value)
    return local("of_channel", value)


def all_of(images: Sequence[te.Tensor]) -> IntExpr:
    """The number of the images of all tensors."""
    first, *others = (each.shape[0] for each in images)
    return sum(others, first)


def beginnings(images: Sequence[te.Tensor]) -> list[IntExpr]:
    """For each tensor, the number of its first image among those of all."""
    return [0, *(all_of(images[:number]) for number in range(1, len(images)))]


def lined_up(start: IntExpr, lanes: int) -> IntExpr:
    """The index of so many elements from `start` on."""
    return tir.Ramp(start, 1, lanes) if lanes > 1 else start
