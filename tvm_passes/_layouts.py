"""Let TVM's ConvertLayout go through nn.depth_to_space and nn.space_to_depth, which have a layout but do not say so."""

import tvm
from tvm import relay
from tvm.relay.op import op as registry
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

SHUFFLES = {"nn.depth_to_space": relay.nn.depth_to_space, "nn.space_to_depth": relay.nn.space_to_depth}
LAYOUTS = ("NCHW", "NHWC")  # what TVM has kernels for


def _register(name, build):
    def attributes(attrs, layout):
        values = {"block_size": int(attrs.block_size), "layout": layout}
        return {**values, "mode": str(attrs.mode)} if "mode" in attrs.keys() else values

    def convert(attrs, args, _types, desired):
        return build(args[0], **attributes(attrs, str(desired[0])))

    def infer(attrs, new_in_layouts, _old_in_layouts, _old_in_types):
        given = [layout.name for layout in new_in_layouts or () if layout]
        layout = given[0] if given and given[0] in LAYOUTS else str(attrs.layout)
        layouts = [tvm.tir.layout(layout)]
        new = build(relay.var("x", shape=(1, 1, 1, 1)), **attributes(attrs, layout)).attrs
        return InferCorrectLayoutOutput(layouts, layouts, new)

    registry.register_convert_op_layout(name, convert)
    relay.op.get(name).set_attr("FInferCorrectLayout", infer)


for _name, _build in SHUFFLES.items():
    if not relay.op.get(_name).has_attr("FInferCorrectLayout"):  # TVM keeps it, even if this is imported again
        _register(_name, _build)
