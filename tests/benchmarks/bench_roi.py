"""Time RoIAlign, pasted masks and keypoints versus torchvision: `python -m tests.benchmarks.bench_roi`.

The pyramid is that of an image of 800x1344: four maps of 256 channels. torchvision's `MultiScaleRoIAlign`
finds the regions of each level, pools them, and writes them to their rows; for NHWC its maps are in the
memory format `channels_last`. torchvision's `paste_masks_in_image` pastes mask by mask, and its
`heatmaps_to_keypoints` scales the heatmaps of one detection at a time.

Our result is compared with torchvision's before ours is timed.
"""

import argparse
from functools import partial

import torch
import torchvision
from torchvision.models.detection import roi_heads
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops.poolers import LevelMapper

from tests.benchmarks import _common as common
from tests.ops.objects import heatmaps, objects
from tests.ops.regions import SCALES, pyramid, regions
from topi_ext import heatmaps_to_keypoints, multiscale_roi_align, paste_masks

from tvm import relay

IMAGE = 800, 1344
PASTED = 800, 1333
POOLINGS = [
    (count, bins, layout, dtype)
    for count, bins in ((1000, 7), (100, 14))
    for layout, dtype in (("NHWC", "float16"), ("NCHW", "float32"), ("NHWC", "float32"), ("NCHW", "float16"))
]
THRESHOLDS = [None, 0.5]
CHANNELS, SAMPLING_RATIO, MASKS = 256, 2, 100
KEYPOINTS, HEATMAP = 17, (56, 56)
TOLERANCE = {"float32": 1e-3, "float16": 5e-3}  # of the results, for maps of standard deviation 1


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["", "ours", "torchvision", "torchvision / ours", "floor", "ours, with the host"]
    header += ["torchvision, with the host"]
    rows = [pooling(*case, bandwidth) for case in POOLINGS] + [pasting(t, bandwidth) for t in THRESHOLDS]
    rows.append(finding_keypoints(bandwidth))
    text = [common.environment(bandwidth), f"- torchvision: {torchvision.__version__}", ""]
    text += [common.markdown_table(header, rows), "", NOTES]
    common.publish("roi", "RoIAlign of a pyramid, pasting of masks, keypoints", "\n".join(text))


NOTES = f"""RoIAlign: maps of {CHANNELS} channels for an image of {IMAGE[0]}x{IMAGE[1]}, {SAMPLING_RATIO}
samples along each side of a bin. Masks: {MASKS} of 28x28, pasted into images of {PASTED[0]}x{PASTED[1]}.
Keypoints: heatmaps of {HEATMAP[0]}x{HEATMAP[1]}, scaled to the boxes of the masks. floor: the time to write
the result once and, for RoIAlign, to read once the pixels that the regions cover, or the maps if those are
smaller, and for keypoints the heatmaps, at the bandwidth of a copy. with the host: from the call to the end
of the work, by the host's clock; torchvision waits for the GPU in between, which both of its times
include."""


