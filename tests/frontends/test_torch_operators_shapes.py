"""Operators of PyTorch that move elements, which TVM's importer gets wrong or does not know."""

import numpy as np
import pytest
import torch

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_functions import Functions, assert_right
from tests.helpers import runner

X = torch.arange(24.0).reshape(2, 3, 4)
ROWS = torch.arange(12.0).reshape(3, 4)
PLACES = torch.tensor([[0, -1], [1, 0]])
MASK = torch.tensor([True, False, True, True])


def assigned(x, place, value):
    x = x.clone()
    x[place] = value
    return x


def test_moves():
    assert_right(
        {
            "roll": lambda x: x.roll((1, -2), (0, -1)),
            "roll of all": lambda x: x.roll(5),
            "flip": lambda x: x.flip(-1),
            "rot90": lambda x: x.rot90(1, (1, 2)),
            "movedim": lambda x: x.movedim(0, -1),
            "tile": lambda x: x.tile(2, 1),
            "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2]), 1),
            "repeat_interleave alone": lambda _: torch.repeat_interleave(torch.tensor([1, 0, 2]).int()),
            "repeat_interleave never": lambda x: x.repeat_interleave(0, 1),
            "chunk": lambda x: x.reshape(-1)[:7].chunk(5),
            "split with nothing": lambda x: x.split([2, 0, x.shape[2] - 2], 2),
            "tensor_split": lambda x: x.reshape(-1)[:11].tensor_split(4),
            "tensor_split at": lambda x: x.tensor_split((1, -1), 2),
            "unfold": lambda x: x.unfold(2, 3, 1),
            "squeeze": lambda x: x[:1].squeeze((0, 1)),
            "diagonal": lambda x: x.diagonal(1, 1, 2),
            "diag_embed": lambda x: torch.diag_embed(x[0], 1),
            "tril and triu": lambda x: (x.tril(-1), x.triu(1)),
            "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1, :3], indexing="xy"),
            "cat of two dtypes": lambda x: torch.cat([x, x.long()], 1),
            "stacks": lambda x: (torch.dstack([x, x]), torch.column_stack([x, x])),
            "block_diag": lambda x: torch.block_diag(x[0], x[1]),
            "linspace": lambda x: x[0, 0] + torch.linspace(0.1, 0.9, 4),
            "logspace": lambda x: x[0, 0] + torch.logspace(0.1, 0.9, 4),
            "einsum": lambda x: torch.einsum("abc,adc->bd", x, x),
            "kron": lambda x: torch.kron(x[0], x[1, :2]),
            "cross": lambda x: torch.linalg.cross(x, x.flip(1), dim=1),
            "addmm": lambda x: torch.addmm(x[0, :, :3], x[0], x[1].T, beta=0.5, alpha=2),
            "mv": lambda x: torch.mv(x[0, :1], x[0, 1]),
            "diff": lambda x: x.diff(dim=1),
            "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(2, True), 2),
        },
        X,
    )


def test_slices_that_end_before_they_begin():
    """As in the masks of SwinIR, without a shift."""

    def written(x):
        x = x.clone()
        x[:, -2:0] = 7
        x[0, :, 2:1] = 7
        return x

    assert_right({"read": lambda x: torch.cat([x, x[:, -2:0]], 1), "written": written}, X)


def test_slices_by_numbers_known_at_run_time():
    """TVM's own reads elsewhere, or asks for memory of negative size, where bounds are out of range."""
    functions = {
        "from": lambda x, count: x[:, count:],
        "from the end": lambda x, count: x[:, -count:],
        "from before the first": lambda x, count: x[:, count - 5 :],
        "to": lambda x, count: x[:, :count, 1:3],
        "to the end": lambda x, count: x[:, :-count],
        "to before the first": lambda x, count: x[:, : count - 9],
        "to behind the last": lambda x, count: x[:, 1 : count + 9],
        "that end before they begin": lambda x, count: x[:, count:1],
    }
    for count in range(4):
        assert_right(
            {name: lambda x, mask, cut=cut: cut(x, mask.sum()) for name, cut in functions.items()},
            X,
            torch.arange(3) < count,
        )


