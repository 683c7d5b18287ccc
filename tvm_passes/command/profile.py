"""`tvm-passes profile`: where the time goes before and after the passes, and the time of another runtime.

"Before" is the graph as this project's frontends import it, compiled for the same target without the passes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from topi_ext.bootstrap import tvm_in_use

import tvm

from .. import runtime
from ..analysis.targets import is_for_cpu
from ..runtime.arrays import type_of
from ..runtime.libraries import signature_of
from ..runtime.profiling import Kernel, call_ms, ms_by_kind, on_device
from .chart import check_is_chart, write_chart
from .errors import CommandError, check_can_write, writing
from .images import ImageInput, read_image
from .peers import peer_of
from .progress import say, step
from .work import Work, check_is_for_here, target_of

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .pipelines import prepare
else:
    from .relax_pipeline import prepare

SLOWEST = 12  # kernels in the tables; --csv and --json have all
SEED = 0
JSON_FORMAT = 1


@dataclass
class Times:
    """Times of one compiled graph: a whole undisturbed call, and each kernel, by TVM's profiler."""

    call: float  # milliseconds, like all times here
    kernels: list[Kernel]

    @property
    def kinds(self) -> dict[str, float]:
        return ms_by_kind(self.kernels)


def run(args: argparse.Namespace) -> None:
    for path in filter(None, (args.csv, args.chart)):
        check_can_write(path)
    if args.chart:
        check_is_chart(args.chart)
    target = target_of(args.target)
    check_is_for_here(target)
    _check_device(args, target)
    image = read_image(args.image) if args.image else None
    work = prepare(args)
    inputs = _inputs(args, work, image)
    peer = peer_of(args.compare, work, inputs) if args.compare else None
    if is_for_cpu(work.target) and not work.target.attrs.get("mcpu"):
        say("This target is for any processor; --target native is for this one.")
    times = {"before": _times(work.mod, work.target, inputs, "Before the passes")}
    with step("Apply the passes"):
        mod = work.passes(work.mod)
    times["after"] = _times(mod, work.target, inputs, "After the passes")
    calls = {name: each.call for name, each in times.items()}
    if peer:
        with step(f"Run {peer.name}"):
            calls[peer.name] = call_ms(peer.call, peer.wait)
    if args.csv:
        _write_csv(args.csv, times)
        say(f"The time of each kernel: {args.csv}")
    if args.chart:
        kinds = {name: each.kinds for name, each in times.items()}
        write_chart(args.chart, f"{work.model.title}, {args.target}", calls, kinds)
        say(f"The times by kind: {args.chart}")
    if args.json:
        print(json.dumps(as_json(work, times, calls), indent=1))
    else:
        Console(emoji=False).print(as_tables(times, calls))


def _check_device(args: argparse.Namespace, target: tvm.target.Target) -> None:
    if not tvm.device("cpu" if is_for_cpu(target) else target.kind.name).exist:
        raise CommandError(f"there is no device for {args.target} here to time it on: give --target llvm")


def _inputs(args: argparse.Namespace, work: Work, image: Image.Image | None) -> list[np.ndarray]:
    """The input arrays: the image if one is given, else the model's example inputs, else noise."""
    types = [(name, *_lengths(args, name, each)) for name, each in signature_of(work.mod).inputs.items()]
    if image is not None:
        only = ImageInput.of(*types[0][1:]) if len(types) == 1 else None
        if only is None:
            raise CommandError(f"{args.model} does not take one image: leave out --image")
        return [only.array(image.resize((only.width, only.height)), args.camera[2] if args.camera else "RGB")]
    examples = getattr(work.model, "inputs", ())
    arrays = [each.numpy() for each in examples if hasattr(each, "numpy")]
    if [(each.shape, str(each.dtype)) for each in arrays] == [type_[1:] for type_ in types]:
        return arrays
    return [_noise(shape, dtype) for _, shape, dtype in types]


def _lengths(args: argparse.Namespace, name: str, given: object) -> tuple[tuple[int, ...], str]:
    """The shape and type of an input."""
    type_ = type_of(given)
    lengths = tuple(length for length in type_.shape if length is not None) if type_ else ()
    if type_ is None or len(lengths) < len(type_.shape):
        raise CommandError(
            f"the input {name} of {args.model} has a dynamic size, and times need a fixed one: "
            "give --size or --input-shape"
        )
    return lengths, type_.dtype


