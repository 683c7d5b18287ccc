"""Time Mask R-CNN on the CPU versus stock TVM: `python -m tests.benchmarks.bench_detection_cpu`.

Both start from torchvision's model, one through TVM's own importer, the other through ours and
`detection_pipeline`, and run in TVM's virtual machine. Their detections are compared with torch's before they
are timed.
"""

import argparse
import os
from functools import partial

import torch

import frontends
from tests.benchmarks import _common as common
from tests.benchmarks.timing import in_turn
from tests.models.detectors import detect, share_found
from tests.models.zoo import detection_model, random_image
from topi_ext import cpu_target
from tutorials.detectors import stock_import
from tvm_passes import detection_pipeline, runtime
from tvm_passes.runtime.profiling import ms_by_kind

HEIGHT, WIDTH = 256, 320
ROUNDS = 9
OURS, STOCK, TORCH = "ours", "stock TVM", "torch, eager"
NAMES = {  # of outputs; torchvision returns a dict, of which tracing it as a tuple keeps the order
    OURS: ("boxes", "scores", "labels", "masks"),
    STOCK: ("boxes", "labels", "scores", "masks"),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="a target of LLVM; by default with all that this processor has")
    target = parser.parse_args().target or cpu_target()
    threads = min(2, len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads)
    os.environ.setdefault("TVM_NUM_THREADS", str(threads))

    model = detection_model("maskrcnn_resnet50_fpn", min_size=HEIGHT, max_size=WIDTH)
    image = random_image(HEIGHT, WIDTH)
    expected = detect(model, image)
    compiled = {OURS: ours(model, image, target), STOCK: stock(model, image, target)}
    given = {OURS: image.numpy(), STOCK: image[None].numpy()}
    for peer, names in NAMES.items():
        found = dict(zip(names, compiled[peer](given[peer]).values()))
        assert share_found(found, expected) >= 0.95, peer
    calls = {peer: partial(compiled[peer], given[peer]) for peer in compiled}
    times = in_turn({**calls, TORCH: partial(detect, model, image)}, ROUNDS)["wall"]
    kinds = {peer: ms_by_kind(runtime.profile(compiled[peer], given[peer])) for peer in compiled}
    publish(target, len(expected["boxes"]), times, kinds)


def ours(model, image, target):
    mod, params = frontends.from_pytorch(model, image)
    return runtime.compile(detection_pipeline(target)(mod), target, params)


def stock(model, image, target):
    mod, params = stock_import(model, image[None])
    return runtime.compile(mod, target, params)


def publish(target, detections, times, kinds):
    facts = {
        "CPU": f"{common.cpu_name()}, {os.environ['TVM_NUM_THREADS']} threads, shared",
        "Target": f"`{target}`, untuned",
        "Model": f"torchvision's maskrcnn_resnet50_fpn, seeded weights, {HEIGHT}x{WIDTH}, float32, batch 1",
        "Found": f"{detections} detections",
    }
    row = ["an image", *(f"{ms:.0f}" for ms in times.values()), f"{times[STOCK] / times[OURS]:.2f}"]
    by_kind = [
        [kind, *(cell for of in kinds.values() for cell in (f"{of.get(kind, 0):.2f}", share(of, kind)))]
        for kind in sorted(kinds[STOCK] | kinds[OURS], key=lambda kind: -kinds[STOCK].get(kind, 0))
    ]
    header = ["", *(f"{peer}, {what}" for peer in kinds for what in ("ms", "share"))]
    parts = [
        "\n".join(f"- {name}: {fact}" for name, fact in facts.items()),
        f"The median in ms of {ROUNDS} rounds, in each of which each runs once:",
        common.markdown_table(["", *times, f"{STOCK} / {OURS}"], [row]),
        BY_KIND,
        common.markdown_table(header, by_kind),
    ]
    common.publish("detection", "Mask R-CNN on a CPU", "\n\n".join(parts), common.cpu_name())


def share(times, kind):
    return f"{times.get(kind, 0) / sum(times.values()):.2%}"


BY_KIND = """Times by kind of kernel, from TVM's profiler, each the median of several runs. TVM's own importer
turns the pasting of masks into a loop, so "masks, keypoints" is the one kernel that replaces it. What
surrounds NMS and RoIAlign before they are restored, such as the scatters of pooled regions, is "data
movement"."""


if __name__ == "__main__":
    main()
