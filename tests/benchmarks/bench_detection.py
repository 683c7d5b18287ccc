"""Time Mask R-CNN versus torchvision: `python -m tests.benchmarks.bench_detection`.

The image has so many shapes that 100 detections are found, the most that the model returns.
`bench_detection_accuracy` measures what is found in float16, and `bench_detection_batch` times a batch.
"""

import argparse

import torch

from tests.benchmarks import _common as common
from tests.benchmarks._detector import (
    SPEED,
    add_options,
    autocast,
    begin,
    built,
    crowd,
    environment,
    median_wall_ms,
    prepared,
    speed,
    speed_as_table,
)
from tests.benchmarks._stages import STAGES, stage_times
from tests.profiled import profiled
from tvm_passes import ReturnRawMasks

import tvm


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, training=120)
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    note, model, target = begin(options)
    mod = prepared(model, 1, target)
    pasting = built(mod, target)
    note("compiled")
    where = environment(target)
    (name,) = pasting.inputs
    stages = stage_times(pasting.lib, tvm.cuda(0), **{name: tvm.nd.array(crowd().cpu().numpy())})
    ours = {"pasted masks": pasting, "raw masks": built(ReturnRawMasks()(mod), target)}
    note("raw masks compiled")
    rows = speed(model, ours, 1)
    more = ["", waits(pasting), "", STAGE, "", stages_as_table(stages)]

    def publish():
        parts = [where, "", SPEED, "", speed_as_table(rows), *more]
        common.publish("detection", "Mask R-CNN", "\n".join(parts))

    publish()  # torch.compile may take longer than there is time
    if not options.without_compile:
        rows[0][3]["torch.compile, autocast"] = by_torch_compile(model)
        publish()


STAGE = """## Time of each stage

Milliseconds on the GPU alone, and the number of kernels."""


def by_torch_compile(model):
    optimised, image = torch.compile(model), crowd()
    with torch.no_grad():
        return median_wall_ms(autocast(lambda: optimised([image])), common.REPEATS)


def waits(ours):
    """How often the host waits in a call, as a sentence."""
    image = crowd()
    calls = profiled(lambda: ours(image))
    copies = sum("Memcpy DtoH" in name for name in calls)
    waited = sum(name.startswith("cu") and "Synchronize" in name for name in calls)
    return f"Copies from the device to the host per call of ours: {copies}; waits for the device: {waited}."


def stages_as_table(stages):
    rows = [[stage, stages[stage][0], f"{stages[stage][1]}"] for stage in STAGES]
    total = [sum(column) for column in zip(*stages.values())]
    return common.markdown_table(["", "ms", "kernels"], [*rows, ["all", total[0], f"{total[1]}"]])


if __name__ == "__main__":
    main()
