"""Where in the user's program an operator or an error comes from, and what an error says, in one line."""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path
from types import TracebackType

import torch
import torchvision

import topi_ext

from tvm.relay.frontend import pytorch as stock

FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
OWN = (str(Path(__file__).parent), *topi_ext.__path__)
LIBRARIES = (*torch.__path__, *torchvision.__path__, OWN[0])
MAX_CHARACTERS = 400  # characters


def place(node: torch.Node) -> str:
    """An operator and the line of the user's program that it comes from."""
    return f"{node.kind()} ({frame_of(node)})"


def frame_of(node: torch.Node) -> str:
    """The line of the user's program that an operator comes from, skipping torch's own lines."""
    lines = [line.strip() for line in str(node.sourceRange()).splitlines() if line.strip()]
    frames = [line for line in lines if FRAME.match(line)]
    own = [line for line in frames if not line.startswith(LIBRARIES)]
    return (own or frames or lines or ["place unknown"])[0]


def line_of(error: BaseException) -> str:
    """What an error says, in one line; if it reports several errors, the last."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    if any("Traceback" in line for line in lines):
        lines = lines[-1:]
    text = " ".join(lines)
    text = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
    kind = type(error).__name__
    return text if isinstance(error, RuntimeError) and text else f"{kind}: {text}" if text else kind


def own_frame(error: BaseException) -> str | None:
    """The line of the user's program in which an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*LIBRARIES, "<"))]
    return f"{own[-1].filename}({own[-1].lineno}): {own[-1].name}" if own else None


def stated_reason(error: Exception) -> str | None:
    """What an error says if that was written for the user, not by Python itself or by TVM's C++."""
    text = " ".join(str(error).split())
    if not text or "Traceback" in text or "Check failed" in text:
        return None
    frame = _last(error.__traceback__)
    if frame is None:
        return None
    code = frame.tb_frame.f_code
    source = linecache.getline(code.co_filename, frame.tb_lineno).strip()
    is_converter = code.co_filename.startswith((*OWN, stock.__file__))
    is_stated = is_converter and source.startswith(("raise ", "assert "))
    return text if is_stated else None


def _last(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return frames
