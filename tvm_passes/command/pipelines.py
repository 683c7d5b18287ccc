"""Import a model into Relay and choose its pipeline, as the options of the command say."""

from __future__ import annotations

import argparse

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm import relay

from ..analysis.constants import with_weights
from ..engine.expressions import op_name
from ..engine.graph import Graph, relay_functions
from ..pipeline import detection_pipeline, subpixel_pipeline
from ..quantize import Calibration, CalibrationError
from .errors import CommandError, one_line
from .models import Model
from .progress import say, step
from .work import Work, find, imported, named_pass, target_of

DETECTS = (  # operators that detectors have, and other networks hardly
    "vision.non_max_suppression",
    "vision.all_class_non_max_suppression",
    "vision.get_valid_counts",
    "vision.roi_align",
    "image.grid_sample",
    "topk",
    "topi_ext.batched_nms",
    "topi_ext.multiscale_roi_align",
    "topi_ext.paste_masks",
    "topi_ext.encode_masks",
)


def prepare(args: argparse.Namespace, model: Model | None = None) -> Work:
    """Import the model, by default that of the arguments, and choose its pipeline, and report both."""
    target = target_of(args.target)
    named = _named(args)
    calibration = _calibration(args.int8) if args.int8 else None
    model = model or find(args)
    with step(f"Import {model.title}"):
        mod, params = imported(model)
        mod = relay.transform.InferType()(with_weights(mod, params))
    if not any(map(op_name, Graph(mod["main"]).nodes)):
        raise CommandError(f"{args.model} contains no operator: give a model that computes something")
    pipeline, passes = named or _pipeline_of(args, mod, target, calibration)
    say(f"Pipeline: {pipeline}, for {args.target}")
    return Work(model, mod, target, pipeline, passes)


def _named(args: argparse.Namespace) -> tuple[str, tvm.transform.Pass] | None:
    """The name and the pass of module:function; None for our pipelines, which may depend on the model."""
    name = args.pipeline
    if ":" in name:
        if args.int8:
            raise CommandError(f"--int8 is for the pipelines detection and subpixel, not for {name}")
        return name, named_pass(name)
    if name == "convolution":
        raise CommandError(
            f"the pipeline {name} is for Relax: give auto, detection, subpixel, or module:function"
        )
    return None


def _pipeline_of(
    args: argparse.Namespace, mod: tvm.IRModule, target: tvm.target.Target, calibration: Calibration | None
) -> tuple[str, tvm.transform.Pass]:
    """The name of one of our pipelines, and its pass."""
    name = args.pipeline
    if name == "auto":
        name = "detection" if _detects(mod) else "subpixel"
    try:
        if name == "detection":
            return name, detection_pipeline(target, args.dtype, args.outputs, args.masks, calibration)
        for option, value in (("--outputs", args.outputs), ("--masks", args.masks)):
            if value:
                raise CommandError(f"{option} is for detectors: leave it out with the pipeline {name}")
        return name, subpixel_pipeline(target, args.dtype, calibration)
    except ValueError as reason:  # options that this target does not take
        raise CommandError(one_line(reason)) from reason


def _calibration(path: str) -> Calibration:
    try:
        return Calibration.read(path)
    except CalibrationError as error:
        raise CommandError(f"--int8: {error}") from error


def _detects(mod: tvm.IRModule) -> bool:
    names = {op_name(node) for function in relay_functions(mod).values() for node in Graph(function).nodes}
    return not names.isdisjoint(DETECTS)
