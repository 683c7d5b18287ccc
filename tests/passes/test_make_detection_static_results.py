"""MakeDetectionStatic of what is computed from all kept rows, from their number, or written into rows."""

import numpy as np
import pytest

from tests.helpers import apply, module, quick, refusals, runner
from tests.passes.images_of_masks import N
from tests.passes.kept_rows import INPUTS, column, filtered, is_dynamic, of_kept, places, rows, size, static
from tvm_passes import MakeDetectionStatic
from tvm_passes.detection.selection import select
from tvm_passes.engine.graph import Graph

from tvm import relay


def assert_static_and_same(mod, *inputs):
    """Of outputs that are not rows, or of rows, the number of which is the last output."""
    after = relay.transform.InferType()(static(mod, "padded"))
    assert not any(map(is_dynamic, Graph(after["main"]).nodes))
    padded = [list(rows) for rows in after["main"].attrs["padded_rows"]]
    dynamic, compute = runner(mod, quick()), runner(after, quick())
    for arrays in inputs:
        expected, found = dynamic(*arrays), compute(*arrays)
        for place, (wanted, each) in enumerate(zip(expected, found)):
            assert each.dtype == wanted.dtype
            if padded and padded[place]:
                assert not each[len(wanted) :].any()
                each = each[: len(wanted)]
            np.testing.assert_allclose(each, wanted, rtol=1e-6)


def as_integers(boxes, dtype="int32"):
    return relay.cast(boxes, dtype)


OVER_THE_ROWS = {
    "sum": lambda boxes: relay.sum(boxes, axis=[0]),
    "product": lambda boxes: relay.prod(boxes / relay.const(100.0), axis=[0]),
    "sum of all": lambda boxes: relay.sum(boxes),
    "maximum": lambda boxes: relay.max(boxes, axis=[0], keepdims=True),
    "maximum of integers": lambda boxes: relay.max(as_integers(boxes), axis=[0]),
    "minimum of negative ones": lambda boxes: relay.min(relay.negative(boxes), axis=[0]),
    "minimum of bytes": lambda boxes: relay.min(as_integers(boxes, "uint8"), axis=[0]),
    "any": lambda boxes: relay.any(boxes > relay.const(150.0), axis=[0]),
    "all": lambda boxes: relay.all(boxes > relay.const(20.0), axis=[0]),
    "distance from the maximum": lambda boxes: relay.max(boxes, axis=[0]) - boxes,
    "of what a filter leaves": lambda boxes: relay.max(filtered(boxes), axis=[0]),
}


def each_of(functions):
    return lambda boxes: relay.Tuple([function(boxes) for function in functions.values()])


def test_reductions_over_the_rows():
    assert_static_and_same(of_kept(each_of(OVER_THE_ROWS)), *INPUTS[:3], INPUTS[6])


COUNTED = {
    "how many": lambda boxes: size(boxes),
    "the shape": lambda boxes: relay.shape_of(boxes, "int64"),
    "as a float": lambda boxes: relay.cast(size(boxes), "float32") / relay.const(2.0),
    "the rows": lambda boxes: boxes,
    "the mean": lambda boxes: relay.sum(boxes, axis=[0]) / relay.cast(size(boxes), "float32"),
    "times their number": lambda boxes: boxes * relay.cast(size(boxes), "float32"),
    "whether there are two": lambda boxes: size(boxes) > relay.const(1, "int32"),
}


def test_what_is_computed_from_the_number_of_detections():
    """As Paddle's and TensorRT's exports return it."""
    assert_static_and_same(of_kept(each_of(COUNTED)), *INPUTS[:2], INPUTS[6])


def best_by_column(boxes):
    """What an NMS keeps of the rows that a filter of another column leaves: any score may be NaN."""
    scores = column(boxes, 1)
    return rows(boxes, select(boxes, scores, as_integers(scores) * relay.const(0), 0.5, max_output_size=7))


def test_an_nms_of_scores_that_nothing_bounds():
    """It gets the rows that are left in front, and says where they were."""
    x = relay.var("x", shape=(N, 4))
    boxes = np.random.default_rng(0).permutation(4 * N).reshape(N, 4).astype("float32")
    boxes[boxes[:, 0] <= 100, 1] = np.nan
    odd = boxes.copy()
    odd[::3, 1] = -np.inf
    assert_static_and_same(module(x, best_by_column(filtered(x))), [boxes], [odd], [boxes * 0], [boxes + 200])


def pooled_by_level(boxes):
    """Of two levels, the rows of each are computed and written to their places, as in Cascade R-CNN."""
    is_large = column(boxes, 1) > relay.const(100.0)
    result = relay.zeros_like(boxes)
    for factor, mask in ((2.0, is_large), (3.0, relay.logical_not(is_large))):
        found = relay.cast(places(mask), "int64")
        result = relay.scatter_nd(
            result, relay.stack([found], 0), rows(boxes, found) * relay.const(factor), "update"
        )
    return result


def marked(boxes):
    """Which of all boxes the kept ones are, by a mask of all: as torchvision's NMS of each class did."""
    found = relay.cast(relay.take(boxes, relay.const(0), axis=1), "int64")
    found = relay.minimum(relay.maximum(found, relay.const(0, "int64")), relay.const(N - 1, "int64"))
    pairs = relay.stack([found, relay.zeros_like(found)], 0)
    return relay.scatter_nd(relay.const(np.zeros((N, 2), "float32")), pairs, column(boxes, 2), "add")


def test_rows_written_by_their_indices():
    written = {
        "kept": pooled_by_level,
        "left": lambda boxes: pooled_by_level(filtered(boxes)),
        "of all": marked,
    }
    assert_static_and_same(of_kept(each_of(written)), *INPUTS[:3], INPUTS[6])


def at_other_places(boxes):
    """At the indices of rows among those that a filter leaves, in the rows before the filter."""
    some = filtered(boxes)
    found = relay.cast(places(column(some, 1) > relay.const(100.0)), "int64")
    return relay.scatter_nd(boxes, relay.stack([found], 0), rows(some, found), "update")


WRITTEN_ELSEWHERE = {
    "rows are replaced at indices that may belong to other rows": at_other_places,
    "the operands have different valid rows": lambda boxes: relay.scatter_nd(
        boxes, relay.stack([places(column(boxes) > relay.const(9.0))], 0), filtered(boxes), "update"
    ),
    "argmax reduces over the rows": lambda boxes: relay.argmax(boxes, axis=[0]),
}


@pytest.mark.filterwarnings("ignore:MakeDetectionStatic")
@pytest.mark.parametrize("reason", WRITTEN_ELSEWHERE)
def test_refusals(reason):
    _, report = apply(MakeDetectionStatic("padded"), of_kept(WRITTEN_ELSEWHERE[reason]))
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)
