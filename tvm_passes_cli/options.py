"""The subcommands and their options. Nothing that takes long to import is needed to parse them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import runpy
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

PIPELINES = "auto", "detection", "subpixel"
OF_RELAX = ("convolution",)
OF_MODELS = ("inspect", "compile", "calibrate", "profile")  # whose MODEL is imported
OF_FOLDERS = ("run", "detect", "serve")  # whose model is in a folder that was compiled to
MODEL = """\
MODEL is one of
  network.onnx                 an ONNX file; dynamic sizes are set by --size or --input-shape
  torchvision:NAME             a model of torchvision, such as torchvision:maskrcnn_resnet50_fpn, with random
                               seeded weights unless --weights trained
  module:function              what a function of an importable module returns: an nn.Module (with --size or
                               --input-shape), an nn.Module and its example inputs, or a Relay module and its
                               parameters; or an nn.Module that the module has
NAME and function may have literal arguments: 'torchvision:ssd300_vgg16(num_classes=8)'."""

SOURCES = """\
  photos/                      a folder: all image files in it, and in the folders inside
  'photos/*.jpg'               a glob; it may find Parquet files and tars, too
  photos.txt                   paths, one a line, relative to the folder of this file
  photos.parquet               a table with a column of encoded images
  photos.tar                   a tar of images, as WebDataset writes it
"""
IMAGES = f"IMAGES is one of\n{SOURCES}Images that cannot be used are named, and the others are taken."
SOURCE = f"""\
SOURCE is one of
{SOURCES}Images that cannot be used are in a table of errors, with the reason; the others go on."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Prints the version of `tvm_passes`, without importing it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        package = importlib.util.find_spec("tvm_passes")
        assert package is not None and package.origin is not None
        version = runpy.run_path(str(Path(package.origin).with_name("version.py")))["VERSION"]
        print(f"tvm-passes {version}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    whole = _Parser(prog="tvm-passes", description="See what the passes do to a model, compile it, run it.")
    whole.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, does: str, epilog: str | None = None) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        added = commands.add_parser(
            name, help=does, description=does.capitalize() + ".", epilog=epilog, formatter_class=form
        )
        added.add_argument(
            "--verbose", action="store_true", help="show warnings, and the traceback of an error"
        )
        return added

    command("doctor", "say what works here, what is missing, and how to get it")
    _add_inspect(
        command("inspect", "show what each pass does to a model, and what it refuses, where and why", MODEL)
    )
    _add_compile(command("compile", "apply passes to a model, compile it, and save it in a folder", MODEL))
    _add_calibrate(
        command("calibrate", "run a model on images, to compile it in int8", f"{MODEL}\n\n{IMAGES}")
    )
    _add_run(
        command(
            "run", "run a compiled model on an image, and draw the detections or save the image it returns"
        )
    )
    _add_detect(
        command(
            "detect", "run a compiled detector on many images, and write a table of what it finds", SOURCE
        )
    )
    _add_serve(command("serve", "answer HTTP requests with what a compiled detector finds in their images"))
    _add_profile(command("profile", "time a model before and after the passes, kernel by kernel", MODEL))
    return whole


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the model to import; see below")
    parser.add_argument("--size", metavar="HxW", type=_size, help="size of the model's input images")
    parser.add_argument(
        "--input-shape",
        metavar="[NAME=]N,C,H,W",
        type=_input_shape,
        action="append",
        default=[],
        help="shape of an input, float32 unless the model says otherwise; may be repeated",
    )
    parser.add_argument(
        "--camera",
        metavar="HxW[:BGR]",
        type=_camera,
        help="replace the model's only input with uint8 images of this size, (1, H, W, 3)",
    )
    parser.add_argument(
        "--weights", choices=("seeded", "trained"), default="seeded", help="weights of torchvision's models"
    )


