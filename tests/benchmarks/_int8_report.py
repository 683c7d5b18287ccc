"""The report of networks in int8, and its bars."""

from collections import Counter

from tests.benchmarks import _common as common
from tests.benchmarks._kernels import Step
from tests.benchmarks._models_on_gpu import PEAK

OURS = "int8", "float16"
THROUGHPUT, LATENCY, QUALITY, GAIN = "images/s", "p90, ms", "PSNR, dB", "times float16"
RETINANET, MASK_RCNN = "MLPerf's RetinaNet ResNeXt50, 800x800", "Mask R-CNN R50, 800x1333"
EDSR, THREAD = "EDSR-baseline x4, 540x960", "Sub-pixel network of apache/tvm #4523, 720x1280"
SECONDS = 2  # that each is timed for
STREAMS = 2  # at most, of those who compute batches at once
CANDIDATES = 1000  # that the NMS of MLPerf's network gets at least
LAYERS = 40  # of a network, in the table
BARS = {
    (RETINANET, 0, "int8", THROUGHPUT): (1000, 1924),
    (RETINANET, 0, "float16", THROUGHPUT): (600, 900),
    (RETINANET, 1, "int8", LATENCY): (1.9, 1.5),
    (MASK_RCNN, 8, "int8", THROUGHPUT): (1000, 1400),
    (MASK_RCNN, 1, "int8", LATENCY): (1.5, 1.1),
    **{
        (name, 1, "int8", figure): (bar, bar)
        for name in (EDSR, THREAD)
        for figure, bar in ((GAIN, 1.5), (QUALITY, 45.0))
    },
}

TEXT = f"""## Images a second

As in MLPerf's offline scenario: all images are in GPU memory, in float32, at their size, and batches of them
follow one another for {SECONDS} seconds, two different ones in turn. Counted is everything from the images
to the final detections, cut to their number, which the host waits for after each batch: normalization, the
network, NMS, and for Mask R-CNN the pasted masks. One thread does so, or {STREAMS}, each with a stream and a
network of its own, whichever is faster. Ours is replayed as a CUDA graph. torch is float16, with
weights in channels_last. Weights are seeded; candidates: the boxes that the last NMS gets, an image. For
comparison, TensorRT has 1,877 images/s on an H200 for MLPerf's network in int8, as submitted to MLPerf."""

LATENCIES = """## One image at a time

Milliseconds from the call to the end of the work, by the host's clock: the 90th percentile, as in MLPerf's
scenario of a single stream."""

QUALITIES = """## What super-resolution loses

PSNR versus torch in float32, in dB, where values are 0 to 1. The networks were trained here for a minute to
enlarge drawn shapes."""

PER_LAYER = f"""## Layers

Convolutions of equal shapes together, at the largest batch: how many there are, and of those in int8 how
many; their milliseconds, TFLOP/s, and floor, which is the time for their bytes or for their operations at
{PEAK / 1e12:.0f} TFLOP/s, twice as many in int8, whichever is longer. The {LAYERS} that take the longest are
listed, then all else together."""


def report(rows, bandwidth):
    parts = [TEXT, throughputs(rows), LATENCIES, latencies(rows)]
    if any(QUALITY in row["figures"]["int8"] for row in rows):
        parts += [QUALITIES, qualities(rows)]
    parts += [PER_LAYER]
    for row in largest_of_each(rows):
        parts += [f"### {row['name']}, batch {row['batch']}", layers(row, bandwidth), reasons(row)]
    return "\n\n".join([*parts, "## Bars", bars(rows)])


def throughputs(rows):
    who = list(dict.fromkeys(each for row in rows for each in row["figures"]))
    header = ["", *(f"{each}, {THROUGHPUT}" for each in who), "int8 / best torch", "candidates", "ready, s"]
    cells = []
    for row in rows:
        found = {each: figures[THROUGHPUT] for each, figures in row["figures"].items()}
        torchs = [figure for each, figure in found.items() if each not in OURS]
        cells.append(
            [
                f"{row['name']}, batch {row['batch']}",
                *(f"{found[each]:.0f}" if each in found else "-" for each in who),
                f"{found['int8'] / max(torchs):.2f}" if torchs else "-",
                "" if row["candidates"] is None else f"{row['candidates']:,}",
                f"{row['seconds']:.0f}",
            ]
        )
    return common.markdown_table(header, cells)


def latencies(rows):
    found = {
        row["name"]: {who: figures[LATENCY] for who, figures in row["figures"].items()}
        for row in rows
        if row["batch"] == 1
    }
    who = list(dict.fromkeys(each for figures in found.values() for each in figures))
    cells = [
        [name, *(f"{figures[each]:.2f}" if each in figures else "-" for each in who)]
        for name, figures in found.items()
    ]
    return common.markdown_table(["", *who], cells)


