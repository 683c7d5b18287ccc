"""Small ONNX models for the tests, and what computes them: onnx's own reference."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm
from tvm import relay

OPSET = 16


def tensor_input(name, shape, dtype="float32"):
    """An input; in its shape a string is a symbolic size and None an unknown one; None for it is no shape."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def weights(**arrays):
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def model_of(nodes, inputs, outputs, initializers=(), opset=OPSET, domains=()):
    """A model; outputs are names, whose types nothing reads."""
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def convolution(seed=0):
    """A convolution and what follows it: enough to be a network."""
    values = np.random.default_rng(seed)
    return model_of(
        [
            helper.make_node("Conv", ["image", "kernel", "bias"], ["conv"], "conv", kernel_shape=[3, 3]),
            helper.make_node("Relu", ["conv"], ["features"], "relu"),
            helper.make_node("GlobalAveragePool", ["features"], ["mean"], "pool"),
        ],
        [tensor_input("image", (1, 3, 8, 8))],
        ["features", "mean"],
        weights(
            kernel=values.normal(size=(4, 3, 3, 3)).astype("float32"),
            bias=values.normal(size=4).astype("float32"),
        ),
    )


def compiled(mod):
    """An imported module on LLVM, which may be dynamic: a function from arrays to a list of arrays."""
    with tvm.transform.PassContext(opt_level=3):
        executable = relay.vm.compile(mod, "llvm")
    machine = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu())

    def compute(*arrays):
        result = machine.run(*map(tvm.nd.array, arrays))
        return [part.numpy() for part in ([result] if isinstance(result, tvm.nd.NDArray) else result)]

    return compute


def run(mod, *arrays):
    """The outputs of an imported module on LLVM."""
    return compiled(mod)(*arrays)


def reference(model, *arrays):
    names = [value.name for value in model.graph.input]
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays)))


def assert_matches_reference(mod, model, *arrays, rtol=1e-5, atol=1e-5):
    """Assert that what was imported computes what onnx's reference does, in the same types."""
    for found, expected in zip(run(mod, *arrays), reference(model, *arrays)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def operators(mod):
    """The names of the Relay operators in `main`."""
    names = []

    def visit(expr):
        if isinstance(expr, relay.Call) and isinstance(expr.op, tvm.ir.Op):
            names.append(expr.op.name)

    relay.analysis.post_order_visit(mod["main"], visit)
    return names
