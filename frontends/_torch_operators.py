"""What TVM's PyTorch converter lacks, or gets wrong where a dimension is known only at run time."""

from __future__ import annotations

import sys
from typing import Any

import torch

import topi_ext
from tvm_passes._selection import as_class_ids, select
from tvm_passes._stock_nms import FLOATS

from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.relay.frontend.common import set_span, try_infer_value

from ._onnx_fold import keep_known
from ._onnx_slice import constant_slice
from ._torch_class_loop import BATCHED_NMS
from ._torch_detections import HEATMAPS_TO_KEYPOINTS, PASTE_MASKS

KNOWN_LISTS = (list, relay.expr.TupleWrapper)  # those whose length is known, which need no list of Relay's


class Operators(stock.PyTorchOpConverter):
    """TVM's converter, with operators that detection models and scripted modules need."""

    def create_convert_map(self) -> None:
        super().create_convert_map()
        for rank in (1, 2, 3):  # traced code calls aten::_convolution instead
            self.convert_map[f"aten::conv{rank}d"] = self.plain_convolution
        self.convert_map["aten::pixel_unshuffle"] = self.pixel_unshuffle
        self.exact_division = self.convert_map["aten::div"]
        self.convert_map["aten::div"] = self.division
        self.convert_map[BATCHED_NMS] = self.batched_nms
        self.convert_map[PASTE_MASKS] = self.paste_masks
        self.convert_map[HEATMAPS_TO_KEYPOINTS] = self.heatmaps_to_keypoints

    def plain_convolution(self, inputs: list[Any], input_types: list[str]) -> Any:
        data, weight, bias, strides, padding, dilation, groups = inputs
        transposed, output_padding = False, [0] * len(strides)
        inputs = [data, weight, bias, strides, padding, dilation, transposed, output_padding, groups]
        return self.convolution(inputs, input_types)

    def pixel_unshuffle(self, inputs: list[Any], _input_types: list[str]) -> Any:
        """The inverse of `pixel_shuffle`, spelled like it; TVM lacks it."""
        data, block = inputs
        batch, channels, height, width = self.infer_shape(data)
        split = batch, channels, height // block, block, width // block, block
        blocks = relay.transpose(relay.reshape(data, split), [0, 1, 3, 5, 2, 4])
        return relay.reshape(blocks, (batch, channels * block**2, height // block, width // block))

    def division(self, inputs: list[Any], input_types: list[str]) -> Any:
        """With `rounding_mode`, which TVM's own way passes over."""
        operands, mode = inputs[:2], inputs[2] if len(inputs) > 2 else None
        if mode is None:
            return self.exact_division(operands, input_types)
        left, right = self.pytorch_promote_types(operands, input_types[:2])
        if mode == "floor":
            return relay.floor_divide(left, right)
        whole = "int" in self.infer_type(left).dtype
        return relay.trunc_divide(left, right) if whole else relay.trunc(relay.divide(left, right))

    def batched_nms(self, inputs: list[Any], _: list[str]) -> relay.Expr:
        """Exact within each class, as torch's own loop over the classes is."""
        boxes, scores, ids, iou_threshold = inputs
        for what, tensor in (("boxes", boxes), ("scores", scores)):
            dtype = self.infer_type(tensor).dtype
            if dtype not in FLOATS:
                raise TypeError(f"{what} for NMS must be of {' or '.join(FLOATS)}, not {dtype}")
        class_ids = as_class_ids(ids, self.infer_type(ids).dtype)
        if class_ids is None:
            raise TypeError(f"class ids for NMS must be integers, not {self.infer_type(ids).dtype}")
        return select(boxes, scores, class_ids, iou_threshold)

    def paste_masks(self, inputs: list[Any], _: list[str]) -> Any:
        masks, boxes, *image_size = inputs
        return topi_ext.paste_masks(masks, boxes, image_size)

    def heatmaps_to_keypoints(self, inputs: list[Any], _: list[str]) -> Any:
        return tuple(topi_ext.heatmaps_to_keypoints(*inputs))

    def scalar_tensor(self, inputs: list[Any], input_types: list[str]) -> Any:
        value, dtype, *_ = inputs
        if isinstance(value, relay.Constant) or not isinstance(value, relay.Expr):
            return super().scalar_tensor(inputs, input_types)
        return relay.cast(value, stock._convert_dtype_value(dtype))

    def slice(self, inputs: list[Any], input_types: list[str]) -> Any:
        """Keep the dimensions that are known: TVM's own way loses them all where one is unknown."""
        data, axis, begin, end, step = inputs
        begin, end = 0 if begin is None else begin, sys.maxsize if end is None else end
        shape = self.infer_shape_with_prelude(data)
        if not _are_integers(axis, begin, end, step):
            kept = [size if place != axis % len(shape) else 0 for place, size in enumerate(shape)]
            sliced = super().slice([data, axis, begin, end, step], input_types)
            return keep_known(sliced, [size if isinstance(size, int) else 0 for size in kept])
        if _are_integers(*shape):
            return super().slice([data, axis, begin, end, step], input_types)
        return constant_slice(data, {axis: (begin, end, step)})

    def expand_as(self, inputs: list[Any], input_types: list[str]) -> Any:
        """By adding zeros where the shape is unknown: TVM's own way does not compile when a slice follows."""
        data, like = inputs
        dtype = self.infer_type(data).dtype
        if self.is_known(like) or dtype == "bool":
            return super().expand_as(inputs, input_types)
        return relay.add(data, relay.cast(relay.zeros_like(like), dtype))

    def split_with_sizes(self, inputs: list[Any], input_types: list[str]) -> Any:
        """Also by sizes that only the runtime knows, as of each image's boxes in a batch."""
        data, sizes, axis = inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else 0
        if len(sizes) == 1 or _are_integers(*sizes):
            return super().split_with_sizes(inputs, input_types)
        ends = [sizes[0]]
        for size in sizes[1:]:
            ends.append(ends[-1] + size)
        cuts = zip([0, *ends], ends)
        return relay.expr.TupleWrapper(
            relay.Tuple([self.slice([data, axis, *cut, 1], input_types) for cut in cuts]), len(sizes)
        )

    def is_known(self, data: relay.Expr) -> bool:
        return _are_integers(*self.infer_shape_with_prelude(data))

    def reshape(self, inputs: list[Any], input_types: list[str]) -> Any:
        """One unknown extent among known ones follows from them: -1 instead of a shape from the runtime."""
        data, extents, *_ = inputs
        known = [_known(extent) for extent in extents]
        if known.count(None) == 1 and all(extent is None or extent > 0 for extent in known):
            return relay.reshape(data, [-1 if extent is None else extent for extent in known])
        return super().reshape(inputs, input_types)

    def view(self, inputs: list[Any], input_types: list[str]) -> Any:
        """As `reshape`: TVM guesses what it does not know of a view's shape by running with random inputs."""
        return (self.reshape if isinstance(inputs[1], list) else super().view)(inputs, input_types)

    def size(self, inputs: list[Any], input_types: list[str]) -> Any:
        """A shape that is asked for as a whole, which TVM's own way takes only if it is unknown."""
        if len(inputs) > 1 or not self.is_known(inputs[0]):
            return super().size(inputs, input_types)
        return [relay.const(extent, "int64") for extent in self.infer_shape_with_prelude(inputs[0])]

    def list_getitem(self, inputs: list[Any], input_types: list[str]) -> Any:
        values, index = inputs
        index = _known(index) if isinstance(values, KNOWN_LISTS) else None
        if index is None:
            return super().list_getitem(inputs, input_types)
        return values[index % len(values)]  # a TupleWrapper does not count from the end

    def list_len(self, inputs: list[Any], input_types: list[str]) -> Any:
        in_python = isinstance(inputs[0], KNOWN_LISTS)
        return len(inputs[0]) if in_python else super().list_len(inputs, input_types)

    def convert_if(self, if_node: torch.Node, outputs: dict[str, Any]) -> relay.Expr:
        """As TVM's own, but with any number of results."""
        results = [value.debugName() for value in if_node.outputs()]
        if len(results) == 1:
            return super().convert_if(if_node, outputs)
        condition = outputs[if_node.inputsAt(0).debugName()]
        branches = [relay.Tuple(self.convert_block(block, outputs)) for block in if_node.blocks()]
        span = self.source_map[if_node]
        chosen = set_span(relay.If(condition, *branches), span)
        items = [relay.TupleGetItem(chosen, index) for index in range(len(results))]
        outputs.update(zip(results, set_span(items, span)))
        return chosen

    def inplace_copy(self, inputs: list[Any], input_types: list[str]) -> Any:
        """What the target is afterwards; `mutation` says what that means for the tensor it is a view of."""
        target, source, *_ = inputs
        dtype = self.infer_type(target).dtype
        source = relay.cast(source, dtype) if isinstance(source, relay.Expr) else relay.const(source, dtype)
        if not self.is_known(target):
            return relay.broadcast_to_like(source, target)
        return relay.broadcast_to(source, self.infer_shape_with_prelude(target))


def _are_integers(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)


def _known(extent: Any) -> int | None:
    """The extent as a number, or None if it is known only at runtime."""
    value, _ = try_infer_value(extent, int) if isinstance(extent, relay.Expr) else (extent, True)
    return int(value) if isinstance(value, int) else None