@pytest.mark.slow
def test_indices():
    assert_right(
        {
            "negative": lambda x, places, mask: x[0, places - 1],
            "negative, of an unknown number": lambda x, places, mask: x[0, :, mask].T[places % 2 - 1],
            "masks": lambda x, places, mask: x[:, :, mask],
            "mask of two axes": lambda x, places, mask: x[x[:, :, 0] > 8],
            "masked_select": lambda x, places, mask: x.masked_select(mask),
            "masked_scatter": lambda x, places, mask: x.masked_scatter(mask, x + 100),
            "assigned to a mask": lambda x, places, mask: assigned(x, x > 8, -1.0),
            "assigned along an axis": lambda x, places, mask: assigned(x, (slice(None), places), 5.0),
            "index_put": lambda x, places, mask: x.index_put((places % 2, places % 3), x[:, :2] + 1, True),
            "put": lambda x, places, mask: x.put(places, places + 0.5),
            "index_add": lambda x, places, mask: x.index_add(1, places[1], x[:, :2], alpha=2),
            "index_fill": lambda x, places, mask: x.index_fill(2, places[1], 9.0),
            "scatter": lambda x, places, mask: x[0].scatter(-1, places % 4, 3.0),
            "scatter in a part": lambda x, places, mask: x.scatter(2, places[None] % 4, 3.0),
            "gather of a part": lambda x, places, mask: x.gather(2, places[None] % 4),
            "scatter_reduce": lambda x, places, mask: [
                x[0].scatter_reduce(0, places % 3, x[1, :, :2], how, include_self=kept)
                for how in ("sum", "prod", "mean", "amax", "amin")
                for kept in (True, False)
            ],
        },
        X,
        PLACES,
        MASK,
    )


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, -100.0, 100.0], ids=["some", "none", "all"])
def test_assigned_to_what_is_selected_at_run_time(shift):
    def places(x):
        return torch.where(x[1, 0] > 7)[0]

    column, row = torch.arange(2.0)[:, None], torch.arange(4.0)
    assert_right(
        {
            "a number to columns": lambda x: assigned(x, (slice(None), x[0, :, 0] > 3), 5.0),
            "a column to columns": lambda x: assigned(x, (slice(None), x[0] > 3), column),
            "columns of itself": lambda x: assigned(x, (..., x[0, 0] > 1), x[..., x[0, 0] > 1].cumsum(0)),
            "a part of columns": lambda x: assigned(x, (slice(None), x[0, :, 0] > 3, slice(1, 3)), 5.0),
            "a row to rows": lambda x: assigned(x, x[..., 0] > 3, row),
            "rows of itself": lambda x: assigned(x, x[..., 0] > 3, x[x[..., 0] > 3].softmax(-1)),
            "more and more": lambda x: assigned(x, x > 7, x[x > 7].cumsum(0)),
            "True to what is kept": lambda x: assigned(x[0, 0] > 99, places(x), True),
            "a column to places": lambda x: assigned(x, (..., places(x)), row[1:, None]),
            "rows to places": lambda x: assigned(x, torch.where(x[..., 0] > 3), x[x[..., 0] > 3] * 2),
            "one by one": lambda x: assigned(x, x.nonzero().unbind(1), 7.0),
            "a number at the maximum": lambda x: assigned(x, x[:, 0, 0].argmax() - 2, 7.0),
            "a column at the maximum": lambda x: assigned(x, (0, slice(None), x[0, 0].argmax()), row[1:]),
            "to the first places": lambda x: assigned(x, (0, slice((x[0, :, 0] > 3).sum())), 7.0),
            "behind the first places": lambda x: assigned(x, (0, slice((x[0, :, 0] > 3).sum(), None)), 7.0),
            "what is kept, before padding": lambda x: assigned(
                torch.zeros(9, 4), slice(2, 2 + (x[..., 0] > 3).sum()), x[x[..., 0] > 3]
            ),
        },
        X + shift,
    )


