"""The warnings of torch's tracer, as one line per model instead of a paragraph per line of its code."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from torch.jit import TracerWarning

from topi_ext.quiet import is_verbose, without_warnings_of

from .messages import frame_of

# True of every import: the sizes of inputs are those of the examples, and a value that reaches a constructor
# through Python has been warned about where it left the graph.
HARMLESS = (
    "Using len to get tensor shape",
    "Iterating over a tensor",
    " results are registered as constants",
)
PLACES_SHOWN = 3
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_")


@contextlib.contextmanager
def tracer_warnings_into(kept: list[str]) -> Iterator[None]:
    """Append to a list what the trace fixes to the examples' values, and where; show the user's warnings."""
    if is_verbose():
        yield
        return
    # `frontends` counts as torchvision, parts of whose models it replaces.
    with without_warnings_of("torch", "torchvision", "frontends"):
        recorded: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as recorded:
                warnings.filterwarnings("always", category=TracerWarning)
                warnings.filterwarnings(
                    "ignore", category=TracerWarning, module=r"(torch|torchvision|frontends)(\.|$)"
                )
                yield
        finally:
            for each in recorded:
                if issubclass(each.category, TracerWarning):
                    _keep(each, kept)
                else:
                    warnings.showwarning(each.message, each.category, each.filename, each.lineno)


def _keep(warning: warnings.WarningMessage, kept: list[str]) -> None:
    text = str(warning.message)
    what = text.partition(" might cause")[0].partition(" (")[0]
    place = f"{what} at {warning.filename}:{warning.lineno}"
    if place not in kept and not any(part in text for part in HARMLESS):
        kept.append(place)


def keep_masks_without_axes(graph: Any, kept: list[str]) -> None:
    """Append the `x[mask]` whose 0-d mask torch reads without a warning: it indexes by 0, or by nothing."""
    for node in (each for kind in INDEXING for each in graph.findAllNodes(kind)):
        indices = [index.node() for index in node.inputsAt(1).node().inputs()]
        made = [each.inputsAt(0).node() if each.kind() == "aten::fill_" else each for each in indices]
        text = f"Using a 0-d mask as an index at {frame_of(node)}"
        if any(each.kind() == "aten::empty" for each in made) and text not in kept:
            kept.append(text)


def warning_of(title: str, kept: list[str]) -> str:
    """One line for the user of the model."""
    more = f", and {len(kept) - PLACES_SHOWN} more" if len(kept) > PLACES_SHOWN else ""
    return (
        f"from_pytorch: what Python computes in {title} is fixed to its value for the example inputs: "
        f"{'; '.join(kept[:PLACES_SHOWN])}{more}; compute it with tensors, or script it (torch.jit.script), "
        "if it depends on other values"
    )