def _add_pipeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        default="native",
        help="what to compile for: native, the default, this machine's processor, with oneDNN; llvm, any "
        'processor; or a target such as "cuda -arch=sm_90"',
    )
    of_type = parser.add_mutually_exclusive_group()
    of_type.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), help="type of convolutions")
    of_type.add_argument(
        "--int8",
        metavar="FILE",
        help="compute convolutions in int8, on a GPU, as the file says that tvm-passes calibrate wrote",
    )
    _add_forms(parser)


def _add_forms(parser: argparse.ArgumentParser) -> None:
    """The pipeline, and the form of what the model returns."""
    parser.add_argument(
        "--pipeline",
        type=_pipeline,
        default="auto",
        metavar="auto|detection|subpixel|module:function",
        help="auto: detection if the graph has an NMS or a RoIAlign, else subpixel; "
        "module:function: the pass that it returns, such as tvm_passes:FoldPreprocessing",
    )
    parser.add_argument(
        "--outputs",
        choices=("dynamic", "cut", "padded"),
        help="form of a detector's outputs; see detection_pipeline",
    )
    parser.add_argument(
        "--masks",
        choices=("pasted", "raw", "encoded"),
        help="form of a detector's masks: images, as by default; small ones for the boxes; or run lengths",
    )


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_pipeline(parser)
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of the table, with all locations"
    )
    parser.add_argument(
        "--graph", metavar="OUT.html", help="write a page that shows the graph before and after"
    )


def _add_compile(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write")
    parser.add_argument(
        "--batch",
        metavar="N[,N...]",
        type=_batches,
        default=(),
        help="numbers of images to compile for, such as 1,8: a network for each, with common weights; "
        "tvm-passes detect takes the smallest that holds the images it has",
    )
    _add_pipeline(parser)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument(
        "images", metavar="IMAGES", help="images such as those that the model will get; see below"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    parser.add_argument(
        "--count", metavar="N", type=_number, default=64, help="how many images to take; by default 64"
    )
    parser.add_argument(
        "--method",
        choices=("mse", "entropy", "percentile", "maximum"),
        default="mse",
        help="how the bound of a tensor is chosen: of the smallest mean squared error, by default; of the "
        "smallest loss of information; which one in ten thousand exceeds; or none exceeds",
    )
    parser.add_argument(
        "--min-snr",
        metavar="DB",
        type=_decibels,
        help="convolutions with a smaller ratio of signal to noise, by default 20 dB, stay in float16",
    )
    parser.add_argument(
        "--target",
        default="cuda -arch=sm_90",
        help='the GPU that the model will be compiled for, by default "cuda -arch=sm_90"; it is not used',
    )
    parser.set_defaults(dtype="int8", int8=None)
    _add_forms(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder that tvm-passes compile wrote")
    parser.add_argument("--image", metavar="IMAGE", required=True, help="an image file")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="OUT.png: the image with detections, or the one that the network returns; OUT.npz: all outputs",
    )
    parser.add_argument(
        "--resize",
        action="store_true",
        help="resize an image to the size compiled for, bilinearly, without keeping its aspect ratio; "
        "detections are drawn on the original image",
    )
    parser.add_argument(
        "--score", type=_score, default=0.5, help="minimum score of the detections that are shown"
    )
    parser.add_argument(
        "--labels", metavar="FILE", help="names of the classes, one per line, from class 0 on"
    )
    parser.add_argument("--json", action="store_true", help="print detections as JSON instead of a table")


def _add_detect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="the images; see below")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        required=True,
        help="the table to write, a folder of Parquet files such as detections.parquet; the errors are in "
        "errors.parquet beside it",
    )
    parser.add_argument(
        "--model", metavar="DIR", required=True, help="the folder that tvm-passes compile wrote"
    )
    parser.add_argument("--gpus", metavar="N", type=int, help="how many GPUs to use; by default all")
    parser.add_argument(
        "--processes",
        metavar="N",
        type=int,
        help="of each GPU; by default one for each 8 GiB of its memory, and at most 6",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local: threads, for GPUs in processes; ray: Ray's tasks and actors, here or on a cluster",
    )
    parser.add_argument(
        "--address", metavar="ADDRESS", help="of a Ray cluster, or auto; by default, Ray starts here"
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=int,
        help="processes of Ray that run the network, without GPUs",
    )
    parser.add_argument(
        "--batch",
        metavar="N|auto",
        type=partial(_number_or_auto, "images"),
        default="auto",
        help="images that are computed at once, a size that the model was compiled for; auto: the largest",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with a job that was interrupted, and do only the rest"
    )
    parser.add_argument(
        "--format",
        choices=("parquet", "coco"),
        default="parquet",
        help="coco: write the detections also as one JSON file in COCO's format",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write what each thread did when, for chrome://tracing or Perfetto"
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder that tvm-passes compile wrote")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; by default, only this machine can connect"
    )
    parser.add_argument("--port", metavar="N", type=int, default=8000, help="0: any that is free")
    parser.add_argument(
        "--replicas",
        metavar="N|auto",
        type=partial(_number_or_auto, "processes"),
        default="auto",
        help="processes that compute; auto: one for each GPU, or one on a CPU",
    )
    parser.add_argument(
        "--max-queued",
        metavar="N",
        type=int,
        help="requests that may wait; others are answered with 503 at once",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        help="seconds that an image may take to arrive, and then to be computed",
    )
    parser.add_argument("--max-bytes", metavar="N", type=int, help="bytes of a request, at most")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_pipeline(parser)
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="an image to run on, resized for the model; by default noise, in which a "
        "detector finds little and so has little to do",
    )
    parser.add_argument(
        "--compare", choices=("torch", "onnxruntime"), help="also time a call of the model there"
    )
    parser.add_argument("--csv", metavar="OUT.csv", help="write the time of each kernel")
    parser.add_argument("--chart", metavar="OUT.png", help="draw a chart of the times by kind")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")


