"""Draw a synthetic street scene into a PNG, as a network that predicts motion sees it.

    python -m tutorials.06_rasterize_scene

Run it in the root of a clone. It takes a few seconds. The image shows some samples: lanes with their edges
in the colours of their lights, crosswalks, agents in blue, and the ego in green, both fading into the past.
"""

import argparse
import time

import numpy as np
from PIL import Image
from rich.console import Console

from frontends.l5kit import RenderContext, SemanticMap, SemBoxRasterizer
from tests.frontends.traffic import town, traffic

console = Console()
HISTORY, THRESHOLD, BORDER = 12, 0.5, 8


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="scene.png")
    parser.add_argument("--target", default="llvm", help="llvm, or cuda where there is a GPU")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--size", type=int, default=448, help="width and height of a sample, in pixels")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    made = town(blocks=6)
    batch = traffic(made, args.samples, HISTORY + 1, agents=45, seed=args.seed, select=0.5)
    context = RenderContext(
        raster_size_px=(args.size, args.size),
        pixel_size_m=(112 / args.size, 112 / args.size),
        center_in_raster_ratio=(0.3, 0.5),
    )
    semantic_map = SemanticMap(made.lanes, made.crosswalks)
    rasterizer = SemBoxRasterizer(context, THRESHOLD, HISTORY, semantic_map, mode="union", target=args.target)
    for when in ("the first time, compilation included", "again"):
        start = time.perf_counter()
        images = rasterizer.rasterize(*batch)
        console.print(f"Drawn in {time.perf_counter() - start:.2f} s, {when}.")
    console.print(
        f"{len(made.lanes)} lanes, {args.samples} samples of {rasterizer.num_channels()} channels each."
    )
    side_by_side(rasterizer.to_rgb(images)).save(args.output)
    console.print(f"See {args.output}.")


def side_by_side(images):
    framed = np.pad(images, ((0, 0), (BORDER, BORDER), (BORDER, BORDER), (0, 0)), constant_values=200)
    columns = int(np.ceil(np.sqrt(len(framed))))
    blank = np.full_like(framed[:1], 200).repeat(-len(framed) % columns, axis=0)
    rows = np.concatenate([framed, blank]).reshape(-1, columns, *framed.shape[1:])
    return Image.fromarray(np.concatenate([np.concatenate([*row], axis=1) for row in rows], axis=0))


if __name__ == "__main__":
    main()