def pooling(count, bins, layout, dtype, bandwidth):
    features = on_gpu(pyramid(IMAGE[0] // 4, IMAGE[1] // 4, CHANNELS, 1, layout, dtype))
    (rois,) = on_gpu([regions(count, 1, *IMAGE)])
    rois[:, 1:] = torchvision.ops.clip_boxes_to_image(rois[:, 1:], IMAGE)
    variables = variables_of([*features, rois])
    options = {"pooled_size": bins, "scales": SCALES, "sampling_ratio": SAMPLING_RATIO, "layout": layout}
    call = multiscale_roi_align(variables[:-1], variables[-1], **options)
    module = common.compile_for_gpu(relay.Function(variables, call), *features, rois)
    theirs = by_torchvision(features, rois, bins, layout)
    module.run()
    (found,) = common.outputs_of(module)
    # Regions of float16, as torchvision takes them versus maps of float16, are up to half a pixel off.
    expected = by_torchvision([map_.float() for map_ in features], rois, bins, layout)()
    same(found, expected.permute(0, 2, 3, 1) if layout == "NHWC" else expected, TOLERANCE[dtype])
    item = found.element_size()
    read = min(sum(map_.numel() for map_ in features), covered_pixels(rois) * CHANNELS) * item
    floor = (found.numel() * item + read) / bandwidth * 1e3
    return row(f"{count} x {bins}x{bins}, {layout} {dtype}", module.run, theirs, floor)


def by_torchvision(features, rois, bins, layout):
    """Its pooler, called as a detector calls it."""
    pool = torchvision.ops.MultiScaleRoIAlign([str(level) for level in range(4)], bins, SAMPLING_RATIO)
    pool.scales, pool.map_levels = SCALES, LevelMapper(2, 5)
    maps = [map_.permute(0, 3, 1, 2) if layout == "NHWC" else map_ for map_ in features]
    boxes = rois[:, 1:].to(maps[0].dtype)
    return lambda: pool({str(level): map_ for level, map_ in enumerate(maps)}, [boxes], [IMAGE])


def covered_pixels(rois):
    """The pixels of all regions together, each on the map of its level."""
    boxes = rois[:, 1:]
    scale = torch.tensor(SCALES, device=boxes.device)[LevelMapper(2, 5)([boxes])]
    return float((torchvision.ops.box_area(boxes) * scale**2).sum())


def pasting(threshold, bandwidth):
    masks, boxes = on_gpu(objects(MASKS, PASTED))
    variables = variables_of([masks, boxes])
    call = paste_masks(*variables, PASTED, threshold=threshold)
    module = common.compile_for_gpu(relay.Function(variables, call), masks, boxes)

    def theirs():
        pasted = paste_masks_in_image(masks, boxes, PASTED)
        return pasted if threshold is None else pasted >= threshold

    module.run()
    (found,) = common.outputs_of(module)
    if threshold is None:
        same(found, theirs(), 1e-5)
    else:  # next to the threshold, either side is right
        near = (paste_masks_in_image(masks, boxes, PASTED) - threshold).abs() < 1e-5
        same(found[~near], theirs()[~near], 0)
    floor = found.numel() * found.element_size() / bandwidth * 1e3
    kind = "float32" if threshold is None else f"at least {threshold}, uint8"
    return row(f"paste {MASKS} masks, {kind}", module.run, theirs, floor)


def finding_keypoints(bandwidth):
    maps, rois = on_gpu(heatmaps(MASKS, KEYPOINTS, HEATMAP, image_size=PASTED))
    variables = variables_of([maps, rois])
    call = heatmaps_to_keypoints(*variables).astuple()
    module = common.compile_for_gpu(relay.Function(variables, call), maps, rois)
    module.run()
    places, scores = common.outputs_of(module)
    expected, greatest = roi_heads.heatmaps_to_keypoints(maps, rois)
    same(scores, greatest, 1e-4)
    elsewhere = ((places - expected).abs().amax(-1) > 0.01).float().mean()
    same(elsewhere, torch.zeros_like(elsewhere), 0.01)  # where values are equal but for rounding
    theirs = partial(roi_heads.heatmaps_to_keypoints, maps, rois)
    floor = maps.numel() * maps.element_size() / bandwidth * 1e3
    return row(f"{KEYPOINTS} keypoints of {MASKS} objects, float32", module.run, theirs, floor)


def row(name, ours, theirs, floor):
    mine, other = common.median_ms(ours), common.median_ms(theirs)
    cells = [name, mine, other, f"{other / mine:.1f}", floor, common.wall_ms(ours), common.wall_ms(theirs)]
    print(cells, flush=True)
    return cells


def same(found, expected, tolerance):
    difference = (found.float() - expected.float()).abs().max().item()
    if difference > tolerance:
        raise SystemExit(f"the results differ from torchvision's by {difference}: nothing was timed")


def on_gpu(arrays):
    return [torch.from_numpy(array).cuda() for array in arrays]


def variables_of(tensors):
    return [
        relay.var(f"x{i}", shape=tuple(tensor.shape), dtype=str(tensor.dtype).split(".")[-1])
        for i, tensor in enumerate(tensors)
    ]


if __name__ == "__main__":
    main()
