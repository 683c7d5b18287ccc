"""What a command works on: a model, as the options say, and what is done to it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from topi_ext import cpu_target

import tvm

from ..analysis.targets import parsed
from ..runtime import runs_here
from .errors import CommandError, one_line, require_relay
from .models import Imported, Model, find_model, resolve
from .progress import say, step


@dataclass
class Work:
    """An imported model, with its weights bound, and the passes to apply."""

    model: Model
    mod: tvm.IRModule
    target: tvm.target.Target
    pipeline: str
    passes: tvm.transform.Pass


def find(args: argparse.Namespace) -> Model:
    """Find the model, and report it."""
    for option in ("camera", "int8", "outputs", "masks"):
        if getattr(args, option):
            require_relay(f"--{option}")
    with step(f"Find {args.model}"):
        model = find_model(args)
    if model.note:
        say(model.note)
    return model


def imported(model: Model) -> Imported:
    """Import the model; the frontends explain their refusals themselves."""
    from frontends.errors import ImportFailure

    try:
        return model.imported()
    except ImportFailure as reason:
        raise CommandError(f"cannot import {model.title}: {one_line(reason)}") from reason


def target_of(text: str) -> tvm.target.Target:
    if text == "native":
        return cpu_target()
    try:
        return parsed(text)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise CommandError(
            f'TVM does not know --target "{text}" ({one_line(reason)}): give llvm, native, or such as '
            '"cuda -arch=sm_90"'
        ) from reason


def check_is_for_here(target: tvm.target.Target) -> None:
    """Check this before anything that takes time."""
    try:
        runs_here.check_is_for_here(target, "--target")
    except ValueError as reason:
        raise CommandError(one_line(reason)) from reason


def named_pass(name: str) -> tvm.transform.Pass:
    """The pass of "module:function"."""
    passes = resolve(name)
    if not isinstance(passes, tvm.transform.Pass):
        raise CommandError(f"{name} returns {type(passes).__name__}, which is not a TVM pass")
    return passes
