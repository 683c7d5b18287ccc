"""from_pytorch: Fourier transforms, and the complex numbers between them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.fft import rfft2

import tvm_passes
from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_models import Returning

IMAGE = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(0))
FILTERS = torch.randn(4, 3, 6, 4, 2, generator=torch.Generator().manual_seed(1))
fft = torch.fft


class FourierUnit(nn.Module):
    """The one of LaMa: a convolution of the spectrum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 1)

    def forward(self, x):
        spectrum = torch.fft.rfftn(x, dim=(-2, -1), norm="ortho")
        parts = torch.stack((spectrum.real, spectrum.imag), dim=-1).permute(0, 1, 4, 2, 3).contiguous()
        parts = torch.relu(self.conv(parts.view(2, 6, *spectrum.size()[2:])))
        parts = parts.view(2, 3, 2, *spectrum.shape[2:]).permute(0, 1, 3, 4, 2).contiguous()
        spectrum = torch.complex(parts[..., 0], parts[..., 1])
        return torch.fft.irfftn(spectrum, s=x.shape[-2:], dim=(-2, -1), norm="ortho")


def global_filter(x):
    spectrum = fft.rfft2(x, norm="ortho") * torch.view_as_complex(FILTERS[0])
    return fft.irfft2(spectrum, s=x.shape[-2:], norm="ortho")


def neural_operator(x):
    spectrum = torch.einsum(
        "bixy,oixy->boxy", fft.rfft2(x)[:, :, :5], torch.view_as_complex(FILTERS)[:, :, :5]
    )
    return fft.irfft2(torch.cat([spectrum, 2j * spectrum[:, :, :1] - 1.5], 2), s=(6, 7))


def amplitude_and_phase(x):
    spectrum = fft.fft2(x)
    return fft.ifft2(torch.polar(spectrum.abs().sqrt(), torch.angle(spectrum))).real


def by_the_other(x):
    spectrum, other = fft.fftn(x, dim=(2, 3)), fft.fft2(x[:, :1])
    shifted = fft.ifftshift(fft.fftshift(spectrum, dim=(-2, -1)) * x, dim=(-2, -1))
    return torch.view_as_real(fft.ifft2(shifted.conj() / (other + 40) - x * other, norm="forward"))


def by_name(x):
    spectrum = fft.rfft2(input=x).to(torch.complex64)
    return (torch.mul(2 / (spectrum + 50), other=spectrum**3).mT * 1j).abs()


COMPUTE = {
    "by name": by_name,
    "filter": global_filter,
    "operator": neural_operator,
    "amplitude and phase": amplitude_and_phase,
    "quotient": by_the_other,
    "cut": lambda x: fft.irfft(fft.rfft(x, n=5, dim=2), n=9, dim=2, norm="forward"),
    "filled": lambda x: fft.ifft(fft.fft(x, n=9)).imag + fft.fft(x, n=9, norm="ortho").real,
    "of integers": lambda x: fft.rfft((x * 9).int()).imag,
    "of all axes": lambda x: fft.irfftn(fft.rfftn(x) * 1j),
    "by a number": lambda x: torch.view_as_real(fft.fft2(x) / (3 - 4j)),
}


def assert_computes(model, image):
    mod, params = from_pytorch(model, image)
    found = np.asarray(tvm_passes.runtime.compile(mod, "llvm", params=params)(image.numpy()))
    with torch.no_grad():
        np.testing.assert_allclose(found, model(image).numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", COMPUTE)
def test_what_networks_do_with_spectra(name):
    assert_computes(Returning(COMPUTE[name]), IMAGE)


def test_a_convolution_of_the_spectrum():
    torch.manual_seed(0)
    model = FourierUnit().eval()
    assert_computes(model, IMAGE)
    exported = torch.export.export(model, (IMAGE,)).module()
    exported.eval = lambda: exported  # which torch refuses
    assert_computes(exported, IMAGE)


class Imported(nn.Module):
    def forward(self, x):
        return rfft2(x).abs()


def test_a_function_that_the_module_of_a_model_imports():
    assert_computes(Imported(), IMAGE)


def test_torch_is_left_as_it_was():
    before = fft.rfft2, torch.complex, torch.ops.aten.fft_rfft2.default._op
    from_pytorch(Returning(lambda x: fft.rfft2(x).real), IMAGE)
    assert (fft.rfft2, torch.complex, torch.ops.aten.fft_rfft2.default._op) == before


def in_place(change):
    def compute(x):
        spectrum = fft.fft2(x)
        change(spectrum)
        return spectrum.real

    return compute


def scaled(spectrum):
    spectrum /= 2


def without_low(spectrum):
    spectrum[..., 0] = 0


@pytest.mark.parametrize(
    "compute, reason",
    [
        (
            lambda x: fft.rfft2(x),
            "not a tensor: TVM has no complex numbers: return torch.view_as_real",
        ),
        (lambda x: fft.rfft2(x).exp().real, "exp of complex numbers is not imported: use their"),
        (in_place(lambda x: x.mul_(x)), "mul_ changes complex numbers in place, .* compute new ones"),
        (in_place(lambda x: x.transpose_(1, 2)), "transpose_ changes complex numbers in place"),
        (lambda x: (fft.rfft2(x) ** 0.5).real, "the power 0.5 of complex numbers .* by abs, angle and polar"),
        (lambda x: torch.einsum("bchw,bchw,bchw->bc", *[fft.fft2(x)] * 3).real, "einsum of more than two"),
        (in_place(scaled), "__idiv__ changes complex numbers in place"),
        (in_place(without_low), "__setitem__ changes complex numbers in place, .* join parts by torch.cat"),
    ],
)
def test_other_complex_numbers_are_refused(compute, reason):
    with pytest.raises(ImportFailure, match=reason):
        from_pytorch(Returning(compute), IMAGE)
