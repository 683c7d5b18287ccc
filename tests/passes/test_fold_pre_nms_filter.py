"""FoldPreNMSFilter: what a filter in front of an NMS becomes, and what looks like one."""

import numpy as np
import pytest
import torch
import torchvision

from frontends import from_pytorch
from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    ops,
    refusals,
    run,
    runner,
)
from tests.ops.detections import clustered_detections
from tvm_passes import Canonicalize, FoldPostNMSTopK, FoldPreNMSFilter, RestoreBatchedNMS
from tvm_passes.detection.selection import select
from tvm_passes.engine.expressions import op_name, scalar
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay

N = 60
INFINITY = float("inf")
PASSES = tvm.transform.Sequential(
    [Canonicalize(), RestoreBatchedNMS(), FoldPostNMSTopK(), FoldPreNMSFilter(), Canonicalize()]
)


def detections(seed=0, n=N):
    """Scores are few, so that they tie and some are at the thresholds; some boxes are small."""
    boxes, scores, ids = clustered_detections(n, 3, seed)
    boxes[seed % 5 :: 5, 2:] = boxes[seed % 5 :: 5, :2] + np.float32(1e-3)
    return boxes, np.round(scores * 8).astype("float32") / 8, ids


class Heads(torch.nn.Module):
    """The filters of torchvision's heads: by score, then by size."""

    def __init__(self, by_score, by_size=True, most=7):
        super().__init__()
        self.by_score, self.by_size, self.most = by_score, by_size, most

    def forward(self, boxes, scores, ids):
        rows = self.by_score(scores)
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        if self.by_size:
            rows = torchvision.ops.remove_small_boxes(boxes, 1e-2)
            boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[: self.most]
        return boxes[kept], scores[kept], ids[kept]


class Proposals(torch.nn.Module):
    """The filters of a region proposal network: by size, then by score."""

    def forward(self, boxes, scores, ids):
        rows = torchvision.ops.remove_small_boxes(boxes, 1e-2)
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        rows = torch.where(scores >= 0.25)[0]
        boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
        return boxes[torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:9]]


class Products(torch.nn.Module):
    """The filter of YOLOX: by the product of two columns, which is computed once more of the rows kept."""

    def __init__(self, filtered=lambda scores, others: others * scores):
        super().__init__()
        self.filtered = filtered

    def forward(self, boxes, scores, ids):
        others = (2 - scores)[:, None]
        rows = torch.cat((boxes, scores[:, None], others, ids[:, None].float()), 1)
        rows = rows[self.filtered(scores, others.squeeze(1)) >= 0.6]
        return rows[torchvision.ops.batched_nms(rows[:, :4], rows[:, 4] * rows[:, 5], rows[:, 6], 0.5)[:9]]


def by_where(scores):
    return torch.where(scores > 0.375)[0]


def by_mask(scores):
    return scores > 0.375


def by_nonzero(scores):
    return torch.nonzero(scores >= 0.375).squeeze(1)


def within(scores):
    return torch.where((scores > 0.375) & (scores <= 0.75))[0]


MODELS = [
    *(Heads(rows, by_size) for rows in (by_where, by_mask, by_nonzero, within) for by_size in (0, 1)),
    Heads(by_where, most=None),
    Proposals(),
    Products(),
]


