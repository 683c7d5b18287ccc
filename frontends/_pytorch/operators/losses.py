"""Losses, which also serve as scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from tvm import relay

from .converter import Convert, Converter, Inputs, InputTypes

NONE, MEAN, SUM = 0, 1, 2  # PyTorch's numbers of reductions
Number = Callable[[float], relay.Expr]


def _reduced(loss: relay.Expr, reduction: int) -> relay.Expr:
    return {NONE: lambda each: each, MEAN: relay.mean, SUM: relay.sum}[reduction](loss)


def _elementwise(reduction_at: int) -> Callable[[Callable[..., relay.Expr]], Convert]:
    """Make a converter of an elementwise loss, then reduced; the function gets all other arguments."""

    def decorate(function: Callable[..., relay.Expr]) -> Convert:
        @wraps(function)
        def convert(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
            arguments = list(inputs)
            reduction = arguments.pop(reduction_at)
            tensors = [value for value in arguments if isinstance(value, relay.Expr)]
            promoted = iter(converter.pytorch_promote_types(tensors, _dtypes(converter, tensors)))
            dtypes = _dtypes(converter, tensors)
            dtype = next((each for each in dtypes if each.startswith("float")), "float32")
            arguments = [next(promoted) if isinstance(value, relay.Expr) else value for value in arguments]
            loss = function(lambda value: relay.const(float(value), dtype), *arguments)
            return _reduced(loss, reduction)

        return convert

    return decorate


def _dtypes(converter: Converter, tensors: list[relay.Expr]) -> list[str]:
    return [str(converter.infer_type(tensor).dtype) for tensor in tensors]


@_elementwise(2)
def l1_loss(_number: Number, data: relay.Expr, target: relay.Expr) -> relay.Expr:
    """TVM's own does not promote types."""
    return relay.abs(data - target)


@_elementwise(2)
def mse_loss(_number: Number, data: relay.Expr, target: relay.Expr) -> relay.Expr:
    """TVM's own computes the square by exponentials."""
    return (data - target) * (data - target)


@_elementwise(2)
def smooth_l1_loss(number: Number, data: relay.Expr, target: relay.Expr, beta: float) -> relay.Expr:
    """TVM lacks it."""
    size = relay.abs(data - target)
    if beta == 0:
        return size
    near = number(0.5) * size * size / number(beta)
    return relay.where(size < number(beta), near, size - number(0.5 * beta))


@_elementwise(2)
def huber_loss(number: Number, data: relay.Expr, target: relay.Expr, delta: float) -> relay.Expr:
    """TVM lacks it."""
    size = relay.abs(data - target)
    near, far = number(0.5) * size * size, number(delta) * (size - number(0.5 * delta))
    return relay.where(size <= number(delta), near, far)


@_elementwise(3)
def binary_cross_entropy(
    number: Number, data: relay.Expr, target: relay.Expr, weight: relay.Expr | None
) -> relay.Expr:
    """TVM lacks it."""
    least = number(-100)
    log, log_other = (relay.maximum(relay.log(each), least) for each in (data, number(1) - data))
    loss = (target - number(1)) * log_other - target * log
    return loss if weight is None else loss * weight


@_elementwise(4)
def binary_cross_entropy_with_logits(
    number: Number,
    data: relay.Expr,
    target: relay.Expr,
    weight: relay.Expr | None,
    positive: relay.Expr | None,
) -> relay.Expr:
    """TVM lacks it."""
    log_sigmoid = relay.minimum(data, number(0)) - relay.log(
        number(1) + relay.exp(relay.negative(relay.abs(data)))
    )
    factor = number(1) if positive is None else (positive - number(1)) * target + number(1)
    loss = (number(1) - target) * data - factor * log_sigmoid
    return loss if weight is None else loss * weight


@_elementwise(2)
def soft_margin_loss(number: Number, data: relay.Expr, target: relay.Expr) -> relay.Expr:
    """TVM lacks it."""
    return relay.log(number(1) + relay.exp(relay.negative(target) * data))


@_elementwise(4)
def margin_ranking_loss(
    number: Number, first: relay.Expr, second: relay.Expr, target: relay.Expr, margin: float
) -> relay.Expr:
    """TVM lacks it."""
    return relay.maximum(relay.negative(target) * (first - second) + number(margin), number(0))


@_elementwise(3)
def hinge_embedding_loss(number: Number, data: relay.Expr, target: relay.Expr, margin: float) -> relay.Expr:
    """TVM lacks it."""
    zero = number(0)
    negative = relay.where(relay.equal(target, number(1)), zero, relay.maximum(number(margin) - data, zero))
    positive = relay.where(relay.equal(target, number(-1)), zero, data)
    return negative + positive


@_elementwise(4)
def poisson_nll_loss(
    number: Number, data: relay.Expr, target: relay.Expr, log_input: bool, full: bool, epsilon: float
) -> relay.Expr:
    """TVM lacks it."""
    expected, log = (relay.exp(data), data) if log_input else (data, relay.log(data + number(epsilon)))
    loss = expected - target * log
    if full:
        stirling = target * relay.log(target) - target + number(0.5) * relay.log(number(2 * np.pi) * target)
        loss = loss + relay.where(target <= number(1), number(0), stirling)
    return loss


