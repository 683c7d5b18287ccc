"""What reads a convolution in NHWC computes the same, however it names its axes."""

import numpy as np
import pytest

from tests.relax.modules import compiled, module_of, run
from tvm_passes.relax.convert_to_nhwc import ConvertToNHWC

from tvm import relax, tirx

op = relax.op
RNG = np.random.default_rng(0)
WEIGHTS, IMAGE = (RNG.normal(size=shape).astype("float32") for shape in ((8, 3, 3, 3), (1, 3, 6, 5)))


def of_means(read):
    return lambda x: read(op.mean(x, [2, 3], keepdims=True))


READERS = {
    "squeezed from the end": of_means(lambda x: op.squeeze(x, [-1])),
    "squeezed twice": of_means(lambda x: op.squeeze(op.squeeze(x, [-1]), [-1])),
    "squeezed of all": of_means(op.squeeze),
    "squeezed of all by name": of_means(lambda x: op.squeeze(x, [0, 1, 2, 3])),
    "squeezed of none": lambda x: op.squeeze(x, [-1, 2]),
    "transposed from the end": lambda x: op.permute_dims(x, [0, -1, 1, -2]),
    "reversed": op.permute_dims,
    "stacked": lambda x: op.stack([x, op.negative(x)], 1),
    "stacked at the end": lambda x: op.stack([x, op.negative(x)], -1),
    "stacked with others": lambda x: op.stack([x, relax.const(np.ones((1, 8, 6, 5), "float32"))], -2),
    "repeated": lambda x: op.repeat(x, 2, -3),
    "repeated as a vector": lambda x: op.repeat(x, 2),
    "a mean from the end": lambda x: op.mean(x, [-3]),
    "flipped from the end": lambda x: op.flip(x, -1),
}


@pytest.mark.parametrize("name", READERS)
def test_what_reads_a_convolution(name):
    def build(arguments):
        return READERS[name](op.nn.conv2d(arguments[0], relax.const(WEIGHTS), padding=1))

    module = module_of({"main": (build, [relax.TensorType(IMAGE.shape, "float32")])})
    after = ConvertToNHWC()(relax.transform.ConvertToDataflow(1)(module))  # as importers write modules
    assert 'data_layout="NHWC"' in after.script(show_meta=False)
    (expected,), (found,) = (run(compiled(each), [IMAGE]) for each in (module, after))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_slice_of_an_open_axis():
    height, width = (tirx.Var(name, "int64") for name in ("h", "w"))

    def build(arguments):
        (image,) = arguments
        convolved = op.nn.conv2d(image, relax.const(WEIGHTS), padding=1)
        return op.nn.relu(op.strided_slice(convolved, [2], [1], [height]))

    module = module_of({"main": (build, [relax.TensorType((1, 3, height, width), "float32")])})
    after = ConvertToNHWC()(relax.transform.ConvertToDataflow(1)(module))
    assert 'data_layout="NHWC"' in after.script(show_meta=False)
    (expected,), (found,) = (run(compiled(each), [IMAGE]) for each in (module, after))
    assert found.shape == (1, 8, 5, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
