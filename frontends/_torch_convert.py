"""Run TVM's own PyTorch importer over a traced model, with progress, and errors that name the operator."""

import contextlib
import logging
import sys
import types
import warnings
from functools import partial

from tqdm import tqdm
from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.tir import Any

from .errors import ImportFailure

PROGRESS_AFTER = 2  # seconds
STOCK_LOGGER = "Frontend"


def convert(traced):
    """The Relay module and its parameters, as TVM's importer gives them, but with every input kept."""
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
    mod["main"] = _with_every_input(mod["main"], infos)
    return mod, params


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

    def plain_convolution(self, inputs, input_types):
        data, weight, bias, strides, padding, dilation, groups = inputs
        transposed, output_padding = False, [0] * len(strides)
        inputs = [data, weight, bias, strides, padding, dilation, transposed, output_padding, groups]
        return self.convolution(inputs, input_types)

    def scalar_tensor(self, inputs, input_types):
        value, dtype, *_ = inputs
        if isinstance(value, relay.Constant) or not isinstance(value, relay.Expr):
            return super().scalar_tensor(inputs, input_types)
        return relay.cast(value, stock._convert_dtype_value(dtype))

    def slice(self, inputs, input_types):
        """Cut one axis and say so: TVM's own way loses every dimension of a tensor with an unknown one.

        On an axis that is unknown itself the runtime takes this form rightly only from the start.
        """
        data, axis, begin, end, step = inputs
        extents = self.infer_shape(data)
        if any(isinstance(extent, Any) for extent in extents) and _are_integers(axis, begin, end, step):
            if (begin, step) == (0, 1) and end >= sys.maxsize:
                return data
            if not isinstance(extents[axis], Any) or (begin == 0 and end >= 0):
                return relay.strided_slice(data, [begin], [end], [step], axes=[axis])
        return super().slice(inputs, input_types)

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

    def report_missing_conversion(self, op_names):
        try:
            super().report_missing_conversion(op_names)
        except NotImplementedError as error:
            raise ImportFailure(f"TVM cannot import {self.title}: {error}") from error

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
    value, _ = stock.try_infer_value(extent, int) if isinstance(extent, relay.Expr) else (extent, True)
    return int(value) if isinstance(value, int) else None


def _place(node):
    return f"{node.kind()} ({node.sourceRange().splitlines()[0].strip()})"


def _with_every_input(main, infos):
    """TVM drops inputs that the model does not use; keep the signature of `forward`."""
    used = {var.name_hint: var for var in main.params}
    inputs = [
        used.pop(name, None) or relay.var(name, shape=shape, dtype=dtype) for name, (shape, dtype) in infos
    ]
    return relay.Function([*inputs, *used.values()], main.body)


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
