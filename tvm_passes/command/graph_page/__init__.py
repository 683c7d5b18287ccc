"""A graph before and after passes as one page, which needs no network: `inspect --graph`.

`page.html` is the frame; it includes `page.css` and the scripts, in this order. They share one scope, and a
function may call those of a later script, as nothing is drawn or clicked before all are loaded:

- `layout.js` folds nodes and places them in layers, and knows nothing of the page.
- `shared.js` has what the others share: the data, the colours, and helpers for elements of the page.
- `drawing.js` draws a pane on its canvases.
- `pane.js` is one of the two graphs: what part of it is seen, and what the pointer and the keys do there.
- `selection.js` selects a node on both sides.
- `details.js` says what is known of the selected node.
- `search.js` finds and marks nodes.
- `passes.js` lists what each pass did, and leads to the nodes.
- `page.js` is the rest of the page, the address included, and starts it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..history import History, Step

HERE = Path(__file__).parent
SCRIPTS = (
    "layout.js",
    "shared.js",
    "drawing.js",
    "pane.js",
    "selection.js",
    "details.js",
    "search.js",
    "passes.js",
    "page.js",
)


def write_graph_page(path: str | Path, history: History, title: str, about: dict[str, str]) -> None:
    """Write what `history.apply_and_track` found; `about` is shown beside the title."""
    Path(path).write_text(graph_page(history, title, about), encoding="utf-8")


def graph_page(history: History, title: str, about: dict[str, str]) -> str:
    data = {
        "title": title,
        "about": about,
        "before": [asdict(node) for node in history.before],
        "after": [asdict(node) for node in history.after],
        "steps": [_step(step) for step in history.steps],
    }
    page = (HERE / "page.html").read_text(encoding="utf-8")
    for name in ("page.css", *SCRIPTS):
        page = page.replace(f"{{{{{name}}}}}", (HERE / name).read_text(encoding="utf-8"))
    # In a script element only "<" could begin anything but the script's own text.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return page.replace("{{data}}", text)


def _step(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "seconds": round(step.seconds, 3),
        "counts": step.counts,
        "rewrites": [asdict(outcome) for outcome in step.rewrites],
        "refusals": [asdict(outcome) for outcome in step.refusals],
    }
