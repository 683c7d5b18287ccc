"""Bring a float32 network to half precision, where that is enough."""

import tvm
from tvm import relay
from tvm.relay.op import op as registry
from tvm.relay.transform import mixed_precision as stock

# It moves elements only; TVM has forgotten it, and would go back to float32 for it.
if relay.op.get("nn.space_to_depth").get_attr("FTVMMixedPrecisionConversionType") is None:
    registry.register_mixed_precision_conversion("nn.space_to_depth", stock.generic_follow_op)


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