def nms_of(mod):
    (call,) = (node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.batched_nms")
    return call


@pytest.mark.parametrize("model", MODELS)
def test_filters_are_gone_and_the_same_boxes_kept(model):
    inputs = [torch.from_numpy(array) for array in detections()]
    mod, _ = from_pytorch(model.eval(), tuple(inputs))
    after, report = apply(PASSES, mod)
    assert "argwhere" in ops(mod) and "argwhere" not in ops(after)
    assert not [part for part in report.passes if part.name == "FoldPreNMSFilter" and part.refusals]
    compute = runner(after)
    for seed in range(5):
        arrays = detections(seed)
        expected = model(*map(torch.from_numpy, arrays))
        expected = expected if isinstance(expected, tuple) else (expected,)
        for tensor, found in zip(expected, compute(*arrays)):
            np.testing.assert_array_equal(found, tensor.numpy())
    assert_no_second_change(PASSES, after)


@pytest.mark.parametrize("by_score, threshold", [(by_where, 0.375), (by_nonzero, -INFINITY)])
def test_a_strict_comparison_becomes_the_threshold(by_score, threshold):
    inputs = tuple(map(torch.from_numpy, detections()))
    after, _ = apply(PASSES, from_pytorch(Heads(by_score, by_size=False).eval(), inputs)[0])
    assert scalar(nms_of(after).args[5]) == threshold
    assert ("where" in ops(after)) == (threshold == -INFINITY)


def test_a_product_of_other_columns_is_no_bound():
    inputs = tuple(map(torch.from_numpy, detections()))
    for filtered in (lambda scores, others: scores * scores, lambda scores, others: scores + others):
        after, report = apply(PASSES, from_pytorch(Products(filtered).eval(), inputs)[0])
        assert "argwhere" in ops(after)
        assert any("may keep a score that is NaN or -inf" in refusal for refusal in refusals(report))


def test_nothing_passes_the_filter():
    inputs = tuple(map(torch.from_numpy, detections()))
    after, _ = apply(PASSES, from_pytorch(Proposals().eval(), inputs)[0])
    boxes, scores, ids = detections()
    assert run(after, boxes, scores * 0, ids)[0].shape == (0, 4)


# --- graphs by hand


def rows_of(mask):
    return relay.squeeze(relay.argwhere(mask), [1])


def inputs_of(n=N):
    return [
        relay.var("boxes", shape=(n, 4)),
        relay.var("scores", shape=(n,)),
        relay.var("ids", shape=(n,), dtype="int64"),
    ]


def taken(tensors, rows):
    return [relay.take(tensor, rows, axis=0, mode="clip") for tensor in tensors]


def kept_boxes(boxes, scores, ids, **options):
    return relay.take(boxes, select(boxes, scores, ids, 0.5, **options), axis=0, mode="clip")


def above(scores, threshold=0.5):
    return scores > relay.const(threshold, "float32")


def below(scores, threshold=0.5):
    return relay.const(threshold, "float32") < scores


@pytest.mark.parametrize("existing", [0.25, 0.75])
@pytest.mark.parametrize("compare", [above, below])
def test_the_higher_threshold_counts(existing, compare):
    inputs = inputs_of()
    result = kept_boxes(*taken(inputs, rows_of(compare(inputs[1]))), score_threshold=existing)
    after = assert_same_numbers(FoldPreNMSFilter(), module(*inputs, result), *detections())
    assert scalar(nms_of(after).args[5]) == max(existing, 0.5)


def test_a_threshold_known_at_run_time_stays():
    inputs, threshold = inputs_of(), relay.var("threshold", shape=())
    result = kept_boxes(*taken(inputs, rows_of(above(inputs[1]))), score_threshold=threshold)
    mod = module(*inputs, threshold, result)
    after = assert_same_numbers(FoldPreNMSFilter(), mod, *detections(), np.float32(0.75))
    assert "argwhere" not in ops(after)


def test_any_mask_where_there_is_a_threshold():
    inputs, mask = inputs_of(), relay.var("mask", shape=(N,), dtype="bool")
    result = kept_boxes(*taken(inputs, rows_of(mask)), score_threshold=0.25)
    boxes, scores, ids = detections()
    scores[:7] = [np.nan, np.inf, -np.inf, np.nan, np.inf, -np.inf, 0.25]
    mask_array = np.random.default_rng(0).random(N) < 0.6
    after = assert_same_numbers(
        FoldPreNMSFilter(), module(*inputs, mask, result), boxes, scores, ids, mask_array
    )
    assert "argwhere" not in ops(after)


def test_what_is_computed_row_by_row_behind_the_filter_is_computed_before():
    inputs = inputs_of()
    boxes, scores, ids = taken(inputs, rows_of(above(inputs[1])))
    moved = relay.concatenate([relay.strided_slice(boxes, [2], [4], axes=[1]) * relay.const(2.0)] * 2, axis=1)
    result = kept_boxes(moved, relay.sqrt(scores), relay.zeros_like(ids), score_threshold=0.25)
    after = assert_same_numbers(FoldPreNMSFilter(), module(*inputs, result), *detections())
    assert "argwhere" not in ops(after)


def test_rows_of_the_same_unknown_number():
    inputs = inputs_of(relay.Any())
    coarse = taken(inputs, rows_of(above(inputs[1], 0.25)))
    fine = taken(coarse, rows_of(above(coarse[1])))
    mod = module(*inputs, kept_boxes(*fine))
    after = assert_same_numbers(FoldPreNMSFilter(), mod, *detections())
    assert ops(after).count("argwhere") == 1


def with_scores_that_may_be_nan(inputs, mask):
    return kept_boxes(*taken(inputs, rows_of(mask)))


def with_boxes_of_another_filter(inputs, mask):
    _, scores, ids = taken(inputs, rows_of(above(inputs[1])))
    return kept_boxes(relay.take(inputs[0], relay.cast(rows_of(mask), "int64"), axis=0), scores, ids)


def with_other_uses(inputs, _):
    rows = rows_of(above(inputs[1]))
    boxes, scores, ids = taken(inputs, rows)
    selection = select(boxes, scores, ids, 0.5)
    return relay.Tuple([relay.take(boxes, selection, axis=0), selection])


def with_rows_of_something_else(inputs, _):
    boxes, scores, ids = taken(inputs, rows_of(above(inputs[1])))
    selection = select(boxes, scores, ids, 0.5)
    return relay.Tuple([relay.take(boxes, selection, axis=0), relay.take(inputs[2], selection)])


def with_a_valid_count(inputs, _):
    boxes, scores, ids = taken(inputs, rows_of(above(inputs[1])))
    return kept_boxes(boxes, scores, ids, valid_count=relay.const(5, "int32"))


def with_rows_that_know_their_place(inputs, _):
    boxes, scores, ids = taken(inputs, rows_of(above(inputs[1])))
    return kept_boxes(relay.trilu(boxes, relay.const(0)), scores, ids)


@pytest.mark.parametrize(
    "graph, reason",
    [
        (with_rows_that_know_their_place, "the boxes are not filtered by the mask"),
        (with_scores_that_may_be_nan, "may keep a score that is NaN or -inf"),
        (with_boxes_of_another_filter, "the boxes are not filtered by the mask that filters the scores"),
        (with_other_uses, "uses other than taking rows"),
        (with_rows_of_something_else, "uses other than taking rows"),
        (with_a_valid_count, "the valid count of the NMS refers to the filtered rows"),
    ],
)
def test_refusals(graph, reason):
    inputs, mask = inputs_of(), relay.var("mask", shape=(N,), dtype="bool")
    mod = module(*inputs, mask, graph(inputs, mask))
    after, report = apply(FoldPreNMSFilter(), mod)
    assert ops(after) == ops(mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def test_each_row_twice_is_no_match():
    inputs = inputs_of()
    tensors = taken(inputs, rows_of(above(inputs[1])))
    twice = [relay.repeat(tensor, 2, axis=0) for tensor in tensors]
    mod = module(*inputs, kept_boxes(*twice, score_threshold=0.25))
    after, _ = apply(FoldPreNMSFilter(), mod)
    assert after.same_as(mod)


def test_lengths_that_may_differ_are_refused():
    inputs = inputs_of(relay.Any())
    mod = module(*inputs, kept_boxes(*taken(inputs, rows_of(above(inputs[1])))))
    _, report = apply(FoldPreNMSFilter(), mod)
    assert "known only at run time" in refusals(report)[0]


def test_lengths_that_differ_are_refused():
    inputs = inputs_of()
    longer = relay.var("boxes", shape=(N + 1, 4))
    tensors = taken([longer, *inputs[1:]], rows_of(above(inputs[1])))
    _, report = apply(FoldPreNMSFilter(), module(longer, *inputs[1:], kept_boxes(*tensors)))
    assert refusals(report)


def test_a_nan_that_the_filter_leaves_is_kept():
    inputs, mask = inputs_of(), relay.var("mask", shape=(N,), dtype="bool")
    boxes, scores, ids = detections()
    scores[3] = np.nan
    mod = module(*inputs, mask, with_scores_that_may_be_nan(inputs, mask))
    after = assert_same_numbers(FoldPreNMSFilter(), mod, boxes, scores, ids, np.ones(N, bool))
    assert run(after, boxes, scores, ids, np.ones(N, bool))[0][0].tolist() == boxes[3].tolist()
