"""Elementwise operators of PyTorch, whose numbers TVM's importer gets wrong or does not know."""

import math

import numpy as np
import pytest
import torch

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_functions import Functions, assert_right
from tests.helpers import runner

NAN, INF = math.nan, math.inf
SPECIAL = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 0.0, -0.0, 3.7, -3.7, NAN, INF, -INF])
OTHER = torch.tensor([2.0, -2.0, NAN, 1.0, 3.0, 0.5, -0.5, -1.5, 1.5, 1.0, 2.0, -2.0])
NUMBERS = torch.tensor([-7, -3, -1, 0, 1, 2, 5, 7])
OTHERS = torch.tensor([2, -2, 3, 4, -3, 7, -7, 1])
TRUTHS = torch.tensor([True, True, False, False])


def test_floats():
    assert_right(
        {
            "add with alpha": lambda x, y: torch.add(x, y, alpha=2.5),
            "sub with alpha": lambda x, y: torch.sub(x, y, alpha=3),
            "rsub with alpha": lambda x, y: torch.rsub(x, y, alpha=2),
            "round": lambda x, y: torch.round(x),
            "round to decimals": lambda x, y: torch.round(x / 7, decimals=2),
            "round to tens": lambda x, y: torch.round(x * 7, decimals=-1),
            "maximum": torch.maximum,
            "minimum": torch.minimum,
            "fmax": torch.fmax,
            "fmin": torch.fmin,
            "max of two": torch.max,
            "clamp from below": lambda x, y: torch.clamp(x, min=0.3),
            "clamp from above": lambda x, y: x.clamp_max(0.3),
            "clamp to tensors": lambda x, y: torch.clamp(x, y - 1, y),
            "clamp to crossed bounds": lambda x, y: torch.clamp(y, 2.0, 1.0),
            "copysign": torch.copysign,
            "signbit": lambda x, y: torch.signbit(x),
            "logaddexp of equal numbers": lambda x, y: torch.logaddexp(x.clamp(-9, 9), x.clamp(-9, 9)),
            "isin, inverted": lambda x, y: torch.isin(x, y[:4], invert=True),
            "heaviside": torch.heaviside,
            "nan_to_num": lambda x, y: torch.nan_to_num(x, 2.0),
            "atan2": torch.atan2,
            "hypot": torch.hypot,
            "logaddexp": torch.logaddexp,
            "lerp": lambda x, y: torch.lerp(x, y, 0.3),
            "addcdiv": lambda x, y: torch.addcdiv(x, y, y, value=0.5),
            "isclose": lambda x, y: torch.isclose(x, y, equal_nan=True),
            "to bool": lambda x, y: x.to(torch.bool),
            "logical_and": torch.logical_and,
            "a 0-d tensor counts less": lambda x, y: x + y[:2].double().sum(),
        },
        SPECIAL,
        OTHER,
    )


def test_quotients():
    """Where either is infinite or zero, torch itself is not of one mind from version to version."""
    x = torch.tensor([7.5, -7.5, 7.5, -7.5, 6.0, 0.3, 1e6])
    y = torch.tensor([2.0, 2.0, -2.0, -2.0, 3.0, 0.1, 0.7])
    assert_right(
        {
            "remainder": torch.remainder,
            "fmod": torch.fmod,
            "floor_divide": torch.floor_divide,
            "div to floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
            "div to trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
            "remainder of a number": lambda x, y: x % -2.5,
        },
        x,
        y,
    )


def test_near_zero():
    x = torch.tensor([1e-30, -1e-12, 1e-7, 3e-4, -0.5, 0.9, 5.0])
    assert_right(
        {
            "log1p": torch.log1p,
            "expm1": torch.expm1,
            "exp2": torch.exp2,
            "sinc": torch.sinc,
            "logit": lambda x: torch.logit(x, 1e-6),
            "lgamma": torch.lgamma,
            "digamma": torch.digamma,
        },
        x,
        atol=0,
        rtol=2e-5,
    )


