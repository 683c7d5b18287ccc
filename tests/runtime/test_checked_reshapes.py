"""Reshapes of unknown sizes to known shapes, which TVM did not compare with the data at all."""

import numpy as np
import pytest

from tests.helpers import module, quick
from tvm_passes import runtime
from tvm_passes.engine.expressions import shape_of_type, type_of

import tvm
from tvm import relay


def of_unknown_size(*shape):
    return relay.var("x", shape=[size or relay.Any() for size in shape], dtype="float32")


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize(
    ("shape", "new_shape", "right", "wrong"),
    [
        ((None, None), (4, 3), [(3, 4), (2, 6)], [(2, 3), (5, 5), (0, 4)]),
        ((1, None, 2), (0, 6, 0), [(1, 6, 2)], [(1, 5, 2), (1, 7, 2)]),
        ((None,), (), [(1,)], [(0,), (2,)]),
    ],
)
def test_another_number_of_elements_is_refused(shape, new_shape, right, wrong, is_fused):
    x = of_unknown_size(*shape)
    reshaped = relay.reshape(relay.exp(x) if is_fused else x, new_shape)
    model = runtime.compile(module(x, relay.exp(reshaped) if is_fused else reshaped), quick())
    for each in right:
        array = np.random.default_rng(0).random(each, "float32")
        expected = np.exp(np.exp(array)) if is_fused else array
        found = np.asarray(model(array))
        assert found.shape == shape_of_type(type_of(reshaped))
        np.testing.assert_allclose(found.ravel(), expected.ravel(), rtol=1e-5)
    for each in wrong:
        with pytest.raises(tvm.TVMError, match="another number of elements than its new shape"):
            model(np.ones(each, "float32"))


def test_no_elements_are_taken():
    x = of_unknown_size(None, 4)
    model = runtime.compile(module(x, relay.reshape(x, (4, 0), allowzero=True)), quick())
    assert model(np.ones((0, 4), "float32")).shape == (4, 0)
    with pytest.raises(tvm.TVMError, match="another number of elements"):
        model(np.ones((1, 4), "float32"))
