"""The operator `topi_ext.conv2d_nhwc`: its arguments, types, shapes, and the kernels that it calls."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, no_type_check

import tvm

from .. import _register
from .._int8 import INT8, checked_out_dtype
from .._register import known
from .._tvm import (
    HAS_RELAY,
    Attrs,
    Expr,
    TensorType,
    TVMError,
    Type,
    call,
    const,
    convert,
    dtype_of,
    libraries_of,
    script,
    te,
    tir,
)
from .._whole import whole
from ..cudnn import session
from . import choose_kernel, cpu_one_pixel, cudnn, onednn
from .cuda import supported_arch
from .problem import AT_RUN_TIME, Activation, Problem, four_sides, pair, why_no_such_extents

if TYPE_CHECKING:
    from .._types import int64, output_tensor

NAME = "topi_ext.conv2d_nhwc"
FLOATS = ("float16", "bfloat16", "float32")
TYPES = (*FLOATS, INT8)
MAX_PRODUCTS = 2**17 - 1  # of int8 in one sum: int32 holds as many of -128 * -128
ARGUMENTS = {
    "data": "(N, H, W, C)",
    "weight": "(K, R, S, C / groups)",
    "bias": "(K,), or a scalar where there is none",
    "residual": "the result's shape, or a scalar where there is none",
    "slope": "(K,), or a scalar where there is none",
    "scale": "(K,), or a scalar where there is none",
}


def conv2d_nhwc(
    data: Expr,
    weight: Expr,
    bias: Expr | None = None,
    residual: Expr | None = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    activation: str | tuple[Any, ...] | None = None,
    final_activation: str | tuple[Any, ...] | None = None,
    slope: Expr | None = None,
    block_size: int = 1,
    groups: int = 1,
    weight_id: str = "",
    scale: Expr | None = None,
    residual_scale: float = 1.0,
    out_scale: float = 1.0,
    out_dtype: str = "",
) -> Expr:
    """Convolution of NHWC data, fused with the operators that often follow it.

    In this order: convolution, * scale, + bias, activation, + residual * residual_scale, final activation,
    * out_scale, rounding, depth to space. The scales are for networks in int8.
    For a target such as `cuda -libs=cudnn-frontend`, cuDNN computes the convolutions at which it is faster;
    for `llvm -libs=onednn`, oneDNN computes them.

    Parameters
    ----------
    data : Expr
        (N, H, W, C), int8, float16 or bfloat16; on LLVM also float32. All extents are known at compile time,
        except that N need not be on LLVM, nor H and W for oneDNN.
    weight : Expr
        (K, R, S, C / groups), of the type of the data.
    bias : Expr, optional
        (K,), float32 or of the type of the data; for int8, of any float type.
    residual : Expr, optional
        (N, OH, OW, K), of the type of the data, or int8; for int8, of any of these types. Not together with a
        `block_size` above 1.
    strides, dilation : int or pair of int
        Of height and width.
    padding : int, pair or four of int
        For all sides; for height and width; or top, left, bottom, right. Zeros are padded.
    activation, final_activation : None, str or tuple
        None, "relu", ("leaky_relu", slope), ("clip", low, high), "gelu", "gelu_tanh", "hard_swish", "mish",
        "sigmoid", "silu" or "tanh"; the first one also "prelu".
    slope : Expr, optional
        (K,), of a type that bias may have: the slopes of "prelu" below 0.
    block_size : int
        K is a multiple of its square.
    groups : int
        C and K are multiples of it.
    weight_id : str
        The same text for the same weights, and no text for weights that may change: oneDNN packs weights with
        a text once. `IdentifyWeights` gives it to constant weights.
    scale : Expr, optional
        (K,), float32, for int8 only, which needs it: what one unit of each filter's sum stands for, that of
        the data times that of the filter's weights.
    residual_scale, out_scale : float
        Finite and above 0: what one unit of the residual stands for, and how many units of the result one is.
    out_dtype : str
        The type of the result: int8, or that of the data, the default; for int8 data, which need it, any.

    Returns
    -------
    result : Expr
        (N, OH * block_size, OW * block_size, K / block_size ** 2), of the type `out_dtype`.

    Convention
    ----------
    - Sums, bias, activations and residual are float32; only the result is rounded, once. Sums of int8 are
      exact in int32 before that.
    - int8 is symmetric: 0 stands for 0. A result in int8 is rounded to the nearest integer, of two equally
      near ones to the even one, and saturated to -128 to 127.
    - The kernel is not flipped: this is cross-correlation, as everywhere in deep learning.
    - Depth to space is in the order DCR: with y the result before it and C' = K / block_size ** 2,
      result[n, h * block_size + i, w * block_size + j, c] = y[n, h, w, (i * block_size + j) * C' + c].
    - "relu" and "clip" may turn NaN into a bound on CUDA and by oneDNN. Else activations keep it.
    - On CUDA, infinity or NaN in the data of a group may make the results of other groups NaN, since small
      groups are computed together: the others' weights for it are 0, and 0 times infinity is NaN.

    >>> from topi_ext.conv2d_nhwc import reference
    >>> ones = np.ones((1, 3, 3, 1), "float32")
    >>> print(reference.conv2d_nhwc(ones, ones, padding=1, activation=("clip", 0, 8))[0, :, :, 0])
    [[4. 6. 4.]
     [6. 8. 6.]
     [4. 6. 4.]]
    """
    first = Activation.of(activation, "activation")
    final = Activation.of(final_activation, "final_activation", may_be_prelu=False)
    if (first.name == "prelu") != (slope is not None):
        raise ValueError("conv2d_nhwc: slope and the activation 'prelu' go together")
    for name, number in (("block_size", block_size), ("groups", groups)):
        if number < 1:
            raise ValueError(f"conv2d_nhwc: {name} must be at least 1, not {number}")
    strides, dilation = pair(strides, "strides"), pair(dilation, "dilation")
    if min(*strides, *dilation) < 1:
        raise ValueError(f"conv2d_nhwc: strides {strides} and dilation {dilation} must be at least 1")
    for name, factor in (("residual_scale", residual_scale), ("out_scale", out_scale)):
        if not 0 < factor < math.inf:
            raise ValueError(f"conv2d_nhwc: {name} must be finite and above 0, not {factor}")
    nothing = const(0, "float32")
    optional = [nothing if value is None else value for value in (bias, residual, slope, scale)]
    return call(
        NAME,
        [data, weight, *optional],
        strides=strides,
        padding=four_sides(padding),
        dilation=dilation,
        activation=first.name,
        activation_low=first.low,
        activation_high=first.high,
        final_activation=final.name,
        final_activation_low=final.low,
        final_activation_high=final.high,
        block_size=whole("conv2d_nhwc: block_size", block_size),
        groups=whole("conv2d_nhwc: groups", groups),
        weight_id=weight_id,
        has_bias=int(bias is not None),
        has_residual=int(residual is not None),
        has_slope=int(slope is not None),
        has_scale=int(scale is not None),
        residual_scale=float(residual_scale),
        out_scale=float(out_scale),
        out_dtype=out_dtype,
    )


# --- types and shapes


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    problem = problem_of(types, attrs)
    shape = problem.shape_of_result(types[0].shape)
    if HAS_RELAY:  # whose types have no expressions
        shape[1:] = [extent if known(extent) is not None else tir.Any() for extent in shape[1:]]
    return TensorType(shape, problem.out_dtype)


def problem_of(tensors: Sequence[TensorType | te.Tensor], attrs: Attrs) -> Problem:
    """The problem of these types or tensors, which all have a shape and a dtype; refuses invalid ones."""
    data, weight, bias, residual, slope, scale = tensors
    for name, axes, tensor in (("data", "(N, H, W, C)", data), ("weight", "(K, R, S, C)", weight)):
        if len(tensor.shape) != 4:
            _refuse(f"{name} must have the shape {axes}, not {tensor.shape}")
    if data.dtype not in TYPES:
        _refuse(f"data must be of type {', '.join(TYPES)}, not {data.dtype}")
    if weight.dtype != data.dtype:
        _refuse(f"weight must be of the type of data, {data.dtype}, not {weight.dtype}")
    batch = known(data.shape[0])
    size = [known(extent) for extent in data.shape[1:3]]
    (channels,) = _static("data", data.shape[3:])
    filters, *kernel, of_weight = _static("weight", weight.shape)
    options, has = _read(attrs)
    groups = options["groups"]
    if channels % groups or filters % groups:
        _refuse(f"{channels} channels and {filters} filters are not multiples of {groups} groups")
    if of_weight != channels // groups:
        wanted = f"{channels}" if groups == 1 else f"{channels} / {groups} groups = {channels // groups}"
        hint = ""
        if of_weight and channels % of_weight == 0 and groups == 1:
            hint = f": give groups={channels // of_weight} if it is grouped"
        _refuse(f"weight must have as many channels as data, {wanted}, not {of_weight}{hint}")
    if 0 in (batch, *size, channels, filters, *kernel):
        _refuse(f"no extent may be 0: data {data.shape}, weight {weight.shape}")
    problem = Problem(
        batch=batch or AT_RUN_TIME,
        size=tuple(extent or AT_RUN_TIME for extent in size),
        channels=channels,
        filters=filters,
        kernel=tuple(kernel),
        dtype=data.dtype,
        out_dtype=checked_out_dtype(data.dtype, str(attrs["out_dtype"]), TYPES, ("data", "needs"), _refuse),
        bias=bias.dtype if has["bias"] else None,
        slope=slope.dtype if has["slope"] else None,
        residual=residual.dtype if has["residual"] else None,
        **options,
    )
    reason = why_no_such_extents(problem)
    if reason is not None:
        _refuse(reason)
    if filters % problem.block**2:
        _refuse(f"{filters} filters are not a multiple of the square of block_size {problem.block}")
    given = {"bias": bias, "slope": slope, "scale": scale}
    _check_of_filters(problem, {name: tensor for name, tensor in given.items() if has[name]})
    if problem.residual:
        _check_residual(problem, residual)
    return problem


def _check_of_filters(problem: Problem, given: dict[str, TensorType | te.Tensor]) -> None:
    """Check what is given for each filter, and that there is a scale for int8, and for int8 only."""
    filters, is_int8 = problem.filters, problem.dtype == INT8
    floats = FLOATS if is_int8 else ("float32", problem.dtype)
    for name, tensor in given.items():
        types = ("float32",) if name == "scale" else floats
        if _static(name, tensor.shape) != [filters]:
            _refuse(f"{name} must have the shape ({filters},), not {tensor.shape}")
        if tensor.dtype not in types:
            _refuse(f"{name} must be of type {' or '.join(types)}, not {tensor.dtype}")
    if is_int8 and "scale" not in given:
        _refuse("int8 data needs a scale: what one unit of each filter's sum stands for")
    products = math.prod(problem.kernel) * problem.channels_of_group
    if is_int8 and products > MAX_PRODUCTS:
        _refuse(f"a sum of {products} products of int8 may overflow int32: at most {MAX_PRODUCTS} are taken")
    if not is_int8 and "scale" in given:
        _refuse(f"scale is for int8 data, not for {problem.dtype}: multiply the weights by it")


def _check_residual(problem: Problem, residual: TensorType | te.Tensor) -> None:
    """Check that it can be added to the result."""
    if problem.block > 1:
        _refuse("a residual requires block_size 1: add it after depth to space")
    shape = tuple(known(extent) or AT_RUN_TIME for extent in residual.shape)
    types = TYPES if problem.dtype == INT8 else (problem.dtype, INT8)
    if residual.dtype not in types or shape != problem.shape:
        wanted = f"({', '.join(str(extent or 'any') for extent in problem.shape)})"
        found = f"{residual.shape} of {residual.dtype}"
        _refuse(f"residual must have the shape {wanted} and type {' or '.join(types)}, not {found}")


def _static(name: str, shape: Sequence[tir.PrimExpr]) -> list[int]:
    if not all(isinstance(extent, (int, tir.IntImm)) for extent in shape):
        _refuse(
            "all extents but the batch and the size of images must be known at compile time, but "
            f"{name} has {shape}"
        )
    return [int(extent) for extent in shape]


@functools.lru_cache(maxsize=1024)
def _read(attrs: Attrs) -> tuple[dict[str, Any], dict[str, bool]]:
    """The options of a problem, from its attributes, and which optional arguments are given.

    It is cached, since TVM infers the type of each call in nearly every pass.
    """
    options = {
        **{name: tuple(map(int, attrs[name])) for name in ("strides", "padding", "dilation")},
        **{name: _activation(attrs, name) for name in ("activation", "final_activation")},
        **{name: float(attrs[name]) for name in ("residual_scale", "out_scale")},
        "block": int(attrs["block_size"]),
        "groups": int(attrs["groups"]),
        "weight_id": str(attrs["weight_id"]),
    }
    return options, {name: bool(attrs[f"has_{name}"]) for name in ("bias", "residual", "slope", "scale")}


def _activation(attrs: Attrs, name: str) -> Activation:
    return Activation(str(attrs[name]), float(attrs[f"{name}_low"]), float(attrs[f"{name}_high"]))


def _refuse(reason: str) -> NoReturn:
    raise TVMError(f"{NAME}: {reason}")


@script
@no_type_check
def _shapes(data, weight, down, across, dilation_y, dilation_x, stride_y, stride_x, block):
    result = output_tensor((4,), "int64")
    height = data[1] + int64(down) - (weight[1] - int64(1)) * int64(dilation_y) - int64(1)
    width = data[2] + int64(across) - (weight[2] - int64(1)) * int64(dilation_x) - int64(1)
    result[0] = data[0]
    # None where a kernel reaches over more than there is.
    result[1] = max(height // int64(stride_y) + int64(1), int64(0)) * int64(block)
    result[2] = max(width // int64(stride_x) + int64(1), int64(0)) * int64(block)
    result[3] = weight[0] // int64(block * block)
    return result


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    options, _has = _read(attrs)
    top, left, bottom, right = options["padding"]
    numbers = top + bottom, left + right, *options["dilation"], *options["strides"], options["block"]
    return [_shapes(*inputs[:2], *map(convert, numbers))]


# --- kernels


def kernels_for(problem: Problem, target: tvm.target.Target) -> ModuleType:
    """The module of the kernels: a library's where the target allows it and it is faster."""
    kind = target.kind.name
    if kind != "llvm" and problem.batch == AT_RUN_TIME:
        _refuse(f"a batch known only at run time has kernels for llvm, not for {kind}: make it static")
    if (
        kind == "cuda"
        and session.LIBRARY in libraries_of(target)
        and choose_kernel.is_cudnn_better(problem, target)
    ):
        return cudnn
    if kind == "llvm" and cpu_one_pixel.is_better(problem):
        return cpu_one_pixel
    if kind == "llvm" and onednn.LIBRARY in libraries_of(target) and onednn.is_capable(problem):
        return onednn
    if not problem.has_known_size:
        _refuse("images whose size is known only at run time have kernels by oneDNN only: make it static")
    return importlib.import_module(f"{__package__}.{_register.KERNELS[kind]}")


def has_grouped_kernel(
    channels: int, filters: int, groups: int, dtype: str, target: tvm.target.Target | None
) -> bool:
    """Whether the operator has a fast kernel for a grouped convolution of data of a type on a target."""
    if target is None or target.kind.name != "cuda":
        return target is not None and _has_onednn(target)
    return has_kernel(channels, filters, groups, dtype, target)


def has_kernel(channels: int, filters: int, groups: int, dtype: str, target: tvm.target.Target) -> bool:
    """Whether the operator has a kernel, fast or not, for data of a type on a target."""
    if target.kind.name != "cuda":
        return target.kind.name in _register.KERNELS
    return groups == channels == filters > 1 or supported_arch(dtype, target) is not None


def takes_any_batch(target: tvm.target.Target | None) -> bool:
    """Whether the operator has a fast kernel on a target for a batch that is known only at run time."""
    return target is not None and _has_onednn(target)


def takes_any_size(dtype: str, target: tvm.target.Target | None) -> bool:
    """Whether the operator has a kernel for images of a type whose size is known only at run time."""
    return target is not None and _has_onednn(target) and onednn.multiplies(dtype)


def _has_onednn(target: tvm.target.Target) -> bool:
    return target.kind.name == "llvm" and onednn.LIBRARY in libraries_of(target) and onednn.is_available()


class Kernels:
    """The kernels for one problem on one target."""

    def __init__(self, problem: Problem, target: tvm.target.Target) -> None:
        self.problem, self.target, self.module = problem, target, kernels_for(problem, target)

    def schedule(self, outs: Sequence[te.Tensor]) -> te.Schedule:
        return self.module.schedule(outs)

    def schedule_function(self, function: tir.PrimFunc) -> tir.PrimFunc:
        return self.module.schedule_function(self.problem, function)

    def compute(self, inputs: Sequence[te.Tensor], **destination: te.Tensor) -> list[te.Tensor]:
        """The result, from the arguments in order; modules of kernels that have them take a destination."""
        problem = self.problem
        given = [problem.bias, problem.residual, problem.slope, problem.dtype == INT8]
        optional = [tensor if is_given else None for tensor, is_given in zip(inputs[2:], given)]
        return [self.module.conv2d_nhwc(problem, *inputs[:2], *optional, self.target, **destination)]


_register.register(
    NAME,
    "Convolution of NHWC data with bias, activations, residual and depth to space.",
    {name: f"Of shape {shape}." for name, shape in ARGUMENTS.items()},
    _type_relation,
    _shape_function,
    lambda attrs, inputs, target: Kernels(
        problem_of([TensorType(each.shape, dtype_of(each)) for each in inputs], attrs), target
    ),
    lambda kernels, _attrs, inputs: kernels.compute(inputs),
)
if HAS_RELAY:
    from tvm.relay.op import register_legalize

    from .fold_out_scale import folded

    register_legalize(NAME, folded)
