"""Networks run operator by operator, by ONNX Runtime or PyTorch, so that `explain`'s rules can vary them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .explain import Arrays, Compute, Oracle, Vary


def torch_oracle(model: torch.nn.Module, inputs: Arrays) -> Oracle:
    def run(vary: Vary) -> Arrays:
        tensors = [torch.from_numpy(array.copy()) for array in inputs]
        with torch.no_grad(), _Varied(vary):
            return flat(model(*tensors))

    return run


def flat(result: Any) -> Arrays:
    """The tensors in what a module returns, in order, as arrays."""
    if isinstance(result, torch.Tensor):
        return [result.detach().numpy()]
    parts = result.values() if isinstance(result, dict) else result
    return [array for part in parts if part is not None for array in flat(part)]


class _Varied(TorchDispatchMode):
    """Gives each operator that PyTorch runs to `vary`."""

    def __init__(self, vary: Vary) -> None:
        super().__init__()
        self._vary = vary

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = func.overloadpacket.__name__
        leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        at = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        is_in_place = func._schema.is_mutable or any(
            leaf.dtype == torch.bfloat16 for leaf in map(leaves.__getitem__, at)
        )
        if not at or is_in_place or _is_view(func):
            return func(*args, **kwargs)
        given = [leaves[place] for place in at]
        arrays = [tensor.detach().numpy() for tensor in given]
        results: list[Any] = []

        def compute(values: Arrays) -> Arrays:
            for place, tensor, array, value in zip(at, given, arrays, values):
                leaves[place] = (
                    tensor
                    if value is array
                    else torch.from_numpy(np.ascontiguousarray(value)).reshape(tensor.shape)
                )
            new_args, new_kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
            result = func(*new_args, **new_kwargs)
            results[:] = [result]
            outputs, _ = torch.utils._pytree.tree_flatten(result)
            return [output.numpy() for output in outputs if isinstance(output, torch.Tensor)]

        outputs = self._vary(op, arrays, compute)
        parts, result_spec = torch.utils._pytree.tree_flatten(results[0])
        varied = iter(outputs)
        parts = [
            torch.from_numpy(np.ascontiguousarray(next(varied))).reshape(part.shape)
            if isinstance(part, torch.Tensor)
            else part
            for part in parts
        ]
        return torch.utils._pytree.tree_unflatten(parts, result_spec)


def _is_view(func: Any) -> bool:
    return any(argument.alias_info is not None for argument in func._schema.arguments)


class OnnxOracle:
    """ONNX Runtime, a session for each node, or ONNX's own evaluator for those that it has no kernel for."""

    def __init__(self, model: Any, inputs: dict[str, np.ndarray]) -> None:
        self._model = model
        self._inputs = inputs
        self._sessions: dict[tuple, Any] = {}
        self.names = [output.name for output in model.graph.output]

    def __call__(self, vary: Vary) -> Arrays:
        values = self.values(vary)
        return [values[name] for name in self.names]

    def values(self, vary: Vary) -> dict[str, np.ndarray]:
        """Every tensor of the model by name."""
        import onnx

        graph = self._model.graph
        values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
        values.update(self._inputs)
        for place, node in enumerate(graph.node):
            names = reads(node)
            outputs = vary(
                node.op_type.lower(), [values[name] for name in names], self._compute(place, node, names)
            )
            values.update(zip([name for name in node.output if name], outputs))
        return values

    def _compute(self, place: int, node: Any, names: list[str]) -> Compute:
        def compute(arrays: Arrays) -> Arrays:
            key = (place, *((array.dtype, array.shape) for array in arrays))
            if key not in self._sessions:
                self._sessions[key] = _session(_alone(self._model, node, dict(zip(names, arrays))))
            return self._sessions[key].run(None, dict(zip(names, arrays)))

        return compute


def reads(node: Any) -> list[str]:
    """The names of the tensors that a node reads, its branches and bodies too."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            made = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
            made.update(name for inner in graph.node for name in inner.output)
            names += [name for inner in graph.node for name in reads(inner) if name not in made]
            names += [output.name for output in graph.output if output.name not in made]
    return [name for name in dict.fromkeys(names) if name]


def _alone(model: Any, node: Any, values: dict[str, np.ndarray]) -> Any:
    """A model of one node."""
    import onnx
    from onnx import helper

    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in values.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=8)


def _session(model: Any) -> Any:
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        if model.graph.node[0].op_type == "Resize":
            raise  # ONNX's own takes minutes, and has coordinates of float64 where others have float32
        return ReferenceEvaluator(model)
