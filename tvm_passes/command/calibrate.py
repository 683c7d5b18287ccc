"""`tvm-passes calibrate`: run a model on images, and write the bounds that its tensors need in int8."""

from __future__ import annotations

import argparse
import io
import shlex
from collections.abc import Iterator

import numpy as np
from PIL import Image
from rich.console import Console

from ..batch.decode import open_upright
from ..batch.errors import BadImage, BatchError
from ..batch.sources import check_any, items_of
from ..engine.expressions import batch_shape
from ..quantize import CalibrationError, calibrate
from ..quantize.calibration import MIN_SNR
from .errors import CommandError, check_can_write, writing
from .images import ImageInput
from .pipelines import prepare
from .progress import say, step
from .work import Work


def run(args: argparse.Namespace) -> None:
    check_can_write(args.output)
    try:
        check_any(args.images)
    except BatchError as error:
        raise CommandError(str(error)) from error
    work = prepare(args)
    taken = _image_input(args, work)
    channels = args.camera[2] if args.camera else "RGB"
    images = _Images(args, taken, channels)
    min_snr = MIN_SNR if args.min_snr is None else args.min_snr
    with step(f"Calibrate by {args.method}"):
        try:
            calibration = calibrate(work.mod, images, work.passes, method=args.method, min_snr=min_snr)
        except (BatchError, CalibrationError) as error:
            raise CommandError(str(error)) from error
    with writing(args.output):
        calibration.save(args.output)
    Console(emoji=False).print(calibration)
    for reason in images.skipped:
        say(f"Skipped: {reason}")
    model, target = map(shlex.quote, (args.model, args.target))
    say(f"{args.output}: give it to tvm-passes compile {model} --target {target} --int8")


def _image_input(args: argparse.Namespace, work: Work) -> ImageInput:
    params = work.mod["main"].params
    taken = [ImageInput.of(batch_shape(each) or (), each.checked_type.dtype) for each in params]
    if len(taken) != 1 or taken[0] is None or None in (taken[0].height, taken[0].width):
        raise CommandError(
            f"{args.model} does not take one image of a fixed size: give --size, or use "
            "tvm_passes.quantize.calibrate in Python"
        )
    return taken[0]


class _Images:
    """The first images of a source as arrays for the network, resized to its input."""

    def __init__(self, args: argparse.Namespace, taken: ImageInput, channels: str) -> None:
        self.source, self.count = args.images, args.count
        self.taken, self.channels = taken, channels
        self.skipped: list[str] = []

    def __length_hint__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[np.ndarray]:
        left = self.count
        for item in items_of(self.source):
            if not left:
                return
            try:
                image = open_upright(io.BytesIO(item.read()))
            except BadImage as reason:
                self.skipped.append(f"{item.id} {reason}")
                continue
            left -= 1
            fitting = image.resize((self.taken.width, self.taken.height), Image.BILINEAR)
            yield self.taken.array(fitting, self.channels)
        if left == self.count:
            raise CommandError(f"{self.source} has no image that can be used: give a folder of photographs")
