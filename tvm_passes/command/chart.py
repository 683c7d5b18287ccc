"""Draw the times of `profile` as a bar chart."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from .errors import CommandError

__all__ = ["check_is_chart", "write_chart"]

COLOURS = {"before": "#98a2b3", "after": "#1f8f4a"}
PEER_COLOUR = "#5b76c9"
BAR = 0.8  # thickness, in distances between rows


def check_is_chart(path: str | Path) -> None:
    """Check this before anything that takes time: a name says the format."""
    known = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in known:
        raise CommandError(f"cannot write {path}, which names no format of charts: give such as out.png")


def write_chart(
    path: str | Path, title: str, calls: dict[str, float], kinds: dict[str, dict[str, float]]
) -> None:
    """Draw whole calls, {name: milliseconds}, above kernels by kind, {name: {kind: milliseconds}}."""
    order = sorted(
        {kind for each in kinds.values() for kind in each},
        key=lambda kind: max(each.get(kind, 0) for each in kinds.values()),
    )
    heights = len(calls), len(order) * len(kinds) * 0.75
    figure = Figure(figsize=(9, 0.36 * sum(heights) + 1.9), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    figure.suptitle(title, fontsize="medium", wrap=True)
    names = list(calls)[::-1]
    bars = above.barh(names, [calls[name] for name in names], BAR, color=[_colour(name) for name in names])
    above.bar_label(bars, [_number(calls[name]) for name in names], padding=3)
    above.set_title("a whole call, ms", loc="left", fontsize="medium")
    thickness = BAR / len(kinds)
    for place, (name, times) in enumerate(kinds.items()):
        values = [times.get(kind, 0) for kind in order]
        rows = [row + ((len(kinds) - 1) / 2 - place) * thickness for row in range(len(order))]
        bars = below.barh(rows, values, thickness, color=_colour(name), label=name)
        below.bar_label(bars, map(_number, values), padding=3, fontsize="small")
    below.set_yticks(range(len(order)), order)
    below.set_title("kernels by kind, ms", loc="left", fontsize="medium")
    below.legend(loc="lower right", frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12)
    try:
        figure.savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise CommandError(f"cannot write {path} ({error}): give a name such as out.png") from error


def _colour(name: str) -> str:
    return COLOURS.get(name, PEER_COLOUR)


def _number(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"
