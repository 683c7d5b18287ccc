"""Time deformable attention versus torch: `python -m tests.benchmarks.bench_deformable_attention`.

torch has what the networks of transformers have: a `grid_sample` for each level, whose results are stacked,
multiplied by the weights and added; as it is, and by `torch.compile`. It gets the tensors as a network has
them, (images, pixels, heads, channels), and so does ours as it is imported; the operator alone gets them in
its own order. Of float16 the operator alone is timed, since torch cannot trace a grid sample of it on a CPU.

Our results are compared with those of torch before they are timed.
"""

import argparse

import torch

import frontends
import tvm_passes
from tests.benchmarks import _common as common
from tests.models.attention import DeformableAttention, attention_inputs
from topi_ext import deformable_attention

from tvm import relay

HEADS, WIDTH, POINTS = 8, 32, 4
OF_800 = (100, 134), (50, 67), (25, 34), (13, 17)  # levels of an image of 800x1066
OF_640 = (80, 80), (40, 40), (20, 20)
CASES = {
    "encoder, 800x1066": (OF_800, sum(height * width for height, width in OF_800)),
    "decoder, 800x1066": (OF_800, 300),
    "decoder, 640x640": (OF_640, 300),
}
TOLERANCE = {"float32": 1e-3, "float16": 2e-2}

NOTES = f"""One image, {HEADS} heads of {WIDTH} channels, {POINTS} points a level; the encoder of Deformable
DETR has a query for each pixel, the decoders 300. Milliseconds on the GPU. floor: the time to read all inputs
once and to write the result once, at the bandwidth of a copy."""


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["", "operator", "graph", "torch", "torch.compile", "best torch / operator", "floor"]
    rows = [
        measured(name, *case, dtype, bandwidth)
        for name, case in CASES.items()
        for dtype in ("float32", "float16")
    ]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES]
    common.publish("deformable_attention", "Multi-scale deformable attention", "\n".join(text))


def measured(name, shapes, queries, dtype, bandwidth):
    counts = [POINTS] * len(shapes)
    network = DeformableAttention(shapes, counts).eval()
    inputs = [
        each.to(getattr(torch, dtype)) for each in attention_inputs(shapes, counts, queries, HEADS, WIDTH)
    ]
    on_gpu = [each.cuda() for each in inputs]
    with torch.no_grad():
        compiled = torch.compile(network)
        theirs, by_compiler = lambda: network(*on_gpu), lambda: compiled(*on_gpu)
        expected = theirs()  # in the type of ours, since the points are rounded to it
        whole = "-"
        if dtype == "float32":
            graph = by_graph(network, inputs, on_gpu)
            same(common.outputs_of(graph)[0], expected, TOLERANCE[dtype])
            whole = common.median_ms(graph.run)
        times = {"torch": common.median_ms(theirs), "torch.compile": common.median_ms(by_compiler)}
    operator, found = by_operator(shapes, on_gpu)
    of_heads = found.view(1, HEADS, queries, WIDTH).transpose(1, 2).reshape(expected.shape)
    same(of_heads, expected, TOLERANCE[dtype])
    moved = sum(each.numel() for each in [*inputs, found]) * inputs[0].element_size()
    alone = common.median_ms(operator.run)
    cells = [f"{name}, {dtype}", alone, whole, *times.values(), f"{min(times.values()) / alone:.1f}"]
    cells.append(moved / bandwidth * 1e3)
    print(cells, flush=True)
    return cells


def by_graph(network, inputs, on_gpu):
    """The network as it is imported and compiled."""
    mod, params = frontends.from_pytorch(network, tuple(inputs))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    target = common.tensor_core_target()
    module = common.compile_for_gpu(
        tvm_passes.detection_pipeline(target)(mod)["main"], *on_gpu, target=target
    )
    module.run()
    return module


def by_operator(shapes, on_gpu):
    """The operator alone, and its result."""
    value, points, weights = (each.transpose(1, 2).flatten(0, 1).contiguous() for each in on_gpu)
    variables = [
        relay.var(name, shape=tuple(each.shape), dtype=str(each.dtype).removeprefix("torch."))
        for name, each in (("value", value), ("points", 2 * points - 1), ("weights", weights))
    ]
    call = deformable_attention(*variables, levels=[(*shape, POINTS) for shape in shapes])
    module = common.compile_for_gpu(relay.Function(variables, call), value, 2 * points - 1, weights)
    module.run()
    return module, common.outputs_of(module)[0]


def same(found, expected, tolerance):
    difference = (found.float() - expected.float()).abs().max().item()
    if difference > tolerance:
        raise SystemExit(f"the results differ from torch's by {difference}: nothing was timed")


if __name__ == "__main__":
    main()
