"""`tvm-passes run`: run a compiled network on an image, and show its detections or the image it returns."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from topi_ext.encode_masks import reference

from .. import runtime
from ..batch.found import Found
from ..batch.network import described
from ..runtime.manifest import networks_of
from .draw import at_least, detections_in, draw_detections, label_name, scaled
from .errors import CommandError, check_can_write, writing
from .images import ImageInput, check_is_image, image_of, read_image, write_image
from .progress import say, step

ARRAYS = ".npz"


def run(args: argparse.Namespace) -> None:
    if args.output:
        check_can_write(args.output)
        check_is_image(args.output, also=(ARRAYS,))
    manifest, model = _loaded(args.folder)
    labels = _labels(args, manifest)
    taken = _image_input(args.folder, manifest)
    image = read_image(args.image)
    fitting = _fitting(args, taken, image)
    array = taken.array(fitting, manifest["about"].get("channels", "RGB"))
    with step("Run"):
        outputs = model(array)
    outputs = outputs if isinstance(outputs, dict) else dict(zip(model.output_names or ["output"], [outputs]))
    found = detections_in(outputs)
    if args.output and Path(args.output).suffix.lower() == ARRAYS:
        archive = io.BytesIO()  # zipfile itself does not end well on a disk that is full
        np.savez(archive, **outputs)
        with writing(args.output):
            Path(args.output).write_bytes(archive.getbuffer())
        say(f"The outputs: {args.output}")
    elif found is not None:
        _show_detections(args, labels, image, fitting, found)
    else:
        _show_image(args, image, outputs)


def _loaded(folder: str) -> tuple[dict[str, Any], runtime.Model]:
    with step(f"Load {folder}"):
        try:
            sizes = networks_of(runtime.read_manifest(folder))
            if not {1, None} & sizes.keys():
                raise CommandError(
                    f"{folder} was compiled for batches of {', '.join(map(str, sizes))}, not for one image: "
                    "use tvm-passes detect, or compile with --batch 1 among them"
                )
            batch, manifest = next((size, each) for size, each in sizes.items() if size in (1, None))
            return manifest, runtime.load(folder, batch=batch, cut=bool(manifest["padded_rows"]))
        except runtime.FolderError as error:
            raise CommandError(str(error)) from error


def _image_input(folder: str, manifest: dict[str, Any]) -> ImageInput:
    taken = [ImageInput.of(each["shape"], each["dtype"]) for each in manifest["inputs"]]
    if len(taken) != 1 or taken[0] is None:
        raise CommandError(
            f"{folder} takes {described(manifest)}, not one image: use tvm_passes.runtime.load in Python"
        )
    return taken[0]


def _fitting(args: argparse.Namespace, taken: ImageInput, image: Image.Image) -> Image.Image:
    """The image, resized to the size that the network was compiled for."""
    if taken.takes(image):
        return image
    if not args.resize:
        raise CommandError(
            f"{args.image} is {image.height}x{image.width}, and {args.folder} was compiled for images "
            f"of {taken.size_text}: give --resize, or compile with another --size"
        )
    size = taken.width or image.width, taken.height or image.height
    return image.resize(size, Image.BILINEAR)


def _show_detections(
    args: argparse.Namespace,
    labels: Sequence[str],
    image: Image.Image,
    fitting: Image.Image,
    found: Found,
) -> None:
    found = scaled(found, [whole / part for whole, part in zip(image.size, fitting.size)])
    shown = at_least(found, args.score)
    if args.json:
        print(json.dumps(_as_json(shown, labels), indent=1))
    else:
        Console(emoji=False).print(_as_table(shown, labels))
        say(
            f"{len(shown['boxes'])} of {len(found['boxes'])} detections have a score of {args.score} or more."
        )
    if args.output:
        if found.get("masks", np.empty(())).ndim == 2:  # by --masks encoded
            images = reference.decoded(found["masks"], (fitting.height, fitting.width))
            found["masks"] = images[:, None].astype("float32")
        write_image(draw_detections(image, found, labels, args.score), args.output)
        say(f"The image with them: {args.output}")


def _show_image(args: argparse.Namespace, image: Image.Image, outputs: Mapping[str, Any]) -> None:
    made = image_of(next(iter(outputs.values())), image) if len(outputs) == 1 else None
    if made is None:
        described = ", ".join(f"{name}: {value.dtype} {list(value.shape)}" for name, value in outputs.items())
        raise CommandError(f"the outputs are neither detections nor an image ({described}): give -o OUT.npz")
    if not args.output:
        say(f"The result is an image of {made.height}x{made.width}: give -o OUT.png")
        return
    write_image(made, args.output)
    say(f"The image, {made.height}x{made.width}: {args.output}")


def _labels(args: argparse.Namespace, manifest: dict[str, Any]) -> Sequence[str]:
    if not args.labels:
        return manifest["about"].get("labels", ())
    try:
        return Path(args.labels).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--labels {args.labels} cannot be read ({error}): give one name per line"
        ) from error


def _as_json(found: Found, labels: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"label": label_name(int(label), labels), "score": float(score), "box": [float(part) for part in box]}
        for label, score, box in zip(found["labels"], found["scores"], found["boxes"])
    ]


def _as_table(found: Found, labels: Sequence[str]) -> Table:
    table = Table()
    for title in ("label", "score", "left", "top", "right", "bottom"):
        table.add_column(title, justify="left" if title == "label" else "right")
    for label, score, box in zip(found["labels"], found["scores"], found["boxes"]):
        name = escape(label_name(int(label), labels))
        table.add_row(name, f"{score:.3f}", *(f"{part:.1f}" for part in box))
    return table
