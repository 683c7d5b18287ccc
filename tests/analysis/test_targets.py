"""What a target stands for, and what is said where it does not tell."""

import warnings

import pytest

from tvm_passes.analysis.targets import has_tensor_cores, parsed, target_of  # before tvm

import tvm


@pytest.mark.skipif(tvm.cuda().exist, reason="there is a GPU to ask")
def test_cuda_without_an_architecture_nor_a_gpu():
    """It has no tensor cores, so that pipelines for it leave float32 and shapes as they are."""
    with pytest.warns(UserWarning, match=r"'cuda' has no -arch, and there is no GPU here .*cuda -arch=sm_90"):
        assert not has_tensor_cores(parsed("cuda"), "float16")


@pytest.mark.parametrize("text", ["cuda -arch=sm_90", "llvm", "cuda -max_num_threads=512 -arch=sm_50"])
def test_targets_that_say_enough(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed(text)


MISTYPED = {
    "llvm -mcpu=skylake-avx51": r"-mcpu: LLVM \d+ has no processor 'skylake-avx51', but skylake-avx512",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=haswel": "no processor 'haswel', but haswell",
    "llvm -mattr=+avx2,+avx21": r"-mattr: LLVM \d+ has no feature 'avx21'",
    "llvm -mattr=-avx21": "no feature 'avx21'",
    "llvm -mattr=avx2": r"-mattr: 'avx2' says neither \+ nor -: give such as \+avx2",
}


@pytest.mark.parametrize("text", MISTYPED)
def test_names_that_llvm_would_ignore(text):
    """It compiles without the extensions that were asked for, several times as slow."""
    with pytest.raises(ValueError, match=MISTYPED[text]):
        target_of(text, "compile")


def test_names_of_the_host_of_a_gpu():
    with pytest.raises(ValueError, match="no processor 'haswel'"):
        target_of(tvm.target.Target("cuda -arch=sm_90", host="llvm -mcpu=haswel"), "compile")


@pytest.mark.parametrize(
    "options",
    [
        "-mcpu=haswell -mattr=+avx2,-fma",
        "-mcpu=generic",
        "-mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -mattr=+neon,+v8.2a,+dotprod",
    ],
)
def test_names_that_llvm_knows(options):
    assert target_of(f"llvm {options}", "compile").kind.name == "llvm"
