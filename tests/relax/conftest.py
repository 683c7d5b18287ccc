"""The mark `gpu` for the tests of Relax.

torch says whether there is one: TVM would look up the real device, and no emulated one could take its place.
"""

import pytest
import torch


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
