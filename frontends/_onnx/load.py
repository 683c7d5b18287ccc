"""Reads an ONNX model, with the weights it keeps in files beside it.

A model file names the files that hold its weights. A name that leads out of the model's folder, by being
absolute, by `..` or through a symbolic link, is refused: importing a model reads that model and no other
file of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from ..errors import ImportFailure


def load_model(model: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """The complete model; `model` is a path or an `onnx.ModelProto`, which is not changed."""
    if isinstance(model, onnx.ModelProto):
        for tensor in tensors_of(model):
            if uses_external_data(tensor):
                raise ImportFailure(
                    f"the weights '{tensor.name}' are in a file beside the model and were not loaded; pass "
                    "the path of the model instead of the ModelProto, or load it with its external data"
                )
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model must be a path or an onnx.ModelProto, not {type(model).__name__}")
    path = Path(model)
    loaded = _read(path)
    folder = path.parent.resolve()
    external = [tensor for tensor in tensors_of(loaded) if uses_external_data(tensor)]
    for tensor in external:
        _check_external(tensor, folder)
    if external:
        try:
            load_external_data_for_model(loaded, str(folder))
        except Exception as error:  # some versions of onnx make further checks
            raise ImportFailure(f"the weights beside {path} cannot be read: {error}") from error
    return loaded


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and, depth first, those inside its nodes: the branches of `If`, the bodies of `Loop`."""
    yield graph
    for node in graph.node:
        for inner in graphs_in(node):
            yield from graphs_of(inner)


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that are attributes of a node."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, and graphs inside it, whose outputs may be names from outside."""
    yield from node.input
    for inner in graphs_in(node):
        for each in inner.node:
            yield from names_read(each)
        yield from (output.name for output in inner.output)


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that a model holds: initializers and attributes, in every graph and function."""
    graphs = list(graphs_of(model.graph))
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    nodes = [node for holder in [*graphs, *model.functions] for node in holder.node]
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def _read(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise FileNotFoundError(f"no ONNX model at {path}")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ImportFailure(f"{path} is not an ONNX model, or is truncated: it cannot be parsed") from error
    if not model.graph.node and not model.graph.output:
        raise ImportFailure(f"{path} is not an ONNX model, or is truncated: it has no graph")
    return model


def _check_external(tensor: onnx.TensorProto, folder: Path) -> None:
    try:
        info = ExternalDataInfo(tensor)
        what = f"the weights '{tensor.name}' are in '{info.location}'"
        target = (folder / info.location).resolve()
    except (TypeError, ValueError, OSError) as error:
        raise ImportFailure(
            f"the location of the weights '{tensor.name}' cannot be read: it must be a file name, an offset "
            f"and a length, not {[entry.value for entry in tensor.external_data]}"
        ) from error
    if Path(info.location).is_absolute() or ".." in Path(info.location).parts or folder not in target.parents:
        raise ImportFailure(f"{what}, which is outside the model's folder {folder}; it is not read")
    if not target.is_file():
        raise ImportFailure(f"{what}, but there is no such file in {folder}")
    if min(info.offset or 0, info.length or 0) < 0:
        raise ImportFailure(f"{what}, with a negative offset or length: the model is damaged")
    if (info.offset or 0) + (info.length or 0) > target.stat().st_size:
        raise ImportFailure(f"{what}, which ends before they do: the file is not complete")
