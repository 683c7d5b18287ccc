"""The table of the zoo, for the terminal and for `docs/models.md`."""

import re

from tests.zoo.models import MODELS

IN_A_PACKAGE = re.compile(r"[^\s\"']*/site-packages/")  # where this machine keeps packages
COLUMNS = ("package", "model", "family", "imported", "NMS restored", "static", "equal", "seconds", "CUDA")
HEAD = """\
# Detectors of other packages

What becomes of them, by `python -m tests.zoo --run --arch sm_90 --page docs/models.md`, after
`pip install -e ".[test,zoo]"`; Ultralytics, whose licence is AGPL, and python-doctr, facexlib and rfdetr,
whose requirements disagree with those of the others, only where you have installed them. No pass and no
importer knows any of their names. Weights are random, so that nothing is downloaded.

- NMS restored: after `tvm_passes.default_pipeline()`, each NMS compares class ids, or has one class as in the
  model.
- static: after `MakeDetectionStatic("padded")`, no shape is dynamic.
- equal: at least 99% of what torch or ONNX Runtime finds on an image, and of how many, is found, on a CPU.
  Weights that are random give scores that nearly tie, of which a top-k may take others.
- seconds: for the import and all passes, on two cores.
- CUDA: seconds for the passes and TVM to compile it for float16 and tensor cores (sm_90), where it is static.
"""


def cells(outcome):
    """A row: texts, empty where something was not tried."""
    known = MODELS[outcome["name"]]
    equal = outcome.get("equal", "")
    detections = f" ({outcome['detections']})" if equal == "yes" else ""
    return (
        known.package,
        known.name,
        known.family,
        *(IN_A_PACKAGE.sub("", outcome.get(key, "")) for key in ("imported", "restored", "static")),
        f"{equal}{detections}",
        f"{outcome['seconds']:g}" if outcome.get("seconds") else "",
        outcome.get("compiled", ""),
    )


def page(outcomes):
    """The table as Markdown; those that are not installed are left out."""
    tried = [each for each in outcomes if not each["imported"].startswith("not installed")]
    rows = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells(each)) for each in tried]
    counts = (
        f"{len(tried)} models of {len({MODELS[each['name']].package for each in tried})} packages: "
        f"{sum(each['imported'] == 'yes' for each in tried)} imported, "
        f"{sum(each.get('static') == 'yes' for each in tried)} static, "
        f"{sum(each.get('equal') == 'yes' for each in tried)} equal."
    )
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    return "\n".join([HEAD, counts, "", head, *(f"| {row} |" for row in rows), ""])