def kl_div(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    data, target, reduction, log_target = inputs
    dtype = str(converter.infer_type(data).dtype)
    if log_target:
        loss = relay.exp(target) * (target - data)
    else:
        zero, one = relay.const(0, dtype), relay.const(1, dtype)
        logarithm = relay.log(relay.where(target > zero, target, one))
        loss = relay.where(target > zero, target * logarithm, zero) - target * data
    return _reduced(loss, reduction)


def nll_loss(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own takes no unbatched sample, and float32 weights only."""
    data, target, weight, reduction, ignored = inputs
    return _likelihood(converter, data, target, weight, reduction, ignored, 0.0)


def cross_entropy_loss(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no weight, reduction or smoothing for probabilities, and two axes only."""
    data, target, weight, reduction, ignored, smoothing = inputs
    shape = converter.infer_shape(data)
    axis = 1 if len(shape) > 1 else 0
    dtype = str(converter.infer_type(data).dtype)
    computed = "float32" if dtype == "float16" else dtype
    data = relay.cast(data, computed) if computed != dtype else data
    weight = relay.cast(weight, computed) if weight is not None and computed != dtype else weight
    # Relay computes it on every target only along the last axis.
    last = [place for place in range(len(shape)) if place != axis] + [axis]
    back = [int(place) for place in np.argsort(last)]
    log = relay.transpose(relay.nn.log_softmax(relay.transpose(data, last)), back)
    if str(converter.infer_type(target).dtype).startswith("float"):
        target = relay.cast(target, computed) if computed != dtype else target
        target = target * relay.const(1 - smoothing, computed) + relay.const(
            smoothing / shape[axis], computed
        )
        if weight is not None:
            target = target * relay.reshape(weight, [-1 if at == axis else 1 for at in range(len(shape))])
        loss = relay.negative(relay.sum(log * target, axis=axis))
        if reduction == MEAN:
            samples = int(np.prod(shape)) // int(shape[axis])
            loss = relay.sum(loss) / relay.const(float(samples), computed)
        else:
            loss = _reduced(loss, reduction)
    else:
        loss = _likelihood(converter, log, target, weight, reduction, ignored, smoothing)
    return relay.cast(loss, dtype) if computed != dtype else loss


def _likelihood(
    converter: Converter,
    log: relay.Expr,
    target: relay.Expr,
    weight: relay.Expr | None,
    reduction: int,
    ignored: int,
    smoothing: float,
) -> relay.Expr:
    """The negative log likelihood of class indices, weighted, without the ignored ones."""
    shape = converter.infer_shape(log)
    axis, dtype = (1 if len(shape) > 1 else 0), str(converter.infer_type(log).dtype)
    valid = relay.not_equal(target, relay.const(ignored, converter.infer_type(target).dtype))
    target = relay.where(valid, target, relay.zeros_like(target))
    index = relay.expand_dims(target, axis)
    weights = relay.const(1.0, dtype) if weight is None else relay.take(weight, target, axis=0)
    weights = relay.where(valid, weights, relay.const(0.0, dtype))
    picked = relay.squeeze(relay.gather(log, axis, index), [axis])
    # An ignored one counts 0 even if its likelihood is infinite.
    loss = relay.where(valid, relay.negative(picked) * weights, relay.const(0.0, dtype))
    total = relay.sum(loss) if reduction != NONE else loss
    if reduction == MEAN:
        total = total / relay.sum(weights)
    if not smoothing:
        return total
    by_class = log
    if weight is not None:
        by_class = log * relay.reshape(weight, [-1 if at == axis else 1 for at in range(len(shape))])
    smooth = relay.negative(relay.sum(by_class, axis=axis))
    smooth = relay.where(valid, smooth, relay.const(0.0, dtype))
    if reduction != NONE:
        smooth = relay.sum(smooth)
    if reduction == MEAN:
        smooth = smooth / relay.sum(weights)
    return total * relay.const(1 - smoothing, dtype) + smooth * relay.const(
        smoothing / int(shape[axis]), dtype
    )


CONVERTERS: dict[str, Convert] = {
    "aten::l1_loss": l1_loss,
    "aten::mse_loss": mse_loss,
    "aten::smooth_l1_loss": smooth_l1_loss,
    "aten::huber_loss": huber_loss,
    "aten::binary_cross_entropy": binary_cross_entropy,
    "aten::binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "aten::soft_margin_loss": soft_margin_loss,
    "aten::margin_ranking_loss": margin_ranking_loss,
    "aten::hinge_embedding_loss": hinge_embedding_loss,
    "aten::poisson_nll_loss": poisson_nll_loss,
    "aten::kl_div": kl_div,
    "aten::nll_loss": nll_loss,
    "aten::nll_loss2d": nll_loss,
    "aten::nll_loss_nd": nll_loss,
    "aten::cross_entropy_loss": cross_entropy_loss,
}
