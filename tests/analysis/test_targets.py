"""What a target stands for, and what is said where it does not tell."""

import warnings

import pytest

from tvm_passes.analysis.targets import has_tensor_cores, parsed  # before tvm

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
