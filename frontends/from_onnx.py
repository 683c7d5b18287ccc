"""Imports ONNX models into Relay, like TVM's own importer, in a fraction of the time."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType

import onnx

from topi_ext.quiet import quiet, without_warnings_of
from tvm_passes.progress import progress_bar

import tvm
from tvm import relay

from . import _late_shapes
from ._canonical import canonicalize
from ._onnx.by_others import is_defined_by_others
from ._onnx.check import check_model, opset_of
from ._onnx.check_result import check_result
from ._onnx.describe import describe
from ._onnx.importer import load_importer
from ._onnx.interface import check_outputs, inline_functions, input_shapes
from ._onnx.load import graphs_of, load_model
from ._onnx.operators import OF_PLUGINS
from ._onnx.order import in_order
from ._types import IntExpr, type_errors_into
from .camera import Camera, feed, settle
from .errors import ImportFailure, gist

DOMAINS = {  # TVM's importer looks operators up by name only; they are from these domains
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "org.pytorch.aten",
}
# As ONNX Runtime has them: others that are named as one of ONNX, such as Unique, differ from that.
OF_MICROSOFT = {
    *("Attention", "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "CDist"),
    *("ConvTransposeWithDynamicPads", "DequantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"),
    *("EmbedLayerNormalization", "ExpandDims", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul"),
    *("FusedMatMulActivation", "GatherND", "Gelu", "GemmFastGelu", "GridSample", "GroupNorm", "Inverse"),
    *("MatMulInteger16", "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "NhwcConv"),
    *("NhwcFusedConv", "NhwcMaxPool", "Pad", "QAttention", "QGemm", "QLinearAdd", "QLinearAveragePool"),
    *("QLinearConcat", "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul"),
    *("QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QuantizeLinear", "QuickGelu", "Range"),
    *("RotaryEmbedding", "SimplifiedLayerNormalization", "SkipGroupNorm", "SkipLayerNormalization"),
    *("SkipSimplifiedLayerNormalization", "TransposeMatMul", "Trilu"),
}
OF_DOMAINS = {
    "com.microsoft": OF_MICROSOFT,
    **{domain: OF_PLUGINS for domain in ("TRT", "mmcv", "mmdeploy")},
}
MICROSOFTS = {"Attention", "RotaryEmbedding"}  # operators of ONNX too, which has others by these names


def from_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    freeze_params: bool = True,
    camera: Camera | None = None,
) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Import an ONNX model into Relay; `(mod, params)` are what `relay.frontend.from_onnx` returns.

    Parameters
    ----------
    model : str, os.PathLike or onnx.ModelProto
        The path of a model, whose weights may be in files beside it, or the model itself. It is not changed.
    shapes : dict of str to tuple, optional
        The shapes of inputs, by name: to give a shape that the model lacks, to fix symbolic sizes, or to
        change fixed sizes. None stands for a size that is known only at run time. A symbolic size that is
        not fixed here is such a size.
    freeze_params : bool
        True, the default, makes the weights constants of `mod`, and `params` is empty. False makes them
        parameters of `main`, in `params`; an operator that needs one at import, such as the new shape of a
        `Reshape`, may then fail or stay dynamic.
    camera : Camera, optional
        The uint8 images that `main` takes in place of the model's only input, which is computed from them.
        Sizes of the input that neither the model nor `shapes` fixes are the camera's.
        `tvm_passes.FoldPreprocessing` makes this one kernel.

    Returns
    -------
    mod : tvm.IRModule
        Typed. `main` has the attributes `input_names` and `output_names`. Each call's span names the ONNX
        node that it comes from.
    params : dict of str to tvm.nd.NDArray
        The weights that are not frozen.

    Raises
    ------
    ImportFailure
        If the model cannot be read, is not complete, lacks the shape of an input, or has an operator that
        cannot be converted, or if the camera's images do not suit it.
    """
    with quiet(), without_warnings_of("onnx", "tvm"):
        model = in_order(load_model(model))
        check_model(model)
        model = inline_functions(model)
        importer = load_importer()
        opset = opset_of(model)
        has_converter = functools.partial(_has_converter, importer._get_convert_map(opset))
        _check_operators(model, opset, has_converter)
        importer.GraphProto.has_converter = staticmethod(has_converter)
        check_outputs(model.graph)
        given = input_shapes(model.graph, shapes or {})
        inputs = {
            name: [relay.Any() if size is None else size for size in shape] for name, shape in given.items()
        }
        if camera is not None:
            inputs = settle(camera, inputs)
        # A context of its own, so that one around the call (opt_level, spans off) does not change the result.
        with tvm.transform.PassContext(config={"relay.frontend.fill_span": True}):
            with _clear_errors():
                mod, params = _convert(importer, model.graph, opset, inputs, freeze_params)
                check_result(mod["main"])
                mod = relay.transform.InferType()(mod)
            if camera is not None:
                mod = feed(camera, mod, inputs)
            with _clear_errors():
                mod = canonicalize(mod)
                _late_shapes.check(mod)
        main = mod["main"].with_attr("input_names", list(inputs))
        mod["main"] = main.with_attr("output_names", [output.name for output in model.graph.output])
    return mod, params


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn an error that belongs to no node into an ImportFailure, in one line."""
    try:
        yield
    except ImportFailure:
        raise
    except Exception as error:  # TVM raises anything
        raise ImportFailure(f"the model cannot be converted: {gist(error)}") from error


def _convert(
    importer: ModuleType,
    graph: onnx.GraphProto,
    opset: int,
    inputs: dict[str, list[IntExpr]],
    freeze_params: bool,
) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    importer.GraphProto.how_to_fix = _late_shapes.how_to_fix(inputs)
    scope = importer.GraphProto(inputs, "float32", freeze_params, op_type_dict={})
    with progress_bar("Importing ONNX", len(graph.node)) as advance:
        scope.on_node = advance
        with scope, type_errors_into(scope.type_errors):
            return scope.from_onnx(graph, opset)


def _has_converter(convert_map: Mapping[str, Callable], node: onnx.NodeProto) -> bool:
    is_another = node.op_type in MICROSOFTS and node.domain != "com.microsoft"
    is_known = node.domain in DOMAINS or node.op_type in OF_DOMAINS.get(node.domain, ())
    return is_known and node.op_type in convert_map and not is_another


def _check_operators(
    model: onnx.ModelProto, opset: int, has_converter: Callable[[onnx.NodeProto], bool]
) -> None:
    """Check that each operator is known, or one that ONNX defines by others."""
    unknown: dict[tuple[str, str], onnx.NodeProto] = {}
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if not has_converter(node) and not is_defined_by_others(node, opset):
                unknown.setdefault((node.domain, node.op_type), node)
    if any(domain == "com.microsoft.nchwc" for domain, _ in unknown):
        raise ImportFailure(
            "ONNX Runtime has laid the model out for the processor of one machine (com.microsoft.nchwc): "
            "let it optimize the model with ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"
        )
    if unknown:
        nodes = "; ".join(describe(node) for node in unknown.values())
        raise ImportFailure(
            f"there is no converter for the operator of {nodes}: export the model with other operators"
        )
