"""A node of ONNX with its inputs, and arrays that many of these have."""

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

RANDOM = np.random.default_rng(5)
LATEST = 22


class Case(NamedTuple):
    """A node: inputs that are `known` are weights of the model; None stands for one that is omitted."""

    op_type: str
    inputs: list
    known: tuple = ()
    attributes: dict = MappingProxyType({})
    opsets: tuple = (13, LATEST)
    outputs: int = 1


def random(*shape, dtype="float32"):
    return RANDOM.standard_normal(shape).astype(dtype)


def integers(low, high, *shape, dtype="int64"):
    return RANDOM.integers(low, high, shape).astype(dtype)


def case(op_type, *inputs, known=(), opsets=(13, LATEST), outputs=1, **attributes):
    inputs = [np.asarray(each, "int64") if isinstance(each, list) else each for each in inputs]
    inputs = [None if each is None else np.asarray(each) for each in inputs]
    return Case(op_type, inputs, tuple(known), attributes, opsets, outputs)


IMAGE, ROWS, VECTOR = random(2, 4, 7, 9), random(3, 5), random(5)
POSITIVE = np.abs(IMAGE) + 0.1
NUMBERS = np.float32([-2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 3.49, 1e9])
WHOLE, OTHER = integers(-9, 9, 3, 5), integers(-9, 9, 3, 5)
DIVISORS = np.int64([3, -2, 5, -7, 4])
SMALL_NUMBERS = np.float32([-0.9, -0.5, 0, 0.1, 0.8])
MASK, MASK_2 = WHOLE > 0, OTHER > 0
HALF = random(2, 4, 7, 9, dtype="float16")
INFINITE = np.float32([np.nan, np.inf, -np.inf, 0, 1, -1])