def test_assigned_to_a_part_of_which_the_shape_tells():
    def volume(x):
        _, channels, width = x.shape
        y = x.new_zeros(2, 2 * channels, width)
        y[:, :channels, 1:] = x[..., : width - 1]
        y[:, channels:] = x
        y[..., width // 2] += 1
        return y

    assert_right({"volume": volume}, X)


def test_like_another():
    """Of its dtype, unless another is asked for."""
    assert_right(
        {
            "ones": lambda x, mask: (torch.ones_like(x.long()), torch.ones_like(mask)),
            "zeros": lambda x, mask: (torch.zeros_like(x.int()), torch.zeros_like(mask)),
            "full": lambda x, mask: (torch.full_like(x.long(), 3), torch.full_like(mask, 1)),
            "with a dtype": lambda x, mask: (
                torch.ones_like(mask, dtype=x.dtype),
                torch.full_like(x, 3, dtype=torch.int64),
            ),
            "of an unknown shape": lambda x, mask: torch.ones_like(x[0].nonzero()),
            "of whole numbers": lambda x, mask: torch.full((x[0].nonzero().shape[0], 2), 3),
            "of floats": lambda x, mask: (
                torch.full((2,), 3.5),
                torch.full((x[0].nonzero().shape[0], 2), 3.5),
            ),
            "new": lambda x, mask: (x.new_ones(2, 3), mask.new_zeros(2), x.new_full((2,), 3)),
            "new with a dtype": lambda x, mask: (
                mask.new_ones(2, dtype=x.dtype),
                x.new_zeros(2, 3, dtype=torch.int64),
                x.new_full((2,), 3, dtype=torch.bool),
            ),
            "new, of an unknown shape": lambda x, mask: (
                torch.cat([x[0].nonzero(), mask.new_zeros(5 - x[0].nonzero().shape[0] % 5, 2)]),
                x.new_full((x[0].nonzero().shape[0], 2), 3),
            ),
            "of a number computed of a tensor": lambda x, mask: (
                x.new_full((2, 2), x[0, 0, 0]),
                torch.full((x[0].nonzero().shape[0],), x.max()),
            ),
            "type_as": lambda x, mask: (mask.type_as(x), x.type_as(mask), x.type_as(x[0])),
        },
        X,
        MASK,
    )


def test_what_is_empty_until_it_is_filled():
    def halves(x):
        whole = x.new_empty(2, 3, 8)
        whole[..., :4], whole[..., 4:] = x, x * 2
        return whole

    assert_right(
        {
            "empty": lambda x: torch.empty(2, 3).copy_(x[..., 0]),
            "with a dtype": lambda x: torch.empty(2, 3, dtype=torch.int64).fill_(4),
            "like another": lambda x: (torch.empty_like(x).copy_(x), torch.empty_like(x.long()).zero_()),
            "new": lambda x: (
                x.new_empty(x.shape[1:]).fill_(2),
                x.new_empty(3, dtype=torch.bool).fill_(1),
            ),
            "in parts": halves,
            "of no rows": lambda x: torch.cat([torch.empty(0, 4), x[0]]),
            "of an unknown shape": lambda x: torch.empty(x[0].nonzero().shape[0], 2).fill_(1),
            "fill_diagonal_": lambda x: x[0].clone().fill_diagonal_(0),
            "fill_diagonal_ again": lambda x: x.reshape(12, 2).clone().fill_diagonal_(2.5, wrap=True),
        },
        X,
    )


def test_of_an_unknown_shape():
    """Which torch's own definitions do not take."""
    rows = {
        "std": lambda x: (x.std(1), x.std(0, unbiased=False), x.std()),
        "var": lambda x: (x.var(1, correction=0), torch.var_mean(x, 0)),
        "norm": lambda x: (x.norm(), x.norm(dim=1), x.norm(1, 0), torch.linalg.vector_norm(x, 3, 1)),
        "lerp": lambda x: (x.lerp(2 * x, 0.3), torch.addcmul(x, x, x, value=2)),
        "tril": lambda x: x.tril(),
    }
    assert_right(
        {name: lambda x, f=f: f(x[x[:, 0] > 4]) for name, f in rows.items()}, X.reshape(6, 4), rtol=1e-4
    )


def test_triangles_of_an_unknown_size():
    functions = {
        "of a mask": lambda x: (x[x[:, 0] > 4] > 3).triu(1),
        "of integers": lambda x: x[x[:, 0] > 4].long().tril(-1),
    }
    assert_right(functions, X.reshape(6, 4))


@pytest.mark.parametrize("above", [4, 100])
def test_expanded_to_an_unknown_size(above):
    def count(x):
        return x[x[:, 0] > above].shape[0]

    functions = {
        "to it": lambda x: x[:1].expand(count(x), -1),
        "a new axis": lambda x: x[:2].expand(count(x), 2, 4)[:, 1:],
        "of a mask": lambda x: (x > 3)[:1].expand(count(x), 4),
        "an axis of a known size": lambda x: x[x[:, 0] > above][:, None].expand(-1, 3, 4),
        "next to one": lambda x: x[x[:, 0] > above][:, None].expand(count(x), count(x), 4),
        "and a new axis": lambda x: x[x[:, 0] > above].expand(count(x), -1, 4),
    }
    assert_right(functions, X.reshape(6, 4))


def test_a_correction_of_an_unknown_count():
    class Corrected(torch.nn.Module):
        def forward(self, x):
            return x[x[:, 0] > 4].std(1, correction=2)

    with pytest.raises(ImportFailure, match="shape is known only at run time, with a correction of 2"):
        from_pytorch(Corrected(), X.reshape(6, 4))


def divided(factors):
    factors.reshape(2, 2).div_(4)


def accumulated(factors):
    factors.index_put_((torch.tensor([1, 1]),), torch.tensor([5.0, 6.0]), accumulate=True)


def read_before(factors):
    factors[0] = factors.sum()


def overwritten(factors):
    factors[0] = 7
    factors[2:] = 8


class Changing(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        factors = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.change(factors)
        return x * factors


@pytest.mark.parametrize("change", [accumulated, read_before, overwritten])
def test_a_constant_that_is_changed(change):
    assert_right({change.__name__: Changing(change)}, X)


@pytest.mark.parametrize("change, operator", [(divided, "div_"), (read_before, "copy_")])
def test_a_constant_of_a_traced_model_that_is_changed(change, operator):
    """The trace has it as it is in the end, and changes that again."""
    traced = torch.jit.trace(Changing(change), X, check_trace=False)
    with pytest.raises(ImportFailure, match=rf"aten::{operator} .*: it changes a constant"):
        from_pytorch(traced, X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_constants_have_their_own_type(dtype):
    """Not that of the network."""
    assert_right(
        {
            "ones": lambda x: torch.ones(4, 3).half() * x.half(),
            "zeros": lambda x: torch.zeros(4, 3) + x,
            "full": lambda x: torch.full((4, 3), 2.5).to(x.dtype) + x,
            "full of a number that is computed": lambda x: torch.full((3,), x.shape[0]) * x,
            "arange": lambda x: torch.arange(3.0).half() + x.half(),
            "as the data": lambda x: x.new_ones(4, 3).half() + torch.ones_like(x).half(),
        },
        torch.arange(12).reshape(4, 3).to(dtype),
    )


def test_places_in_the_memory_of_a_tensor():
    def filled(x):
        y = x.clone()
        y.as_strided((2, 2), (1, 5)).fill_(7.0)
        return y

    assert_right(
        {
            "windows": lambda x: torch.as_strided(x, (3, 3, 2), (4, 1, 1)),
            "of what is computed": lambda x: (x * 2).as_strided((2, 2), (5, 1), 1),
            "filled": filled,
        },
        ROWS,
    )
    with pytest.raises(ImportFailure, match=r"aten::as_strided .*: .* may be a view: call clone\(\) before"):
        from_pytorch(Functions({"of a view": lambda x: x[1:].as_strided((2, 2), (1, 1), 0)}), ROWS)


def test_tensors_with_another_part():
    """As `torch.export` writes changes of views."""
    assert_right(
        {
            "slice": lambda x: torch.slice_scatter(x, x[:, :2], 1, -3, -1),
            "slice with steps": lambda x: torch.slice_scatter(x, x[:, :2], dim=1, step=2),
            "of another dtype": lambda x: torch.slice_scatter(x > 0, x[:1], 0, 2, 3),
            "diagonal": lambda x: torch.diagonal_scatter(x, x[0, :3], 1),
            "memory": lambda x: torch.as_strided_scatter(x, x[:2, :2], (2, 2), (3, 1), 2),
            "row": lambda x: torch.select_scatter(x, x[0], 0, -1),
        },
        ROWS,
    )


@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_by_index(include_self):
    at = torch.tensor([0, 2, 0])
    assert_right(
        {
            reduce: lambda x, reduce=reduce: x.index_reduce(
                1, at, x[:, 1:], reduce, include_self=include_self
            )
            for reduce in ("prod", "mean", "amax", "amin")
        },
        ROWS,
    )


@pytest.mark.parametrize("shape", [(), (1, 1, 2, 1, 2, 1)])
def test_places_along_a_number_of_axes_that_tvm_does_not_compile(shape):
    with pytest.raises(ImportFailure, match=f"aten::nonzero .*: it takes a tensor of {len(shape)} axes"):
        from_pytorch(Functions({"nonzero": torch.nonzero}), torch.ones(shape))


def test_unflatten_by_sizes_that_the_trace_computes():
    functions = {"unflatten": lambda x: x.unflatten(1, (x.size(0) + 1, x.size(1) // 3))}
    assert_right(functions, torch.rand(2, 6, 4))


def test_repeats_as_often_as_there_are_detections():
    """As in the mask heads of RTMDet and CondInst; none, too."""

    class Repeated(torch.nn.Module):
        def forward(self, scores, maps):
            kept = scores[scores > 0.5]
            count = kept.shape[0]
            of_each = (kept[:, None].repeat(1, count), kept.repeat(count), maps.repeat(count, 2, 1))
            return (*of_each, maps[:, 0].repeat(1, count), maps[:, 1].repeat_interleave(count, 1))

    model, maps = Repeated().eval(), X[:1]
    scores = torch.tensor([0.1, 0.9, 0.7, 0.8])
    runs = runner(from_pytorch(model, (scores, maps))[0])
    for each in (scores, scores * 0):
        for found, expected in zip(runs(each.numpy(), maps.numpy()), model(each, maps)):
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)


def test_repeats_of_each_element_that_are_data_are_refused():
    class Counted(torch.nn.Module):
        def forward(self, x):
            return x.repeat_interleave(x.long())

    class Alone(torch.nn.Module):
        def forward(self, x):
            return torch.repeat_interleave(x.long())

    for model in (Counted(), Alone()):
        with pytest.raises(
            ImportFailure, match="how often it repeats each element is known only at run time"
        ):
            from_pytorch(model, X[0, 0])
