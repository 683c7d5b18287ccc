"""from_pytorch: what cannot be imported, and what is said then."""

import numpy as np
import pytest
import torch

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_models import Plain, Returning
from tests.helpers import runner


@pytest.mark.parametrize("model", [lambda x: x, Plain, "resnet", None])
def test_a_model_must_be_a_module(model):
    with pytest.raises(ImportFailure, match=r"model must be a torch.nn.Module"):
        from_pytorch(model, torch.rand(3))


@pytest.mark.parametrize(
    "model, advice",
    [
        (torch.export.ExportedProgram.__new__(torch.export.ExportedProgram), r"pass its module\(\)"),
        (Plain().state_dict(), "pass the model whose load_state_dict takes these weights"),
        (Plain, "pass an instance of it"),
    ],
)
def test_what_is_often_taken_for_a_model(model, advice):
    with pytest.raises(ImportFailure, match=f"model must be a torch.nn.Module.*: {advice}"):
        from_pytorch(model, torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize(
    "example, message",
    [
        ((1, 3, 8, 8), r"example_inputs\[0\] must be a tensor, not int"),
        (np.zeros((1, 3, 8, 8)), "not ndarray"),
        ((), "at least one tensor"),
        ({"image": torch.rand(1)}, "not dict"),
        (({"image": torch.rand(1)},), "not dict: pass a module that calls the model with it"),
        ((np.zeros((1, 3, 8, 8)),), "not ndarray: give torch.from_numpy of it"),
        (torch.empty(1, 3, 8, 8, device="meta"), r"example_inputs\[0\] is on the device meta.*: give one"),
        ([torch.rand(1), None], r"example_inputs\[1\] must be a tensor, not NoneType"),
    ],
)
def test_inputs_must_be_tensors(example, message):
    with pytest.raises(ImportFailure, match=message):
        from_pytorch(Plain(), example)


@pytest.mark.parametrize(
    "model, message",
    [
        (torch.nn.LazyConv2d(8, 3), "LazyConv2d.weight has no shape.*: run it once"),
        (torch.nn.LazyBatchNorm2d(), "LazyBatchNorm2d.weight has no shape.*: run it once"),
        (
            torch.nn.Conv2d(3, 8, 3, device="meta"),
            "Conv2d.weight is on the device meta.*: give the model",
        ),
    ],
)
def test_weights_that_are_still_to_come(model, message):
    with pytest.raises(ImportFailure, match=message):
        from_pytorch(model, torch.rand(1, 3, 8, 8))


def test_what_torch_says_of_a_model_that_does_not_run():
    with pytest.raises(
        ImportFailure, match=r"torch cannot trace Plain with inputs of \[1, 5, 8, 8\] torch.float32"
    ):
        from_pytorch(Plain(), torch.rand(1, 5, 8, 8))


def test_an_output_that_is_no_tensor():
    with pytest.raises(ImportFailure, match=r"the model's sizes.count is of type str, not a tensor"):
        from_pytorch(Returning(lambda x: {"x": x, "sizes": {"count": "3"}}), torch.rand(3))


@pytest.mark.parametrize(
    "returned, advice",
    [
        (lambda x: (x, 3), "output1 is of type int, not a tensor: return it as a tensor that is computed"),
        (lambda x: {"a": x}.values(), "dict_values, not a tensor: return a list or a tuple of tensors"),
        (lambda x: Plain(), "not a tensor: return tensors, in lists, tuples, dicts or dataclasses"),
    ],
)
def test_what_to_return_in_place_of_an_output_that_is_no_tensor(returned, advice):
    with pytest.raises(ImportFailure, match=advice):
        from_pytorch(Returning(returned), torch.rand(3))


def test_several_inputs_that_are_no_tuple():
    with pytest.raises(ImportFailure, match="not Tensor: several example inputs are a tuple"):
        from_pytorch(Returning(torch.add), torch.rand(3), torch.rand(3))


def test_a_model_that_returns_nothing():
    with pytest.raises(ImportFailure, match="returns no tensor"):
        from_pytorch(Returning(lambda x: {"x": None}), torch.rand(3))


@pytest.mark.parametrize(
    "function, name",
    [
        (torch.linalg.det, r"at aten::linalg_det \(.*\): aten::_linalg_det"),
        (torch.linalg.qr, r"aten::linalg_qr \("),
        (torch.special.i1, r"at aten::special_i1 \(.*\): prims::bessel_i1"),
    ],
)
def test_an_operator_that_tvm_lacks_is_named_with_what_to_do(function, name):
    advice = "write the model with other operators, or compute this outside of it"
    with pytest.raises(ImportFailure, match=rf"TVM cannot import Returning.* {name}.*: {advice}"):
        from_pytorch(Returning(function), torch.rand(3, 3))


def test_windows_and_other_tensors_of_numbers_alone_are_constants():
    model = Returning(
        lambda x: [x * torch.hann_window(x.shape[-1]), torch.tril_indices(2, 2), torch.kaiser_window(8)]
    )
    mod, _ = from_pytorch(model, torch.ones(8))
    for ours, theirs in zip(runner(mod)(np.ones(8, "float32")), model(torch.ones(8))):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_an_operator_that_tvm_has_but_not_so():
    with pytest.raises(ImportFailure, match=r"at aten::to \(.*test_pytorch_refusals.py.*bfloat16"):
        from_pytorch(Returning(lambda x: x.to(torch.bfloat16) + 1), torch.rand(3))
