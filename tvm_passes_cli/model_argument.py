"""What can be said of the model of a command line before TVM and torch are imported, which takes seconds."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import OF_FOLDERS, OF_MODELS

PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
KINDS = "an ONNX file, torchvision:NAME, or module:function"
COMPILED = "give a folder that tvm-passes compile wrote"


def why_there_is_no_model(args: argparse.Namespace) -> str | None:
    """Why a command line names no model, and what to give; None where it may name one."""
    try:
        return _why_there_is_none(args)
    except OSError as error:  # no permission to look into a folder, or a name that is too long
        return f"{error.filename} cannot be read: {error.strerror}"


def _why_there_is_none(args: argparse.Namespace) -> str | None:
    if args.command in OF_MODELS:
        return _why_it_is_no_model(args.model)
    if args.command in OF_FOLDERS:
        return _why_it_is_not_compiled(args.model if args.command == "detect" else args.folder)
    return None


def _why_it_is_no_model(text: str) -> str | None:
    path = Path(text)
    if text.startswith("torchvision:"):
        return None
    if path.suffix.lower() in PICKLED:
        return (
            f"{text} is not read, since unpickling a file may run code in it: give its model as "
            "module:function, or export it to ONNX"
        )
    if not text:
        return f"the name of the model is empty: give {KINDS}"
    if path.is_dir():
        return f"{text} is a folder: give {KINDS}"
    program, _, function = text.partition(":")
    if function and program.endswith(".py"):
        return f"{program} is a program: give its name as a module, as {Path(program).stem}:{function}"
    if path.suffix == ".py" and path.is_file():
        return f"{text} is a program: give the function in it that returns the model, as {path.stem}:function"
    if path.is_file() or ":" in text:
        return None
    return f"there is no file {text}: give {KINDS}"


def _why_it_is_not_compiled(text: str) -> str | None:
    if not text:  # as of a variable that is not set: it is not the folder here
        return f"the name of the folder is empty: {COMPILED}"
    path = Path(text)
    if (path / "manifest.json").is_file():
        return None
    if path.is_dir():
        return f"{text} has no manifest.json: {COMPILED}"
    return f"{text} is a file: {COMPILED}" if path.exists() else f"there is no folder {text}: {COMPILED}"
