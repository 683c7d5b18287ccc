"""Run TVM's own PyTorch importer over a traced model, with progress, and errors that name the operator."""

import contextlib
import logging
import sys
import types
import warnings
from functools import partial

from tqdm import tqdm

import tvm
from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.relay.frontend.common import set_span, try_infer_value

from ._onnx_fold import keep_known
from ._onnx_slice import constant_slice
from .errors import ImportFailure

PROGRESS_AFTER = 2  # seconds
STOCK_LOGGER = "Frontend"


def convert(traced):
    """The Relay module and its parameters, as TVM's importer gives them, with the model's own signature."""
    infos = [
        (name, (tuple(tensor.shape), _dtype(tensor)))
        for name, tensor in zip(traced.input_names, traced.inputs)
    ]
    try:
        with _quiet():
            mod, params = _importer(traced.title)(traced.module, infos, default_dtype=_dtype(traced))
    except ImportFailure:
        raise
    except Exception as error:
        raise ImportFailure(f"TVM cannot import {traced.title}: {type(error).__name__}: {error}") from error
    return _with_signature(_without_unused_types(mod), infos, traced.output_dtypes), params


def _importer(title):
    """TVM's importer with our converter for its own.

    It looks the class up in its module. A copy of the function with that one name changed leaves the module,
    and so every other user of TVM in the process, alone.
    """
    function = stock.from_pytorch
    names = {**function.__globals__, "PyTorchOpConverter": partial(_Converter, title)}
    return types.FunctionType(function.__code__, names, argdefs=function.__defaults__)


class _Converter(stock.PyTorchOpConverter):
    """TVM's converter, which says how far it is and where it fails, and takes what scripted code adds."""

    def __init__(self, title, *args):
        super().__init__(*args)
        self.title = title

    def create_convert_map(self):
        super().create_convert_map()
        for rank in (1, 2, 3):  # traced code calls aten::_convolution instead
            self.convert_map[f"aten::conv{rank}d"] = self.plain_convolution
        self.exact_division = self.convert_map["aten::div"]
        self.convert_map["aten::div"] = self.division

    def plain_convolution(self, inputs, input_types):
        data, weight, bias, strides, padding, dilation, groups = inputs
        transposed, output_padding = False, [0] * len(strides)
        inputs = [data, weight, bias, strides, padding, dilation, transposed, output_padding, groups]
        return self.convolution(inputs, input_types)

    def division(self, inputs, input_types):
        """With `rounding_mode`, which TVM's own way passes over."""
        operands, mode = inputs[:2], inputs[2] if len(inputs) > 2 else None
        if mode is None:
            return self.exact_division(operands, input_types)
        left, right = self.pytorch_promote_types(operands, input_types[:2])
        if mode == "floor":
            return relay.floor_divide(left, right)
        whole = "int" in self.infer_type(left).dtype
        return relay.trunc_divide(left, right) if whole else relay.trunc(relay.divide(left, right))

    def scalar_tensor(self, inputs, input_types):
        value, dtype, *_ = inputs
        if isinstance(value, relay.Constant) or not isinstance(value, relay.Expr):
            return super().scalar_tensor(inputs, input_types)
        return relay.cast(value, stock._convert_dtype_value(dtype))

    def slice(self, inputs, input_types):
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

    def expand_as(self, inputs, input_types):
        """By adding zeros where the shape is unknown: TVM's own way does not compile when a slice follows."""
        data, like = inputs
        dtype = self.infer_type(data).dtype
        if self.is_known(like) or dtype == "bool":
            return super().expand_as(inputs, input_types)
        return relay.add(data, relay.cast(relay.zeros_like(like), dtype))

    def split_with_sizes(self, inputs, input_types):
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

    def is_known(self, data):
        return _are_integers(*self.infer_shape_with_prelude(data))

    def reshape(self, inputs, input_types):
        """One unknown extent among known ones follows from them: -1 instead of a shape from the runtime."""
        data, extents, *_ = inputs
        known = [_known(extent) for extent in extents]
        if known.count(None) == 1 and all(extent is None or extent > 0 for extent in known):
            return relay.reshape(data, [-1 if extent is None else extent for extent in known])
        return super().reshape(inputs, input_types)

    def view(self, inputs, input_types):
        """As `reshape`: TVM guesses what it does not know of a view's shape by running with random inputs."""
        return (self.reshape if isinstance(inputs[1], list) else super().view)(inputs, input_types)

    def size(self, inputs, input_types):
        """A shape that is asked for as a whole, which TVM's own way takes only if it is unknown."""
        if len(inputs) > 1 or not self.is_known(inputs[0]):
            return super().size(inputs, input_types)
        return [relay.const(extent, "int64") for extent in self.infer_shape_with_prelude(inputs[0])]

    def list_getitem(self, inputs, input_types):
        values, index = inputs
        in_python = isinstance(values, list) and isinstance(index, int)
        return values[index] if in_python else super().list_getitem(inputs, input_types)

    def list_len(self, inputs, input_types):
        in_python = isinstance(inputs[0], list)
        return len(inputs[0]) if in_python else super().list_len(inputs, input_types)

    def report_missing_conversion(self, op_names):
        try:
            super().report_missing_conversion(op_names)
        except NotImplementedError as error:
            raise ImportFailure(f"TVM cannot import {self.title}: {error}") from error

    def convert_if(self, if_node, outputs):
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

    def convert_operators(self, operators, outputs, ret_names):
        outermost = not self.current_op
        operators = [item for item in operators if not _take_list(*item, outputs)]
        with tqdm(
            operators,
            desc=f"Importing {self.title}",
            unit="op",
            delay=PROGRESS_AFTER,
            leave=False,
            disable=None if outermost else True,  # None: where stderr is no terminal
        ) as progress:
            try:
                return super().convert_operators(progress, outputs, ret_names)
            except ImportFailure:
                raise
            except Exception as error:
                where = _place(self.current_op[-1]) if self.current_op else "its outputs"
                reason = f"{type(error).__name__}: {error}"
                raise ImportFailure(f"TVM cannot import {self.title}, at {where}: {reason}") from error


