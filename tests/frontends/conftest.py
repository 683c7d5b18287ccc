"""What all tests of the frontends share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """A test sees the same random numbers of torch whichever tests ran before it."""
    torch.manual_seed(0)
