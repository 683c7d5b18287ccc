"""MakeDetectionStatic: what is refused, by the reason, and left as it is."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, module, ops, refusals
from tests.passes.images_of_masks import N
from tests.passes.kept_rows import as_maps, kept, of_kept, places, rows, size
from tvm_passes import MakeDetectionStatic
from tvm_passes.detection.padding.lengths import Length, lengths_of
from tvm_passes.detection.padding.padded import NotStatic
from tvm_passes.detection.selection import select

import tvm
from tvm import relay


def test_a_module_without_main_is_left_as_it_is():
    x = relay.var("x", shape=(relay.Any(), 4))
    mod = tvm.IRModule({relay.GlobalVar("other"): relay.Function([x], x)})
    assert MakeDetectionStatic()(mod).get_global_vars()[0].name_hint == "other"
    assert not MakeDetectionStatic()(tvm.IRModule()).get_global_vars()


def large(boxes, column=0):
    return relay.take(boxes, relay.const(column), axis=1) > relay.const(9.0)


def places_among_some(boxes):
    """Which of the rows that a filter leaves a second one leaves."""
    return places(large(rows(boxes, places(large(boxes))), 1))


def kept_of_some(boxes):
    some = rows(boxes, places(large(boxes)))
    scores = relay.take(some, relay.const(0), axis=1)
    ids = relay.cast(relay.zeros_like(scores), "int64")
    return select(some, scores, ids, 0.5, score_threshold=0.25, max_output_size=9)


REFUSED = {
    "argmin reduces over the rows": lambda boxes, kept: relay.argmin(rows(boxes, kept), axis=[0]),
    "along the rows": lambda boxes, kept: relay.nn.softmax(rows(boxes, kept), axis=0),
    "an input besides the rows is padded": lambda boxes, kept: relay.nn.layer_norm(
        relay.const(np.ones((2, 9), "float32")), *[relay.take(rows(boxes, kept), relay.const(0), axis=1)] * 2
    ),
    "it resizes along the rows": lambda boxes, kept: relay.image.resize2d(
        relay.expand_dims(rows(boxes, kept), 0, 2), (6, 4), None, "NCHW"
    ),
    "the rows are not the items of a batch": lambda boxes, kept: relay.nn.group_norm(
        as_maps(rows(boxes, kept)), *[relay.ones((9,), "float32")] * 2, 1, axis=0
    ),
    "single rows": lambda boxes, kept: relay.take(rows(boxes, kept), relay.const(0), axis=0, mode="clip"),
    "trilu is not supported on detections": lambda boxes, kept: relay.trilu(
        rows(boxes, kept), relay.const(0)
    ),
    "its result has rows other than those of its operands": lambda boxes, kept: relay.repeat(
        rows(boxes, kept), 2, axis=0
    ),
    "pads the rows": lambda boxes, kept: relay.nn.pad(rows(boxes, kept), ((0, 1), (0, 0))),
    "masks and boxes have different valid rows": lambda boxes, kept: topi_ext.paste_masks(
        relay.reshape(boxes, (N, 1, 2, 2)), rows(boxes, kept), (9, 9)
    ),
    "maps and rois have different valid rows": lambda boxes, kept: topi_ext.heatmaps_to_keypoints(
        relay.reshape(boxes, (N, 1, 2, 2)), rows(boxes, kept)
    )[0],
    "it is ill-typed": lambda boxes, kept: relay.reshape(rows(boxes, kept), (5, -1)),
    "uses row indices": lambda boxes, kept: places_among_some(boxes) * relay.const(2),
    "the indices of the rows that a filter keeps": lambda boxes, kept: kept_of_some(boxes),
    "results of an NMS other than the kept boxes": lambda boxes, kept: kept_of_some(boxes).args[0],
    "it is computed from the number of detections": lambda boxes, kept: relay.full(
        relay.cast(size(kept), "float32"), relay.shape_of(rows(boxes, kept)), "float32"
    ),
    "indices that may belong to other rows": lambda boxes, kept: rows(boxes, places_among_some(boxes)),
    "at indices that may belong to other rows": lambda boxes, kept: rows(
        kept, relay.argsort(kept, dtype="int64") + relay.const(1, "int64")
    ),
    "rows are taken at indices that may belong to other": lambda boxes, kept: relay.adv_index(
        [kept, relay.argsort(kept, dtype="int64") - relay.const(1, "int64")]
    ),
    "rows are taken from a tensor without rows": lambda boxes, kept: rows(
        relay.const(np.zeros((0, 4), "float32")), kept
    ),
    "mixes rows with other axes": lambda boxes, kept: relay.reshape(rows(boxes, kept), (4, -1)),
}


@pytest.mark.filterwarnings("ignore:MakeDetectionStatic")
@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    inputs = [
        relay.var("boxes", shape=(N, 4)),
        relay.var("scores", shape=(N,)),
        relay.var("ids", shape=(N,), dtype="int64"),
    ]
    mod = module(*inputs, REFUSED[reason](inputs[0], kept(*inputs)))
    after, report = apply(MakeDetectionStatic("padded"), mod)
    assert ops(after) == ops(mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def test_a_number_of_rows_is_no_condition():
    """Which may be 0."""
    x = relay.var("x", shape=(relay.Any(),))
    chosen = relay.where(relay.shape_of(x, "int64"), *(relay.const([number], "int64") for number in (5, 6)))
    with pytest.raises(NotStatic, match="a length depends on the number of valid rows"):
        lengths_of(module(x, chosen)["main"].body, lambda _: [Length({"rows": 1}, {"rows": 9})])


ALONG_THE_ROWS = {
    "softmax": lambda boxes: relay.nn.softmax(boxes, axis=0),
    "cumsum": lambda boxes: relay.cumsum(boxes, axis=-2),
    "cumsum of all": lambda boxes: relay.cumsum(boxes),
    "reverse": lambda boxes: relay.reverse(boxes, 0),
    "gather": lambda boxes: relay.gather(boxes, 0, relay.cast(relay.zeros_like(boxes), "int64")),
    "batch norm": lambda boxes: relay.nn.batch_norm(boxes, *[relay.const(np.ones(9, "float32"))] * 4, axis=0)[
        0
    ],
}


@pytest.mark.parametrize("name", ALONG_THE_ROWS)
def test_what_computes_along_the_rows_is_refused(name):
    mod = of_kept(ALONG_THE_ROWS[name])
    after, report = apply(MakeDetectionStatic("padded"), mod)
    assert ops(after) == ops(mod)
    assert any("it computes along the rows" in refusal for refusal in refusals(report)), refusals(report)
