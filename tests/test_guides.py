"""The README and the guides: their Python runs, and their commands name modules and options that exist.

Python blocks run page by page, in order, each page in a folder of its own. Networks and images are made
smaller, trained weights are not downloaded, and what a page compiles for CUDA is compiled for LLVM after the
passes for CUDA: no GPU is needed.
"""

import argparse
import importlib.util
import pathlib
import re
import runpy
import shlex
import sys

import numpy as np
import onnx
import pytest
import torch
import torchvision
from torch import nn

import tvm_passes
from docs import generate
from tests.batch.networks import painted, painted_detector, save
from tests.frontends.traffic import town, traffic
from tests.helpers import quick
from tests.models.zoo import tiny_detector, tiny_mask_rcnn
from tests.quantize.networks import write_quantized_network
from tvm_passes_cli.main import main as tvm_passes_main
from tvm_passes_cli.options import parser

import tvm

ROOT = generate.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
SIZE = 96, 128
SMALLER = {  # what stands in the pages, and what is run in its place
    "(3, 800, 1333)": f"(3, {SIZE[0]}, {SIZE[1]})",
    "(3, 480, 640)": f"(3, {SIZE[0]}, {SIZE[1]})",
    "1, 3, 540, 960": "1, 3, 27, 48",
    "(64, 3, 512, 512)": "(2, 3, 32, 32)",
    "(64, 512, 512)": "(2, 32, 32)",
    "300.0, 400.0]])] * 64": "30.0, 30.0]])] * 2",
}
IN_THE_SHELL = {"python3 -m venv .venv", "source .venv/bin/activate"}  # which nothing here stands for
QUICK = ("doctor", "inspect tests.command")  # subcommands of tvm-passes that are run, by how they begin


