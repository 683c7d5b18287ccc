"""Options that are numbers of things: `int` would take 2.5 for 2, without a word."""

import numpy as np
import pytest

import topi_ext

from tvm import relay

ROI = {"pooled_size": 2, "spatial_scale": 1.0, "sampling_ratio": 2}


def of(*shape, dtype="float32"):
    return relay.var("x", shape=shape, dtype=dtype)


CALLS = {
    "batched_nms: max_output_size": lambda number: topi_ext.batched_nms(
        of(9, 4), of(9), of(9, dtype="int32"), 0.5, max_output_size=number
    ),
    "roi_align: sampling_ratio": lambda number: topi_ext.roi_align(
        of(1, 3, 8, 8), of(2, 5), **{**ROI, "sampling_ratio": number}
    ),
    "roi_align: pooled_size": lambda number: topi_ext.roi_align(
        of(1, 3, 8, 8), of(2, 5), **{**ROI, "pooled_size": (2, number)}
    ),
    "roi_pool: pooled_size": lambda number: topi_ext.roi_pool(
        of(1, 3, 8, 8), of(2, 5), pooled_size=(number, 2), spatial_scale=1.0
    ),
    "warp_affine: out_size": lambda number: topi_ext.warp_affine(of(1, 3, 8, 8), of(2, 3), (number, 8)),
    "paste_masks: image_size": lambda number: topi_ext.paste_masks(of(2, 1, 7, 7), of(2, 4), (number, 8)),
    "group_norm: groups": lambda number: topi_ext.group_norm(of(1, 8, 4, 4), groups=number),
    "layer_norm: axis": lambda number: topi_ext.layer_norm(of(2, 3, 4), axis=number),
}


@pytest.mark.parametrize("number", [2.5, np.float32(1.5), float("nan"), float("inf")])
@pytest.mark.parametrize("option", CALLS)
def test_numbers_that_are_not_whole(option, number):
    with pytest.raises(ValueError, match=f"{option} must be a whole number, not {number}"):
        CALLS[option](number)


@pytest.mark.parametrize("number", [2, np.int64(2), 2.0, True])
@pytest.mark.parametrize("option", CALLS)
def test_numbers_that_are(option, number):
    assert isinstance(CALLS[option](number), (relay.Expr, relay.expr.TupleWrapper))
