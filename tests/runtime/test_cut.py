"""Models of detectors of fixed shapes, whose results are cut to what was found."""

import numpy as np
import pytest
import torch

from tests.helpers import module, numbers
from tests.passes.images_of_masks import Image, N, a_image, with_masks
from tests.runtime.test_model import AS, SHAPE, compiled, to_numpy  # noqa: F401  (a fixture)
from tvm_passes import Canonicalize, MakeDetectionStatic, runtime

import tvm
from tvm import relay


def as_dicts(mod, *names):
    mod["main"] = mod["main"].with_attr("output_names", list(names))
    return mod


def padded(mod):
    passes = tvm.transform.Sequential([MakeDetectionStatic("padded"), Canonicalize()])
    return passes(relay.transform.InferType()(mod))


@pytest.mark.parametrize("kind", AS)
def test_cut(kind):
    """As long as what the same network gives with dynamic shapes, in the graph executor."""
    mod = as_dicts(with_masks(), "boxes", "masks")
    dynamic = runtime.compile(mod, "llvm")
    cut = runtime.compile(padded(mod), "llvm", cut=True)
    assert "virtual machine" in repr(dynamic) and "graph executor" in repr(cut)
    assert repr(cut).endswith("-> boxes, masks>")
    lengths = set()
    for scale in (1.0, 0.3, 0.01):
        inputs = [AS[kind](array) for array in a_image(0, scale)]
        wanted, found = dynamic(*inputs), cut(*inputs)
        assert list(found) == ["boxes", "masks"]
        for name in wanted:
            np.testing.assert_array_equal(to_numpy(found[name]), to_numpy(wanted[name]))
        lengths.add(len(to_numpy(found["boxes"])))
    assert len(lengths) == 3 and 0 in lengths
    uncut = runtime.compile(padded(mod), "llvm")(*inputs)
    assert list(uncut) == ["boxes", "masks", "num_detections"] and len(to_numpy(uncut["boxes"])) == 9


def of_two_images():
    first, second = Image(0), Image(1)
    outputs = [
        first.rows(first.boxes),
        relay.expand_dims(second.rows(second.scores), 0),
        relay.const(np.arange(9.0)),
    ]
    return module(*first.inputs, *second.inputs, relay.Tuple(outputs))


def test_cut_of_several_images(tmp_path):
    mod = of_two_images()
    dynamic, cut = runtime.compile(mod, "llvm"), runtime.compile(padded(mod), "llvm", cut=True)
    inputs = [torch.from_numpy(array) for array in (*a_image(), *a_image(1, 0.3))]
    wanted, found = dynamic(*inputs), cut(*inputs)
    assert len(wanted["output0"]) != wanted["output1"].shape[1]
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
    assert len(found["output2"]) == 9  # no detections

    path = str(tmp_path / "network.so")
    cut.lib.export_library(path)
    loaded = runtime.Model(tvm.runtime.load_module(path), cut=cut.cut)
    np.testing.assert_array_equal(loaded(*inputs)["output1"], wanted["output1"])
    with pytest.raises(ValueError, match="cut=True is for one number"):
        runtime.Model(tvm.runtime.load_module(path), cut=True)
    with pytest.raises(ValueError, match="cut has entries for 1 outputs, but there are 3 besides the number"):
        runtime.Model(tvm.runtime.load_module(path), cut=[[0, 0]])


def test_cut_of_what_is_built_already():
    mod = padded(with_masks())
    inputs = a_image(0, 0.3)
    wanted = runtime.compile(mod, "llvm", cut=True)(*inputs)
    for build in (relay.build, relay.vm.compile):
        found = runtime.Model(build(mod, "llvm"), cut=True)(*inputs)
        assert list(found) == ["output0", "output1"]
        np.testing.assert_array_equal(found["output0"], wanted["output0"])


def test_what_cannot_be_cut(compiled):  # noqa: F811
    with pytest.raises(ValueError, match=r"must be the number of detections, int32.*MakeDetectionStatic"):
        runtime.Model(compiled.lib, cut=True)(numbers(*SHAPE))
    image = Image()
    twice = relay.stack([image.rows(image.boxes)] * 2, 0)
    with pytest.raises(ValueError, match="along axis 1 of float32 \\(2, 9, 4\\) are not contiguous"):
        runtime.compile(padded(module(*image.inputs, twice)), "llvm", cut=True)


def test_one_detected_property_is_bare():
    image = Image()
    model = runtime.compile(padded(module(*image.inputs, image.rows(image.scores))), "llvm", cut=True)
    scores = model(*a_image(0, 0.3))
    assert isinstance(scores, np.ndarray) and 0 < len(scores) < N and (scores > 0.25).all()