def blocks(page):
    """[(language, code)] of a page's fenced blocks."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands():
    """[(page, command)] of all blocks for the shell, and of code in the text that is a command."""
    found = []
    for page in PAGES:
        lines = [line for language, code in blocks(page) if language == "sh" for line in code.splitlines()]
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        lines += [
            " ".join(code.split())
            for code in re.findall(r"`([^`]+)`", prose)
            if re.match(r"(tvm-passes|python3?|pip) ", code)
        ]
        found += [(page.name, part) for line in lines for part in line.split(" && ")]
    return {command: page for page, command in reversed(found)}.items()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_python_or_for_the_shell(page):
    assert {language for language, _ in blocks(page)} <= {"python", "sh"}


def test_options_of_the_command_line():
    """Those that the page names by themselves are options of a subcommand."""
    text = (ROOT / "docs/guides/command-line.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[\w-]+)", text))
    (subcommands,) = (action for action in parser()._actions if isinstance(action.choices, dict))
    known = {option for each in subcommands.choices.values() for option in each._option_string_actions}
    assert named and named <= known


def runnable():
    """The pages that have Python; those with a Mask R-CNN take longer than ten seconds."""
    pages = [page for page in PAGES if "python" in dict(blocks(page))]
    slow = {page for page in pages if "maskrcnn_resnet50_fpn(" in page.read_text(encoding="utf-8")}
    return [pytest.param(page, marks=[pytest.mark.slow] * (page in slow), id=page.name) for page in pages]


@pytest.mark.parametrize("page", runnable())
def test_python_runs(page, tmp_path, monkeypatch, on_llvm):
    monkeypatch.chdir(tmp_path)
    names = SETUP.get(page.stem, dict)()
    for number, code in enumerate(code for language, code in blocks(page) if language == "python"):
        for written, smaller in SMALLER.items():
            code = code.replace(written, smaller)
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)
    CHECKS.get(page.stem, lambda _: None)(names)


@pytest.mark.parametrize("command, page", commands(), ids=lambda text: text)
def test_commands(command, page, capfd):
    program, *arguments = words = shlex.split(command)
    if command in IN_THE_SHELL:
        return
    if program == "tvm-passes" or words[:3] == ["python", "-m", "tvm_passes"]:
        arguments = arguments if program == "tvm-passes" else words[3:]
        if not arguments:  # `python -m tvm_passes` and `tvm-passes` are named without a subcommand
            return
        assert parser().parse_args(arguments).command == arguments[0], page
        if " ".join(arguments).startswith(QUICK):
            assert tvm_passes_main(arguments) == 0
            assert capfd.readouterr().out
    elif program == "pip":
        assert words[:3] == ["pip", "install", "-e"]
        (extra,) = re.fullmatch(r"\.\[(\w+)\]", words[3]).groups()
        assert extra in extras()
    else:
        assert words[:2] == ["python", "-m"], command
        assert importlib.util.find_spec(words[2])
        if words[3:]:
            parse(words[2], words[3:])


def extras():
    """The optional dependencies that pyproject.toml has, as they are installed or written."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    return re.findall(r"^(\w+) = \[", section, flags=re.MULTILINE)


def parse(module, arguments):
    """Run a module until it has parsed its arguments."""

    class Parsed(Exception):
        pass

    def parse_only(self, given=None, namespace=None):
        real(self, given, namespace)
        raise Parsed

    real = argparse.ArgumentParser.parse_args
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        patch.setattr(sys, "argv", [module, *arguments])
        with pytest.raises(Parsed):
            runpy.run_module(module, run_name="__main__")


@pytest.fixture(scope="module")
def compiled():
    return {}


@pytest.fixture
def on_llvm(monkeypatch, compiled):
    """Detectors without a download, and for CUDA the passes alone: the result is compiled for LLVM."""
    options = {"min_size": SIZE[0], "max_size": SIZE[1]}
    builders = torchvision.models.detection
    monkeypatch.setattr(builders, "maskrcnn_resnet50_fpn", lambda weights: tiny_mask_rcnn(**options))
    monkeypatch.setattr(
        builders, "fasterrcnn_mobilenet_v3_large_320_fpn", lambda weights: tiny_detector(**options)
    )
    real = tvm_passes.runtime.compile

    def compile_for_llvm(mod, target, *rest, **options):
        target = quick() if tvm.target.Target(target).kind.name == "cuda" else target
        # The README and the guide to detection compile the same network, of the same weights.
        key = tvm.ir.structural_hash(mod), str(target), str(options)
        if key not in compiled:
            compiled[key] = real(mod, target, *rest, **options)
        return compiled[key]

    monkeypatch.setattr(tvm_passes.runtime, "compile", compile_for_llvm)


# --- what a page takes for granted, and what is to come out of it


def exported_network():
    """network.onnx, as MMDetection would write one: it begins with a convolution."""
    torch.onnx.export(
        nn.Conv2d(3, 1, 3, stride=8), torch.zeros(1, 3, 768, 1344), "network.onnx", input_names=["image"]
    )
    assert onnx.load("network.onnx").graph.input[0].name == "image"
    return {}


def quantized_network():
    """quantized.onnx, as ONNX Runtime would write it."""
    write_quantized_network("quantized.onnx", "int8")
    return {}


def scene():
    made = town(blocks=2)
    history_frames, history_agents, history_tl_faces, agents = traffic(made, 2, 11, agents=5, seed=0)
    return {
        "lanes": made.lanes,
        "crosswalks": made.crosswalks,
        "history_frames": history_frames,
        "history_agents": history_agents,
        "history_tl_faces": history_tl_faces,
        "agents": agents,
    }


def photos_and_a_detector():
    for name in ("first.jpg", "second.png"):
        save(pathlib.Path("photos", name), painted(60, 80, (10, 10, 50, 50)))
    mods = {size: painted_detector(size) for size in (1, 2)}
    networks = {size: (tvm_passes.runtime.build_library(mod, "llvm"), mod) for size, mod in mods.items()}
    tvm_passes.runtime.save("detector", *networks[1], "llvm")
    tvm_passes.runtime.save_sizes("sizes", networks, "llvm")
    return {}


SETUP = {
    "batch": photos_and_a_detector,
    "camera": exported_network,
    "int8": quantized_network,
    "scenes": scene,
}


def detections_agree(names):
    """PyTorch's, of the one image that the page has; the last model is in float16, on static shapes."""
    with torch.no_grad():
        (expected,) = names["model"]([names["image"]])
    found = names["detections"]
    assert set(found) == set(expected)
    few = 0.9 * len(expected["boxes"])
    assert 0 < few <= len(found["boxes"]) <= len(expected["boxes"]) / 0.9
    assert len(found["masks"]) == len(found["boxes"])
    convolutions = next(each for each in names["report"].passes if each.name == "FuseConv2dNHWC")
    assert convolutions.rewrites and not convolutions.refusals  # so that oneDNN computes them


def refused_with_its_place(names):
    assert "aten::linalg_svdvals" in names["reason"] and "\n" not in names["reason"]


def upscaled(names):
    with torch.no_grad():
        torch.testing.assert_close(names["larger"], names["model"](names["image"]), rtol=1e-4, atol=1e-4)


def boxes_of_the_camera(names):
    assert list(names["mod"]["main"].params[0].checked_type.shape) == [1, 1080, 1920, 3]
    np.testing.assert_allclose(names["boxes"][0, ::2], np.float32([100, 400]) * 1920 / 1333, rtol=1e-3)


def something_is_drawn(names):
    channels = 2 * 11 + 3
    assert names["images"].shape == (2, 224, 224, channels) and names["images"].any()


def both_are_in_the_table(names):
    assert names["summary"].images == 2 and not names["summary"].errors
    assert sorted(names["table"].column("image_id").to_pylist()) == ["first.jpg", "second.png"]
    assert [len(boxes) for boxes in names["found"].column("boxes").to_pylist()] == [1, 1]
    assert list(names["models"]) == [1, 2] and names["model"].inputs["images"].shape[0] == 2


def most_is_in_int8(names):
    """Of the network that was quantized elsewhere, the last one; and the detector runs."""
    assert [each.in_float for each in names["calibration"].convolutions.values()] == [True, False, False]
    assert set(names["detections"]) == {"boxes", "scores", "labels"}


CHECKS = {
    "README": detections_agree,
    "batch": both_are_in_the_table,
    "int8": most_is_in_int8,
    "importing": refused_with_its_place,
    "detection": detections_agree,
    "super-resolution": upscaled,
    "camera": boxes_of_the_camera,
    "scenes": something_is_drawn,
}