def _is_above_0(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _number(text: str) -> int:
    if not _is_above_0(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return int(text)


def _number_or_auto(of: str, text: str) -> int | str:
    if text != "auto" and not _is_above_0(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of {of}: give one, or auto")
    return text if text == "auto" else int(text)


def _pipeline(text: str) -> str:
    if text not in (*PIPELINES, *OF_RELAX) and ":" not in text:
        known = ", ".join(PIPELINES)
        raise argparse.ArgumentTypeError(f"there is no pipeline {text}: give {known}, or module:function")
    return text


def _score(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:  # and not NaN
            return float(text)
    raise argparse.ArgumentTypeError(f"'{text}' is not a score: give a number from 0 to 1")


def _decibels(text: str) -> float:
    with contextlib.suppress(ValueError):
        if not math.isnan(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"'{text}' is not a number of dB: give such as 20")


def _size(text: str) -> tuple[int, int]:
    """(height, width)"""
    height, _, width = text.partition("x")
    if not (_is_above_0(height) and _is_above_0(width)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: give height and width, such as 480x640")
    return int(height), int(width)


def _input_shape(text: str) -> tuple[str | None, tuple[int, ...]]:
    """(name or None, shape)"""
    name, _, shape = text.rpartition("=")
    lengths = shape.split(",")
    if not all(map(_is_above_0, lengths)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a shape: give lengths, such as 1,3,224,224")
    return name or None, tuple(map(int, lengths))


def _camera(text: str) -> tuple[int, int, str]:
    """(height, width, order of channels)"""
    size, _, channels = text.partition(":")
    if channels not in ("", "RGB", "BGR"):
        raise argparse.ArgumentTypeError(
            f"'{text}' ends neither in RGB nor in BGR, the order of the channels"
        )
    return (*_size(size), channels or "RGB")


def _batches(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(map(_is_above_0, parts)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers of images: give such as 1,8")
    return tuple(sorted(set(map(int, parts))))
