"""What can be said of the MODEL of a command line before TVM and torch are imported, which takes seconds."""

from __future__ import annotations

from pathlib import Path

PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
KINDS = "an ONNX file, torchvision:NAME, or module:function"


def why_it_is_no_model(text: str) -> str | None:
    """Why it names no model, and what to give; None where it may name one."""
    path = Path(text)
    if text.startswith("torchvision:"):
        return None
    if path.suffix.lower() in PICKLED:
        return (
            f"{text} is not read, since unpickling a file may run code in it: give its model as "
            "module:function, or export it to ONNX"
        )
    if path.is_dir():
        return f"{text} is a folder: give {KINDS}"
    if path.is_file() or ":" in text:
        return None
    return f"there is no file {text}: give {KINDS}"
