"""Bring a float32 network to half precision, where that is enough."""

import topi_ext.conv2d_nhwc  # noqa: F401  registers the operator

import tvm
from tvm import relay
from tvm.relay.op import op as registry
from tvm.relay.transform import mixed_precision as stock

# What TVM does not know of, and would go back to float32 for.
KINDS = {
    "nn.space_to_depth": stock.generic_follow_op,
    "layout_transform": stock.generic_follow_op,
    "topi_ext.conv2d_nhwc": stock.generic_always_op,
}
for _name, _kind in KINDS.items():
    if relay.op.get(_name).get_attr("FTVMMixedPrecisionConversionType") is None:
        registry.register_mixed_precision_conversion(_name, _kind)


def InMixedPrecision(dtype="float16"):
    """TVM's ToMixedPrecision, which keeps the types of inputs and results, with the weights cast here.

    What sums many elements, such as the mean over a picture, stays in float32.
    """

    def transform(mod, _context):
        current = tvm.transform.PassContext.current()
        config = {**current.config, "relay.ToMixedPrecision.keep_orig_output_dtype": True}
        with tvm.transform.PassContext(opt_level=3, config=config):
            mod = relay.transform.InferType()(mod)
            mod = relay.transform.ToMixedPrecision(dtype, missing_op_mode=2)(mod)
            return relay.transform.FoldConstant()(mod)

    return tvm.transform.module_pass(transform, opt_level=0, name="InMixedPrecision")
