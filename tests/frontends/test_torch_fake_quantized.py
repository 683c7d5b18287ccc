"""Networks that are trained to be quantized (QAT), before they are converted."""

import pytest
import torch
from torch import nn
from torch.ao import quantization

import tvm_passes
from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_functions import assert_right

# Among them halves of a step, which go to the even one, and what is beyond the ends.
NUMBERS = torch.arange(-40, 40).reshape(2, 40) / 8
SCALES, POINTS = torch.tensor([0.25, 0.5]), torch.tensor([3, -2], dtype=torch.int32)


def test_floats_at_the_steps_of_integers():
    assert_right(
        {
            "tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, 3, 0, 15),
            "qparams": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[0], POINTS[0], 0, 15),
            "channel": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, POINTS, 0, -7, 8),
            "half": lambda x: torch.fake_quantize_per_tensor_affine(x.half(), 0.25, 3, 0, 15),
        },
        NUMBERS,
        rtol=0,
        atol=0,
    )


def test_more_steps_than_are_counted_exactly_are_refused():
    class Fine(nn.Module):
        def forward(self, x):
            return torch.fake_quantize_per_tensor_affine(x, 0.25, 0, -(2**23), 2**23 - 1)

    with pytest.raises(ImportFailure, match="more than those of 16 bits"):
        from_pytorch(Fine(), NUMBERS)


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.quantize = quantization.QuantStub()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.layer(self.quantize(x))


@pytest.fixture
def trained():
    model = Trained().train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(model, inplace=True)
    model(torch.rand(1, 3, 8, 8))
    return model


def test_a_model_that_was_trained_to_be_quantized(trained):
    trained.apply(quantization.disable_observer)
    image = torch.rand(1, 3, 8, 8)
    mod, params = from_pytorch(trained, image)
    found = tvm_passes.runtime.compile(mod, "llvm", params)(image)
    torch.testing.assert_close(found, trained.eval()(image))


def test_a_model_that_still_observes_is_refused(trained):
    with pytest.raises(ImportFailure, match=r"still observes .*: call model.apply\(.*disable_observer\)"):
        from_pytorch(trained, torch.rand(1, 3, 8, 8))
