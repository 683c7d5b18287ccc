"""Time encoded masks versus pycocotools: `python -m tests.benchmarks.bench_encode_masks`.

pycocotools encodes images on the host. It gets what `topi_ext.paste_masks` gives with a threshold, brought to
the order that it takes on the GPU, so that it copies nothing. We compare our result with its own before ours
is timed.
"""

import argparse

import numpy as np
import torch
from pycocotools import mask as coco

from tests.benchmarks import _common as common
from tests.ops.objects import objects, ovals
from topi_ext import encode_masks, paste_masks
from tvm_passes.runtime import coco_masks

from tvm import relay

IMAGE, MASKS, SIDE = (800, 1333), 100, 28
AMPLE = 1 << 18  # bytes: noise has up to 14 runs in a column


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["", "ours", "floor", "ours, with the host", "pycocotools, with the host", "pycocotools / ours"]
    rows = [encoding(*case, bandwidth) for case in cases()]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES]
    common.publish("encode_masks", "Masks as run lengths", "\n".join(text))


NOTES = f"""{MASKS} masks of {SIDE}x{SIDE} in images of {IMAGE[0]}x{IMAGE[1]}. ours: on the device. floor: the
time to read the masks and write the result once, at the bandwidth of a copy. with the host: from the call to
COCO's dicts, or for bits to a NumPy array, by the host's clock; for pycocotools this includes pasting, the
copy of the images, and encoding. The ratio is that of the times with the host."""


def cases():
    """What is encoded: the name, the arguments, and the options."""
    masks, boxes = ovals(MASKS, IMAGE, SIDE)
    everywhere = np.tile(np.float32([0, 0, IMAGE[1], IMAGE[0]]), (MASKS, 1))
    noise = objects(MASKS, IMAGE, SIDE)
    return [
        ("ovals of all sizes", masks, boxes, {}),
        ("ovals as large as the image", masks, everywhere, {}),
        ("noise", *noise, {"capacity": AMPLE}),
        ("ovals of all sizes, bits", masks, boxes, {"form": "bits"}),
    ]


def encoding(name, masks, boxes, options, bandwidth):
    tensors = [torch.from_numpy(array).cuda() for array in (masks, boxes)]
    variables = [relay.var(f"x{i}", shape=tuple(tensor.shape)) for i, tensor in enumerate(tensors)]
    encode, paste = (
        common.compile_for_gpu(relay.Function(variables, call), *tensors)
        for call in (
            encode_masks(*variables, IMAGE, **options),
            paste_masks(*variables, IMAGE, threshold=0.5),
        )
    )
    in_bits = options.get("form") == "bits"

    def ours():
        encode.run()
        found = common.outputs_of(encode)[0].cpu().numpy()
        return found if in_bits else coco_masks(found, IMAGE)

    def theirs():
        paste.run()
        (images,) = common.outputs_of(paste)
        in_columns = images[:, 0].transpose(1, 2).contiguous().cpu().numpy()
        return coco.encode(in_columns.transpose(2, 1, 0))

    found = ours()
    if in_bits:
        images = np.unpackbits(found, axis=2, count=IMAGE[1])
        found = coco.encode(np.asfortranarray(images.transpose(1, 2, 0)))
    if found != theirs():
        raise SystemExit(f"{name}: the masks differ from those of pycocotools: nothing was timed")
    (result,) = common.outputs_of(encode)
    floor = (masks.nbytes + result.numel()) / bandwidth * 1e3
    mine, other = common.wall_ms(ours), common.wall_ms(theirs)
    cells = [name, common.median_ms(encode.run), floor, mine, other, f"{other / mine:.1f}"]
    print(cells, flush=True)
    return cells


if __name__ == "__main__":
    main()
