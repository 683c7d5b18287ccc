"""from_pytorch: what cannot be imported, and what is said then."""

import numpy as np
import pytest
import torch

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_models import Plain, Returning


@pytest.mark.parametrize("model", [lambda x: x, Plain, "resnet", None])
def test_a_model_must_be_a_module(model):
    with pytest.raises(ImportFailure, match=r"model must be a torch.nn.Module"):
        from_pytorch(model, torch.rand(3))


@pytest.mark.parametrize(
    "example, message",
    [
        ((1, 3, 8, 8), r"example_inputs\[0\] must be a tensor, not int"),
        (np.zeros((1, 3, 8, 8)), "not ndarray"),
        ((), "at least one tensor"),
        ({"image": torch.rand(1)}, "not dict"),
        ([torch.rand(1), None], r"example_inputs\[1\] must be a tensor, not NoneType"),
    ],
)
def test_inputs_must_be_tensors(example, message):
    with pytest.raises(ImportFailure, match=message):
        from_pytorch(Plain(), example)


def test_what_torch_says_of_a_model_that_does_not_run():
    with pytest.raises(
        ImportFailure, match=r"torch cannot trace Plain with inputs of \[1, 5, 8, 8\] torch.float32"
    ):
        from_pytorch(Plain(), torch.rand(1, 5, 8, 8))


def test_an_output_that_is_no_tensor():
    with pytest.raises(ImportFailure, match=r"the model's sizes.count is of type str, not a tensor"):
        from_pytorch(Returning(lambda x: {"x": x, "sizes": {"count": "3"}}), torch.rand(3))


def test_a_model_that_returns_nothing():
    with pytest.raises(ImportFailure, match="returns no tensor"):
        from_pytorch(Returning(lambda x: {"x": None}), torch.rand(3))


def test_an_operator_that_tvm_lacks():
    with pytest.raises(
        ImportFailure, match=r"TVM cannot import Returning, at aten::special_i1 \(.*: prims::bessel_i1 "
    ):
        from_pytorch(Returning(torch.special.i1), torch.rand(3))


def test_an_operator_that_tvm_has_but_not_so():
    with pytest.raises(ImportFailure, match=r"at aten::to \(.*test_pytorch_refusals.py.*bfloat16"):
        from_pytorch(Returning(lambda x: x.to(torch.bfloat16) + 1), torch.rand(3))
