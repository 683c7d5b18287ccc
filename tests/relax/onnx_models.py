"""ONNX models that torch exports, or that are made of nodes, and what ONNX Runtime computes with them."""

import io

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def in_onnxruntime(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    path = model if isinstance(model, bytes) else model.SerializeToString()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, inputs)))


def exported(model, *inputs, opset=17, **options):
    file = io.BytesIO()
    names = [f"input.{at}" for at in range(len(inputs))]
    torch.onnx.export(model, inputs, file, opset_version=opset, dynamo=False, input_names=names, **options)
    return onnx.load_from_string(file.getvalue()), dict(zip(names, (each.numpy() for each in inputs)))


def graph_of(nodes, inputs, outputs, weights=()):
    return helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights],
    )


def of_graph(*arguments, opset=17):
    return helper.make_model(
        graph_of(*arguments), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
