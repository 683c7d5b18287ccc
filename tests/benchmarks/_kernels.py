"""What each kernel of a compiled network takes on the GPU, and the least that it could take."""

import json
import math
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from tests.benchmarks import _common as common

from tvm.contrib import graph_executor
from tvm.runtime import Device

REPEATS = 10
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "int64": 8, "float64": 8, "uint32": 4}


@dataclass
class Step:
    """One call of a compiled function: what it reads and writes, and its kernels with their milliseconds."""

    name: str
    inputs: list  # (shape, type) of each
    outputs: list
    kernels: dict = field(default_factory=dict)
    launches: int = 0

    @property
    def ms(self):
        return sum(self.kernels.values())

    @property
    def bytes(self):
        """Of memory that is read or written at least, if all of each tensor is needed."""
        return sum(math.prod(shape) * BYTES.get(dtype, 1) for shape, dtype in self.inputs + self.outputs)

    @property
    def operations(self):
        """Of a matrix product or a convolution; 0 of all else, whose floor is its memory."""
        results = math.prod(self.outputs[0][0])
        shapes = [shape for shape, _ in self.inputs]
        if "conv2d_nhwc_in_place" in self.name:  # of whose result it computes some channels
            results = math.prod(self.outputs[0][0][:3]) * shapes[1][0]
        if "conv2d_nhwc" in self.name:
            return 2 * results * math.prod(shapes[1][1:])
        if re.search(r"conv2d_transpose|dense|matmul", self.name):
            return 2 * results * shapes[0][-1]
        return 2 * results * math.prod(shapes[1][1:]) if "conv2d" in self.name and len(shapes[1]) == 4 else 0

    def floor_ms(self, bandwidth, peak):
        """The peak is that of 16-bit numbers; tensor cores multiply twice as many of int8."""
        if self.inputs and self.inputs[0][1] == "int8":
            peak = 2 * peak
        return max(self.bytes / bandwidth, self.operations / peak) * 1e3


def steps_of(lib, device, **inputs):
    """The steps of a graph executor's library, in order, as they run one by one; on a CPU, each runs once."""
    nodes, steps = _nodes(lib["get_graph_json"]())
    module = graph_executor.GraphModule(lib["debug_create"]("default", device))
    module.set_input(**inputs)
    module.run()  # and with it whatever a first run builds
    if device.device_type == Device.kDLCPU:
        for node, step in steps.items():
            step.kernels["host"] = common.wall_once(partial(module.module["execute_node"], node))
            step.launches = 1
        return nodes, steps
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(REPEATS):
            for node in steps:
                with torch.profiler.record_function(f"node {node}"):
                    module.module["execute_node"](node)
                    torch.cuda.synchronize()
    launches = Counter()
    for node, name, microseconds in kernels_by_node(profiler):
        kernels = steps[node].kernels
        kernels[name] = kernels.get(name, 0.0) + microseconds / 1e3 / REPEATS
        launches[node] += 1
    for node, count in launches.items():
        steps[node].launches = round(count / REPEATS)
    return nodes, steps


def _nodes(graph):
    """The graph's nodes, and {index: Step} of those that run something."""
    graph = json.loads(graph)
    nodes, rows, attrs = graph["nodes"], graph["node_row_ptr"], graph["attrs"]
    entries = list(zip(attrs["shape"][1], attrs["dltype"][1]))
    steps = {}
    for index, node in enumerate(nodes):
        if node["op"] == "tvm_op" and node["attrs"]["func_name"] != "__nop":
            inputs = [entries[rows[source] + output] for source, output, _ in node["inputs"]]
            name = re.sub(r"^(tvmgen_default_)?(fused_)?", "", node["attrs"]["func_name"])
            steps[index] = Step(name, inputs, entries[rows[index] : rows[index + 1]])
    return nodes, steps


def kernels_by_node(profiler):
    """(node, name, microseconds) of each kernel, of nodes that ran as `record_function("node 7")`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    ranges = sorted(
        (event["ts"], event["ts"] + event["dur"], int(event["name"].split()[1]))
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("node ")
    )
    at = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            while at < len(ranges) and ranges[at][1] <= event["ts"]:
                at += 1
            if at < len(ranges) and ranges[at][0] <= event["ts"]:
                yield ranges[at][2], event["name"], event["dur"]
