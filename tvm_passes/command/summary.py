"""What the passes made of a model, in sentences: the first lines of `tvm-passes inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topi_ext.batched_nms.op import NAME as NMS
from topi_ext.conv2d_nhwc.op import NAME as CONV2D

import tvm
from tvm import relay
from tvm.relay.ty import is_dynamic

from ..analysis.limits import limits
from ..analysis.targets import is_for_gpu
from ..engine.expressions import location, op_name
from ..engine.graph import Graph
from .history import History
from .text import places
from .work import Work

STOCK_NMS = ("vision.non_max_suppression", "vision.all_class_non_max_suppression")
RESTORING = ("RestoreBatchedNMS", "MergeClassLoops")  # passes
PRODUCTS = (CONV2D, "nn.conv2d", "nn.conv2d_transpose", "nn.dense", "nn.matmul", "nn.batch_matmul")
MOST_CLASSES = 1 << 16  # more than this is what the type of the ids holds, and no number of classes
REFUSED = {  # by the pass: what a refusal means to the user, and what would change it
    "RestoreBatchedNMS": (
        "an NMS is left as the model has it",
        "docs/restored_nms.md shows the spellings that are known",
    ),
    "MergeClassLoops": (
        "a loop over classes is left as it is",
        "repetitions that differ in constants and slices only are computed at once",
    ),
    "MakeDetectionStatic": (
        "shapes stay dynamic",
        "a constant number of rows there, such as a top-k takes, makes them static",
    ),
    "InMixedPrecision": ("a product stays in float32", "--dtype bfloat16 has the range of float32"),
}


def sentences(work: Work, history: History) -> list[str]:
    """One of what was found; then one for each thing that is not restored, static, or in half precision."""
    graph = Graph(relay.transform.InferType()(history.module)["main"])
    found = "; ".join(
        [*_nms(graph, history), *_shuffles(graph), _shapes(graph, work, history), *_types(graph, work)]
    )
    return [_sentence(found), *_left(graph), *_refused(history)]


# --- the first sentence


def _nms(graph: Graph, history: History) -> Iterator[str]:
    calls = [node for node in graph.nodes if op_name(node) == NMS]
    if not calls and not any(op_name(node) in STOCK_NMS for node in graph.nodes):
        yield "no NMS"
    sizes: dict[str, Counter[str]] = {"class-aware": Counter(), "single-class": Counter()}
    for call in calls:
        classes = _classes(graph, call.args[2])
        kind = "single-class" if classes == 1 else "class-aware"
        of_classes = f" and up to {classes:,} classes" if classes and classes > 1 else ""
        sizes[kind][f"over {_boxes(call)}{of_classes}"] += 1
    was_restored = any(each.name in RESTORING and each.rewrites for each in history.steps)
    for kind, counts in sizes.items():
        if counts:
            each_size = (f"{count} times {over}" if count > 1 else over for over, count in counts.items())
            restored = " restored" * (was_restored and kind == "class-aware")
            yield f"{kind} NMS {', and '.join(each_size)}{restored}"


def _boxes(nms: relay.Call) -> str:
    number = nms.args[0].checked_type.shape[-2]
    known = isinstance(number, tvm.tir.IntImm)
    return f"{int(number):,} boxes" if known else "boxes whose number only the run knows"


def _classes(graph: Graph, ids: relay.Expr) -> int | None:
    """How many classes there may be, if that is known."""
    least, greatest = limits(graph, ids)
    return int(greatest - least) + 1 if greatest - least < MOST_CLASSES else None


def _shuffles(graph: Graph) -> Iterator[str]:
    within = sum(op_name(node) == CONV2D and int(node.attrs["block_size"]) > 1 for node in graph.nodes)
    alone = sum(op_name(node) == "nn.depth_to_space" for node in graph.nodes)
    counts = [f"{within} by the convolution before"] * bool(within) + [f"{alone} alone"] * bool(alone)
    if counts:
        yield f"depth_to_space computed {' and '.join(counts)}"


def _shapes(graph: Graph, work: Work, history: History) -> str:
    if not any(is_dynamic(node.checked_type) for node in graph.nodes if not isinstance(node, tvm.ir.Op)):
        return "static"
    tried = [each for each in history.steps if each.name == "MakeDetectionStatic"]
    if any(each.rewrites for each in tried):
        return "static up to the outputs, which are cut to what is found"
    asks = "" if tried or work.pipeline != "detection" else " (static ones by --outputs padded)"
    return f"shapes are dynamic{asks}"


def _types(graph: Graph, work: Work) -> Iterator[str]:
    """The types that convolutions and matrix products multiply, and which ones are not in half precision."""
    products = [node for node in graph.nodes if op_name(node) in PRODUCTS]
    halves = {_dtype(node) for node in products} - {"float32"}
    if halves:
        yield " and ".join(sorted(halves)) + (" on tensor cores" if is_for_gpu(work.target) else "")
        rest = [node for node in products if _dtype(node) == "float32"]
        if rest:
            named = places(f"{op_name(node)} {location(node)}".strip() for node in rest)
            yield f"{len(rest)} {'operator' if len(rest) == 1 else 'operators'} in float32: {named}"
    elif products:
        yield "float32"


def _dtype(product: relay.Call) -> str:
    return str(product.args[0].checked_type.dtype)


# --- what is not restored, static, or in half precision


def _left(graph: Graph) -> Iterator[str]:
    _, advice = REFUSED["RestoreBatchedNMS"]
    for node in graph.nodes:
        if op_name(node) in STOCK_NMS:
            yield _sentence(f"at {location(node) or '?'}, TVM's own {op_name(node)} is left ({advice})")


def _refused(history: History) -> Iterator[str]:
    for each in history.steps:
        if each.name in REFUSED:
            means, advice = REFUSED[each.name]
            found: dict[str, list[str]] = {}
            for outcome in each.refusals:
                found.setdefault(outcome.reason, []).append(outcome.location)
            for reason, where in found.items():
                at = f" at {places(where)}" if any(where) else ""
                yield _sentence(f"{means}{at}: {reason} ({advice})")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
