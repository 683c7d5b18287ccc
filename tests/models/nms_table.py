"""What becomes of the NMS of each detection model, as a table for the documentation.

    python -m tests.models.nms_table

writes `docs/restored_nms.md`; the tests compare it with what they find.
"""

from pathlib import Path

from rich.progress import track

import tvm_passes
from tests.models.detectors import FRONTENDS, small_detector
from tests.models.zoo import DETECTION_MODELS
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

PAGE = Path(__file__).parents[2] / "docs" / "restored_nms.md"
IMPORTED_NMS = ("topi_ext.batched_nms", "vision.all_class_non_max_suppression")
PASSES = ("RestoreBatchedNMS", "FoldPostNMSTopK")
HEAD = """\
# The NMS of torchvision's detection models

What `tvm_passes.detection_pipeline()` makes of it, by `python -m tests.models.nms_table`. An NMS is restored
when it compares the class ids themselves and nothing of the offsets between classes is left; its top-k is
folded when the NMS stops at the number of boxes that are wanted.

| model | imported from | NMS | restored | top-k folded | refused, and why |
|---|---|---|---|---|---|
"""


def row(model, frontend, mod):
    """One line of the table; `mod` as it was imported."""
    found = sum(op_name(node) in IMPORTED_NMS for node in Graph(mod["main"]).nodes)
    report = tvm_passes.explain(mod, tvm_passes.detection_pipeline())
    outcomes = [outcome for part in report.passes if part.name in PASSES for outcome in part.matches]
    refused = {outcome.reason for outcome in outcomes if outcome.reason}
    cells = (
        model,
        frontend,
        found,
        _rewrites(outcomes, "OffsetByClass"),
        _rewrites(outcomes, "FirstOfSelection"),
        "; ".join(sorted(refused)) or "none",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _rewrites(outcomes, rule):
    return sum(outcome.rule == rule and not outcome.reason for outcome in outcomes)


def main():
    rows = []
    for name in track(DETECTION_MODELS):
        model = small_detector(name)
        rows += [row(name, frontend, load(model)) for frontend, load in FRONTENDS.items()]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
