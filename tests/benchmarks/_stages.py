"""The time on the GPU of each stage of a two-stage detector that the graph executor runs."""

from tests.benchmarks._kernels import steps_of

PREPROCESS, ROI_ALIGN, PASTE = "topi_ext_preprocess", "topi_ext_multiscale_roi_align", "topi_ext_paste_masks"
STAGES = ("preprocess", "backbone", "rpn", "box head", "mask head", "paste")


def stage_times(lib, device, **inputs):
    """{stage: (milliseconds, kernels)} of a graph executor's library."""
    nodes, steps = steps_of(lib, device, **inputs)
    stages = _stages(nodes)
    found = dict.fromkeys(STAGES, (0.0, 0))
    for index, step in steps.items():
        time, count = found[stages[index]]
        found[stages[index]] = time + step.ms, count + step.launches
    return found


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