def qualities(rows):
    rows = [row for row in rows if QUALITY in row["figures"]["int8"]]
    cells = [[row["name"], *(f"{row['figures'][dtype][QUALITY]:.1f}" for dtype in OURS)] for row in rows]
    return common.markdown_table(["", *OURS], cells)


def largest_of_each(rows):
    return {row["name"]: row for row in sorted(rows, key=lambda row: row["batch"])}.values()


class Layers:
    """Convolutions of equal shapes, in one of the types."""

    def __init__(self, steps=()):
        self.steps = list(steps)

    @property
    def in_int8(self):
        return sum(step.inputs[0][1] == "int8" for step in self.steps)

    @property
    def ms(self):
        return sum(step.ms for step in self.steps)

    def cells(self, bandwidth):
        """Milliseconds, TFLOP/s and the floor."""
        if not self.steps:
            return ["-"] * 3
        operations = sum(step.operations for step in self.steps)
        floor = sum(step.floor_ms(bandwidth, PEAK) for step in self.steps)
        return [self.ms, f"{operations / self.ms / 1e9:.0f}" if operations else "", floor]


def layers(row, bandwidth):
    """A table of the convolutions of a network, the slowest first."""
    found = {dtype: by_shape(row["steps"][dtype]) for dtype in OURS}
    labels = dict.fromkeys(label for dtype in OURS for label in found[dtype])
    both = {label: [found[dtype].get(label, Layers()) for dtype in OURS] for label in labels}
    other = both.pop("", [Layers()] * len(OURS))
    ranked = sorted(both.items(), key=lambda item: -max(each.ms for each in item[1]))
    for _, of_both in ranked[LAYERS:]:
        other = [Layers(each.steps + more.steps) for each, more in zip(other, of_both)]
    whole = [Layers(Step(**each) for each in row["steps"][dtype]) for dtype in OURS]
    cells = [
        [label, f"{max(len(each.steps) for each in types)}", f"{types[0].in_int8}"]
        + [cell for each in types for cell in each.cells(bandwidth)]
        for label, types in [*ranked[:LAYERS], ("all else", other), ("all", whole)]
    ]
    header = ["data, filters", "layers", "in int8"]
    header += [f"{dtype}, {unit}" for dtype in OURS for unit in ("ms", "TFLOP/s", "floor")]
    return common.markdown_table(header, cells)


def by_shape(steps):
    """{"data, filters": Layers} of convolutions; "" has all else."""
    found = {}
    for step in (Step(**each) for each in steps):
        is_convolution = "conv2d_nhwc" in step.name
        shapes = ["x".join(map(str, shape)) for shape, _ in step.inputs[:2]]
        found.setdefault(", ".join(shapes) if is_convolution else "", Layers()).steps.append(step)
    return found


def reasons(row):
    """Why convolutions are not in int8, as a list."""
    counts = Counter(row["reasons"]).most_common()
    return "\n".join(f"- {count} not in int8: {reason}" for reason, count in counts) or "All are in int8."


def bars(rows):
    """A table of what was asked for, and what was measured."""
    cells = []
    for which, (bar, goal) in BARS.items():
        name, batch, dtype, figure = which
        measured = figure_of(rows, *which)
        reached = "-" if measured is None else "no"
        if measured is not None and reaches(measured, bar, figure):
            reached = "goal" if reaches(measured, goal, figure) else "bar"
        label = f"{name}, batch {batch or 'any'}, {dtype}: {figure}"
        cells.append(
            [label, f"{bar:,}", f"{goal:,}", "-" if measured is None else f"{measured:,.2f}", reached]
        )
    return common.markdown_table(["", "bar", "goal", "measured", "reached"], cells)


def missed(rows):
    """The bars that were measured and missed, and MLPerf's network if too little reaches its NMS."""
    found = []
    for which, (bar, _) in BARS.items():
        measured = figure_of(rows, *which)
        if measured is not None and not reaches(measured, bar, which[-1]):
            found.append(f"{which[0]} has {measured:.2f} {which[-1]} in {which[2]}, not {bar}")
    for row in rows:
        if row["name"] == RETINANET and row["candidates"] < CANDIDATES:
            found.append(f"the NMS of {RETINANET} gets {row['candidates']} boxes, not {CANDIDATES}")
    return found


def reaches(measured, wanted, figure):
    return measured <= wanted if figure == LATENCY else measured >= wanted


def figure_of(rows, name, batch, dtype, figure):
    """The best that was measured, or None."""
    found = [row["figures"] for row in rows if row["name"] == name and batch in (0, row["batch"])]
    if figure == GAIN:
        values = [each["int8"][THROUGHPUT] / each["float16"][THROUGHPUT] for each in found]
    else:
        values = [each[dtype][figure] for each in found if figure in each.get(dtype, {})]
    best = min if figure == LATENCY else max
    return best(values, default=None)