def test_integers():
    assert_right(
        {
            "true division": torch.true_divide,
            "div": torch.div,
            "remainder": torch.remainder,
            "fmod": torch.fmod,
            "floor_divide": torch.floor_divide,
            "pow": lambda x, y: torch.pow(x, 3),
            "pow of tensors": lambda x, y: torch.pow(x, y.abs()),
            "pow of a float": lambda x, y: torch.pow(x, 0.5),
            "float_power": lambda x, y: torch.float_power(y, x),
            "square": lambda x, y: torch.square(x),
            "reciprocal": lambda x, y: torch.reciprocal(y),
            "exp": lambda x, y: torch.exp(x),
            "sigmoid": lambda x, y: torch.sigmoid(x),
            "floor": lambda x, y: torch.floor(x),
            "isfinite": lambda x, y: torch.isfinite(x),
            "clamp": lambda x, y: torch.clamp(x, -2, 2),
            "clip": lambda x, y: torch.clip(x, -1, 1.5),
            "clamp to floats": lambda x, y: torch.clamp(x, -1.5, 1.5),
            "and": torch.bitwise_and,
            "or": torch.bitwise_or,
            "xor": lambda x, y: x ^ y,
            "not": lambda x, y: ~x,
            "shifts": lambda x, y: (x << 2, x >> 1),
            "to uint8": lambda x, y: x.abs().to(torch.uint8),
            "compare with a fraction": lambda x, y: x > 1.5,
            "integers and floats": lambda x, y: x * 0.5 + y,
        },
        NUMBERS,
        OTHERS,
        rtol=1e-6,
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_that_wrap(dtype):
    least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([least, greatest, 0, 1, 2, 3, 5, 7, 0, 2], dtype=dtype)
    y = torch.tensor([1, 1, 2, 100, 7, 3, 62, 63, 64, 70], dtype=dtype)
    assert_right(
        {
            "abs": lambda x, y: torch.abs(x),
            "negative": lambda x, y: torch.neg(x),
            "sum": lambda x, y: x + y,
            "sum with alpha, of a narrower one": lambda x, y: torch.add(x, y.to(torch.int8), alpha=3),
            "pow": torch.pow,
            "pow of tensors that are known": lambda x, y: x[:4] ** torch.tensor([0, 1, 5, 9], dtype=x.dtype),
            "the power of 0": lambda x, y: x**0,
            "shifted as far as the type is long, and farther": lambda x, y: (x << y, x >> y),
            "quotient": lambda x, y: torch.div(x, y, rounding_mode="floor"),
            "remainder": lambda x, y: (x % y, torch.fmod(x, y)),
            "filled": lambda x, y: x.index_fill(0, torch.tensor([0]), 3),
        },
        x,
        y,
    )


def test_the_least_narrow_integer_divided_by_minus_one():
    """Of wider ones, torch itself ends the process."""
    x = torch.tensor([-128, -127, 127], dtype=torch.int8)
    assert_right(
        {
            "floor": lambda x, y: x // y,
            "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
            "remainder": lambda x, y: (x % y, torch.fmod(x, y)),
            "of int16": lambda x, y: (x.short() * 256) // y,
        },
        x,
        torch.full_like(x, -1),
    )


def test_bool():
    assert_right(
        {
            "add": torch.add,
            "add with alpha": lambda x, y: torch.add(x, y, alpha=3),
            "mul": torch.mul,
            "less": torch.lt,
            "greater or equal": torch.ge,
            "maximum": torch.maximum,
            "times an integer": lambda x, y: x * 3,
            "where": lambda x, y: torch.where(x, 2, 0.5),
            "exp": lambda x, y: torch.exp(x),
            "sign": lambda x, y: torch.sign(x),
            "put, added": lambda x, y: torch.put(x, torch.tensor([0, 0, -1]), y[:3], accumulate=True),
        },
        TRUTHS,
        TRUTHS.flip(0),
    )


def test_comparisons_in_place_keep_the_dtype():
    """As Ultralytics makes its masks: `masks.gt_(0.5)`."""
    assert_right(
        {
            "gt_": lambda x, n: x.clone().gt_(0.5),
            "gt_ of a part": lambda x, n: (y := x.clone(), y[2:5].gt_(0.5))[0],
            "eq_": lambda x, n: n.clone().eq_(n.flip(0)),
            "logical_not_": lambda x, n: n.clone().logical_not_(),
            "logical_and_": lambda x, n: x.clone().logical_and_(n),
            "lt_ of truths": lambda x, n: (x > 0).lt_(n > 0),
        },
        torch.tensor([0.5, 0.7, -1.0, 2.0, 0.0, NAN, INF, 0.25]),
        NUMBERS,
    )


def test_float16_is_computed_in_float32():
    x = torch.linspace(-3, 3, 13, dtype=torch.float16)
    assert_right(
        {"sin": torch.sin, "tanh": torch.tanh, "sum": lambda x: (x * 3000).abs().mean(), "exp": torch.exp},
        x,
        rtol=1e-3,
        atol=1e-3,
    )


def test_a_number_is_not_rounded_to_float16():
    """Where it is the second factor; torch rounds the first."""
    x = torch.linspace(-0.003, 0.004, 8, dtype=torch.float16)
    great, small = torch.tensor(1e5), torch.tensor(1e-6)
    assert_right(
        {
            "times a 0-d tensor": lambda x: x * great,
            "times a number": lambda x: x * 1e5,
            "0-d tensor times": lambda x: great * x,
            "times an integer": lambda x: x * torch.tensor(100000),
            "times what is known at run time": lambda x: x * (x.float().abs().sum() * 1e7),
            "by": lambda x: x / great + x / small,
            "by, to floor": lambda x: x // 1e-5,
            "by, to trunc": lambda x: torch.div(x, 1e-5, rounding_mode="trunc"),
            "in place": lambda x: x.clone().mul_(great),
        },
        x,
        rtol=1e-3,
        atol=0,
    )


@pytest.mark.parametrize("function", [torch.linalg.det, torch.special.zeta])
def test_refused_in_one_line(function):
    given = (torch.eye(3),) if function is torch.linalg.det else (torch.eye(3), torch.eye(3))
    with pytest.raises(ImportFailure, match="aten::") as failure:
        from_pytorch(Functions({"f": function}), given)
    assert "\n" not in str(failure.value)


def test_remainders_of_large_quotients_are_exact():
    x, y = torch.tensor([1e30, -1e30, 5.5, -5.5]), torch.tensor([0.7, 21.0, 2.0, 2.0])
    mod, _ = from_pytorch(Functions({"fmod": torch.fmod}), (x, y))
    (found,) = runner(mod)(x.numpy(), y.numpy())
    np.testing.assert_array_equal(found, np.fmod(x.numpy(), y.numpy()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floors_and_roots_of_all_kinds_of_numbers(dtype):
    x = torch.tensor([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 6e4, -1e-7, 7.0], dtype=dtype)
    assert_right(
        {
            "floor_divide": lambda x: x[:, None] // x,
            "square root": lambda x: x**0.5,
            "its inverse": lambda x: x**-0.5,
        },
        x,
        rtol=1e-3 if dtype == torch.float16 else 1e-6,
    )
