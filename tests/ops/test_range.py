"""`arange` between numbers that are known at run time only."""

import numpy as np
import pytest

import topi_ext  # noqa: F401  gives and mends TVM
from tests.helpers import module, run

import tvm
from tvm import relay

RANGES = {
    "float32": [(0, 5, 1), (0, 1, 0.25), (0.5, 3, 0.75), (5, 0, -1.5), (0, 5, -1), (2, 2, 1)],
    "int64": [(0, 5, 1), (0, 5, 2), (5, 0, -2), (0, 5, -1), (2, 2, 1)],
}


def arange(dtype):
    numbers = [relay.var(name, shape=(), dtype=dtype) for name in ("start", "stop", "step")]
    return module(*numbers, relay.arange(*numbers, dtype=dtype))


@pytest.mark.parametrize("dtype", RANGES)
def test_as_numpy_counts(dtype):
    for numbers in RANGES[dtype]:
        (found,) = run(arange(dtype), *(np.array(number, dtype) for number in numbers))
        np.testing.assert_allclose(found, np.arange(*numbers, dtype=dtype), rtol=1e-6)


@pytest.mark.parametrize("dtype", RANGES)
def test_a_step_of_0_is_an_error_and_not_the_end_of_the_process(dtype):
    with pytest.raises(tvm.TVMError, match="a range has the step 0"):
        run(arange(dtype), *(np.array(number, dtype) for number in (0, 5, 0)))
