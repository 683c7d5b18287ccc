"""Import a model into Relax and choose its pipeline, as the options of the command say."""

from __future__ import annotations

import argparse

from topi_ext import bootstrap  # noqa: F401  (before tvm)

from tvm import relax

from ..relax import convolution_pipeline
from .errors import CommandError
from .models import Model
from .progress import say, step
from .work import Work, find, imported, named_pass, target_of


def prepare(args: argparse.Namespace, model: Model | None = None) -> Work:
    """Import the model, by default that of the arguments, and choose its pipeline, and report both."""
    target = target_of(args.target)
    name = "convolution" if args.pipeline == "auto" else args.pipeline
    if name != "convolution" and ":" not in name:
        raise CommandError(f"there is no pipeline {name} for Relax: give auto, or module:function")
    passes = convolution_pipeline(target, args.dtype) if name == "convolution" else named_pass(name)
    model = model or find(args)
    with step(f"Import {model.title}"):
        mod, params = imported(model)
        mod = relax.transform.BindParams("main", params)(mod)
    say(f"Pipeline: {name}, for {args.target}")
    return Work(model, mod, target, name, passes)
