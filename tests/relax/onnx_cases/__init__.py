"""Nodes of ONNX with arguments that are not their defaults, and models that are made of them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.relax.onnx_cases.elementwise import ELEMENTWISE
from tests.relax.onnx_cases.half import SUMS_OF_HALF
from tests.relax.onnx_cases.layers import LAYERS
from tests.relax.onnx_cases.quantization import QUANTIZATION
from tests.relax.onnx_cases.reductions import REDUCTIONS
from tests.relax.onnx_cases.sampling import SAMPLING
from tests.relax.onnx_cases.shapes import ONLY_KNOWN, SHAPES

FAMILIES = {
    "elementwise": ELEMENTWISE,
    "shapes": SHAPES,
    "layers": LAYERS,
    "quantization": QUANTIZATION,
    "reductions": REDUCTIONS,
    "sampling": SAMPLING,
    "sums of half": SUMS_OF_HALF,
    "quantized once": {name: each for name, each in QUANTIZATION.items() if "zeLinear" in name},
    "only known": ONLY_KNOWN,
}


def model_of(cases, opset, all_known=False):
    """A model with a node for each case, and what its inputs are."""
    nodes, weights, inputs, outputs, given = [], [], [], [], {}
    for name, (op_type, arrays, known, attributes, _, count) in cases.items():
        names = []
        for at, array in enumerate(arrays):
            names.append("" if array is None else f"{name}.{at}")
            if array is None:
                continue
            if at in known or all_known:
                weights.append(numpy_helper.from_array(np.asarray(array), names[-1]))
            else:
                given[names[-1]] = array
                type_ = helper.np_dtype_to_tensor_dtype(array.dtype)
                inputs.append(helper.make_tensor_value_info(names[-1], type_, array.shape))
        results = [f"{name}:{at}" for at in range(count)]
        nodes.append(helper.make_node(op_type, names, results, name, **attributes))
        outputs += [helper.make_tensor_value_info(each, TensorProto.UNDEFINED, None) for each in results]
    graph = helper.make_graph(nodes, "cases", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    typed = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in graph.output:
        first = cases[output.name.partition(":")[0]].inputs[0]
        elem_type = typed[output.name].type.tensor_type.elem_type
        output.type.tensor_type.elem_type = elem_type or helper.np_dtype_to_tensor_dtype(first.dtype)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, given