def _noise(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Noise in the range of images: from 0 to 1, or for integers from 0 to 255."""
    random = np.random.default_rng(SEED)
    if np.dtype(dtype).kind == "f":
        return random.random(shape, "float32").astype(dtype)
    return random.integers(0, 256 if dtype == "uint8" else 2, shape).astype(dtype)


def _times(mod: tvm.IRModule, target: tvm.target.Target, inputs: Sequence[np.ndarray], name: str) -> Times:
    with step(f"{name}: compile"):
        model = runtime.compile(mod, target, copy_outputs=False)
    with step(f"{name}: run"):
        arrays = on_device(model, inputs)
        return Times(call_ms(lambda: model(*arrays), model.device.sync), runtime.profile(model, *arrays))


# --- reports


def as_json(work: Work, times: dict[str, Times], calls: dict[str, float]) -> dict[str, Any]:
    """Everything as JSON, with every kernel in the order of the run."""
    return {
        "format": JSON_FORMAT,
        "model": work.model.title,
        "pipeline": work.pipeline,
        "target": str(work.target),
        "tvm": tvm_in_use.version,
        "call_ms": calls,
        "kinds_ms": {name: each.kinds for name, each in times.items()},
        "kernels": {name: [kernel._asdict() for kernel in each.kernels] for name, each in times.items()},
    }


def as_tables(times: dict[str, Times], calls: dict[str, float]) -> Group:
    """Tables of whole calls, of kernels by kind, and of the slowest kernels of each graph."""
    slowest = (_slowest_table(name, each.kernels) for name, each in times.items())
    return Group(_calls_table(calls), _kinds_table(times), *slowest)


def _calls_table(calls: dict[str, float]) -> Table:
    table = _table("a whole call", "ms", "times as fast as before")
    for name, ms in calls.items():
        table.add_row(escape(name), _ms(ms), f"{calls['before'] / ms:.2f}")
    return table


def _kinds_table(times: dict[str, Times]) -> Table:
    table = _table("kernels by kind", *(title for name in times for title in (f"{name}, ms", "kernels")))
    kinds = {kind for each in times.values() for kind in each.kinds}
    for kind in sorted(kinds, key=lambda kind: -max(each.kinds.get(kind, 0) for each in times.values())):
        cells = []
        for each in times.values():
            cells += [_ms(each.kinds.get(kind, 0)), str(sum(kernel.kind == kind for kernel in each.kernels))]
        table.add_row(kind, *cells)
    table.add_section()
    cells = []
    for each in times.values():
        cells += [_ms(sum(kernel.ms for kernel in each.kernels)), str(len(each.kernels))]
    table.add_row("all", *cells)
    return table


def _slowest_table(name: str, kernels: list[Kernel]) -> Table:
    """A table of the slowest kernels; all calls of a kernel share a row."""
    rows: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        rows.setdefault(kernel.name, []).append(kernel)
    total = sum(kernel.ms for kernel in kernels)
    order = sorted(rows, key=lambda each: -sum(kernel.ms for kernel in rows[each]))
    table = _table(f"slowest {name}", "kind", "calls", "ms", "share", texts=2)
    for each in order[:SLOWEST]:
        ms = sum(kernel.ms for kernel in rows[each])
        table.add_row(each, rows[each][0].kind, str(len(rows[each])), _ms(ms), f"{ms / total:.1%}")
    if order[SLOWEST:]:
        rest = [kernel.ms for each in order[SLOWEST:] for kernel in rows[each]]
        table.add_section()
        table.add_row(
            f"{len(order) - SLOWEST} others", "", str(len(rest)), _ms(sum(rest)), f"{sum(rest) / total:.1%}"
        )
    return table


def _table(*titles: str, texts: int = 1) -> Table:
    table = Table()
    for place, title in enumerate(titles):
        table.add_column(title, overflow="fold", justify="left" if place < texts else "right")
    return table


def _ms(value: float) -> str:
    return f"{value:.3f}"


def _write_csv(path: str | Path, times: dict[str, Times]) -> None:
    with writing(path), open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("graph", "place", "kernel", "kind", "ms", "arguments"))
        for name, each in times.items():
            for place, kernel in enumerate(each.kernels):
                writer.writerow((name, place, kernel.name, kernel.kind, f"{kernel.ms:.6f}", kernel.shapes))
