"""The time on the GPU of each stage of a two-stage detector that the graph executor runs."""

import json
import tempfile
from pathlib import Path

import torch

from tvm.contrib import graph_executor

PREPROCESS, ROI_ALIGN, PASTE = "topi_ext_preprocess", "topi_ext_multiscale_roi_align", "topi_ext_paste_masks"
STAGES = ("preprocess", "backbone", "rpn", "box head", "mask head", "paste")
REPEATS = 10


def stage_times(lib, device, **inputs):
    """{stage: (milliseconds, kernels)} of a graph executor's library."""
    graph = lib["get_graph_json"]()
    nodes = json.loads(graph)["nodes"]
    stages = _stages(nodes)
    module = graph_executor.GraphModule(lib["debug_create"]("default", device))
    module.set_input(**inputs)
    module.run()  # and with it whatever a first run builds
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(REPEATS):
            for index in stages:
                with torch.profiler.record_function(f"node {index}"):
                    module.module["execute_node"](index)
                    torch.cuda.synchronize()
    found = dict.fromkeys(STAGES, (0.0, 0))
    for index, duration in _kernels(profiler):
        time, count = found[stages[index]]
        found[stages[index]] = time + duration / 1e3 / REPEATS, count + 1 / REPEATS
    return {stage: (time, round(count)) for stage, (time, count) in found.items()}


def _stages(nodes):
    """{node that runs something: its stage}, by what it depends on."""
    above = []
    for index, node in enumerate(nodes):
        below = {index}.union(*(above[source] for source, *_ in node["inputs"]))
        above.append(below)

    def named(part):
        return [
            index for index, node in enumerate(nodes) if part in node.get("attrs", {}).get("func_name", "")
        ]

    of_boxes, of_masks = named(ROI_ALIGN)
    *maps, regions = (source for source, *_ in nodes[of_boxes]["inputs"])
    *_, detections = (source for source, *_ in nodes[of_masks]["inputs"])
    ends = {
        "preprocess": set().union(*(above[index] for index in named(PREPROCESS))),
        "backbone": set().union(*(above[index] for index in maps)),
        "rpn": above[regions],
        "box head": above[detections],
        "paste": set(named(PASTE)),
    }
    return {
        index: next((stage for stage, inside in ends.items() if index in inside), "mask head")
        for index, node in enumerate(nodes)
        if node["op"] == "tvm_op" and node["attrs"]["func_name"] != "__nop"
    }


def _kernels(profiler):
    """(node, microseconds) of each kernel and copy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    ranges = sorted(
        (event["ts"], event["ts"] + event["dur"], int(event["name"].split()[1]))
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("node ")
    )
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            node = next((node for start, end, node in ranges if start <= event["ts"] < end), None)
            if node is not None:
                yield node, event["dur"]
