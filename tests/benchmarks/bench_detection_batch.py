"""Time Mask R-CNN on a batch versus torchvision: `python -m tests.benchmarks.bench_detection_batch`."""

import argparse

from tests.benchmarks import _common as common
from tests.benchmarks._detector import (
    SPEED,
    add_options,
    begin,
    built,
    environment,
    prepared,
    speed,
    speed_as_table,
)

BATCH = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, training=120)
    note, model, target = begin(parser.parse_args())
    ours = built(prepared(model, BATCH, target), target)
    note("compiled")
    rows = speed(model, {"pasted masks": ours}, BATCH)
    text = [environment(target), "", SPEED, "", speed_as_table(rows)]
    common.publish("detection_batch", "Mask R-CNN of a batch", "\n".join(text))


if __name__ == "__main__":
    main()