def _take_list(name, node, outputs):
    """Lists of numbers that are one constant, which TVM's converter takes only where they are constructed."""
    constant_list = node.kind() == "prim::Constant" and node.output().type().kind() == "ListType"
    if constant_list:
        outputs[name] = node.output().toIValue()
    return constant_list


def _are_integers(*values):
    return all(isinstance(value, int) for value in values)


def _known(extent):
    """The extent as a number, or None if it is known only at runtime."""
    value, _ = try_infer_value(extent, int) if isinstance(extent, relay.Expr) else (extent, True)
    return int(value) if isinstance(value, int) else None


def _place(node):
    return f"{node.kind()} ({node.sourceRange().splitlines()[0].strip()})"


def _without_unused_types(mod):
    """TVM adds the types of lists and trees to every module."""
    data = []
    relay.analysis.post_order_visit(
        mod["main"].body,
        lambda node: data.append(node) if isinstance(node, (relay.Match, tvm.ir.Constructor)) else None,
    )
    return mod if data or len(mod.functions) > 1 else tvm.IRModule(mod.functions)


def _with_signature(mod, infos, output_dtypes):
    """Every input is a parameter, also one that is not used, and every output has the dtype it has in torch.

    TVM drops the former, and gives indices as int32.
    """
    main = relay.transform.InferType()(mod)["main"]
    used = {var.name_hint: var for var in main.params}
    inputs = [
        used.pop(name, None) or relay.var(name, shape=shape, dtype=dtype) for name, (shape, dtype) in infos
    ]
    outputs = [
        output if output.checked_type.dtype == dtype else relay.cast(output, dtype)
        for output, dtype in zip(_fields(main.body), output_dtypes)
    ]
    body = relay.Tuple(outputs) if len(outputs) > 1 else outputs[0]
    mod["main"] = relay.Function([*inputs, *used.values()], body)
    return mod


def _fields(body):
    return list(body.fields) if isinstance(body, relay.Tuple) else [body]


def _dtype(typed):
    """What Relay calls the dtype of a tensor or a traced model."""
    return str(typed.dtype).replace("torch.", "")


@contextlib.contextmanager
def _quiet():
    """Hold back the importer's notes on TorchScript, which the user of a model can do nothing about."""
    logger = logging.getLogger(STOCK_LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
