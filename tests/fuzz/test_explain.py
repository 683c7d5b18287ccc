"""The rules explain what they are for, and nothing else."""

import numpy as np
import torch

from tests.fuzz.explain import explanation, plain
from tests.fuzz.oracles import torch_oracle


class Step(torch.nn.Module):
    def forward(self, x):
        return torch.floor(x / 3 * 3)


class Move(torch.nn.Module):
    def forward(self, x):
        return x.flip(0).reshape(-1)


class ToInteger(torch.nn.Module):
    def forward(self, x):
        return x.to(torch.int32)


class Top(torch.nn.Module):
    def forward(self, x):
        return x.topk(2)[1]


class InOrder(torch.nn.Module):
    """1 for one order of all elements, 0 for all others."""

    def forward(self, x):
        return (x.topk(x.shape[0])[1] == torch.arange(x.shape[0])).all().float()


def explained(module, array, change):
    oracle = torch_oracle(module, [array])
    found = [output.copy() for output in oracle(plain)]
    change(found[0])
    return explanation(oracle, found)


def set_first(value):
    def change(output):
        output.flat[0] = value

    return change


def test_a_step_function_at_its_step():
    array = np.array([7.0, 2.5], "float32")
    assert explained(Step(), array, set_first(6.0)) == "rounding"
    assert explained(Step(), array, set_first(2.0)) is None
    assert explained(Step(), array[::-1].copy(), set_first(1.0)) is None  # 2.5 is far from a step


def test_what_is_only_moved_is_not_rounded():
    assert explained(Move(), np.ones(4, "float32"), set_first(1.001)) is None


def test_a_cast_out_of_range():
    assert explained(ToInteger(), np.array([1e20, 1.0], "float32"), set_first(7)) == "cast out of range"
    assert explained(ToInteger(), np.array([2.0, 1e20], "float32"), set_first(7)) is None


def test_ties():
    assert explained(Top(), np.array([1.0, 2.0, 2.0, 2.0], "float32"), set_first(3)) == "ties"
    assert explained(Top(), np.array([1.0, 2.0, 3.0, 4.0], "float32"), set_first(0)) is None


def test_ties_in_the_order_of_their_places():
    array = np.ones(12, "float32")
    assert explanation(torch_oracle(InOrder(), [array]), [np.float32(1)]) == "ties"
    array[3] = 2
    assert explanation(torch_oracle(InOrder(), [array]), [np.float32(1)]) is None
