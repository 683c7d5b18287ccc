"""from_pytorch of what changes tensors in place, which TVM's importer computes wrongly in silence."""

import pytest
import torch
from torch import nn

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_models import Returning, assert_computes


def two_assignments(x):
    y = x.clone()
    y[..., 0:2] = y[..., 0:2] * 2 - 0.5
    y[..., 2:4] = (y[..., 2:4] * 2) ** 2
    return y


def steps_and_ends(x):
    y = x.clone()
    y[:, ::2] *= 2
    y[-1] = -1
    y[1:, 1:3] = x[:-1, :2]
    return y


def views_of_views(x):
    y = torch.zeros(3, 4)
    y[2, :2] = 1
    y[1:3][0, 1:] += x[0, 1:]
    return y


def transposed(x):
    y = x.clone()
    y.t()[0] = 7.0
    y.transpose(0, 1)[-1] += 1
    part = y.permute(1, 0)[1]
    part.mul_(3)
    return y, part


def reshaped(x):
    y = x * 2
    y.view(-1)[3:5].add_(1)
    y.unsqueeze(0).neg_()
    return y


def twice_in_a_row(x):
    y = x + 1
    y[:, ::2].sub_(0.5).mul_(2).clamp_(max=2)
    row = y[1]
    row.add_(1)
    row[1:].mul_(3).neg_()
    return y, row


def by_sizes(x):
    """As Swin Transformers mask their windows: a trace holds what the bounds are computed from."""
    y = x.clone()
    part = y.numel() // 4
    y.view(-1)[part : 2 * part].zero_()
    y[: -(x.shape[0] - 1), -x.shape[0] :] = 2
    y[:, : -x.size(1)] = 3  # nothing
    return y


def a_copy(x):
    return x.to(torch.float64).mul_(2), x.to(torch.float32, copy=True).add_(1), x


def another_dtype(x):
    y = torch.zeros(3, 4, dtype=torch.int64)
    y[0] = x[0] * 10
    return y


def a_view_alone_is_used(x):
    y = (x - 0.5).reshape(2, -1)
    return y.relu_() + 1


def another_view_is_used(x):
    y = x.clone()
    row = y[0]
    y.add_(1)
    return row, y


def one_of_several(x):
    y = x.clone()
    first, *_ = y.unbind(1)
    first.add_(1)
    return y


def perhaps_a_view(x):
    y = x.clone()
    z = y.reshape(2, -1).add_(1)
    return y, z


def not_a_view(x):
    """torch copies, since the memory is in another order."""
    y = x.clone()
    z, w = y.t().reshape(-1), y.t().contiguous()
    z.add_(1)
    y[0] = 5
    return y, z, w


def views_of_views_are_used(x):
    y = x.clone()
    parts = y.view(-1)[2:6], y.reshape(-1), y.t().unsqueeze(0).flatten(1), y[:, :1].expand(3, 4), y[0][1]
    y[:, 0] = 7
    y[0].mul_(2)
    return parts


def overlapping(x):
    y = x.clone()
    row, column = y[1], y[:, 1]
    row.add_(1)
    column.mul_(3)
    return y, row, column


def parts_of_a_list(x):
    y = x.clone()
    left, right = y.chunk(2, 1)
    left.mul_(2)
    right.sub_(left)
    for row in y:
        row[0] += 1
    y.split([1, 2])[1].neg_()
    y.tensor_split(3, 1)[0].exp_()
    return y, left, right


def other_views(x):
    y = x.clone()
    y.diagonal().fill_(1)
    y.narrow(1, 1, 2).mul_(2)
    y.T[0] = 3
    y.swapaxes(0, 1)[1].add_(1)
    y.unflatten(1, (2, 2))[:, 0] *= 2
    y.unfold(1, 2, 2)[0] = 9
    y.flatten()[5:7] = 8
    return y, y.diagonal(1)


def lists_of_views(x):
    y = x.clone()
    grid = torch.meshgrid(y[0], y[1], indexing="ij")
    wide = torch.broadcast_tensors(y, y[0])
    y.add_(1)
    return *grid, *wide


def swapped(x):
    """The second assignment reads what the first one wrote."""
    y = x.clone()
    y[:, 0], y[:, 1] = y[:, 1] - y[:, 2] / 2, y[:, 0]
    return y


def what_data_gives(x):
    y = x.clone()
    y.data[0] = 1
    return y, x.data * 2


@pytest.mark.parametrize(
    "function",
    [
        two_assignments,
        steps_and_ends,
        views_of_views,
        transposed,
        reshaped,
        twice_in_a_row,
        by_sizes,
        a_copy,
        another_dtype,
        a_view_alone_is_used,
        another_view_is_used,
        one_of_several,
        perhaps_a_view,
        not_a_view,
        views_of_views_are_used,
        overlapping,
        parts_of_a_list,
        other_views,
        lists_of_views,
        swapped,
        what_data_gives,
    ],
)
def test_what_changes_through_a_view_is_changed(function):
    assert_computes(Returning(function), torch.rand(3, 4))


def test_a_script_changes_a_view_twice():
    class Twice(nn.Module):
        def forward(self, x):
            y = x + 1
            row = y[0]
            row.add_(1)
            row.mul_(2)
            return y, row

    assert_computes(torch.jit.script(Twice()), torch.rand(3, 4))


def every_second_of_an_unknown_number(x):
    y = x[torch.where(x[:, 0] > 0.5)[0]]
    y[::2] = 1
    return y


@pytest.mark.parametrize(
    "function, reason",
    [
        (
            every_second_of_an_unknown_number,
            "every few elements of an axis.*assign to a mask or to indices instead",
        ),
    ],
)
def test_mutation_that_is_not_followed_is_refused(function, reason):
    with pytest.raises(ImportFailure, match=reason):
        from_pytorch(Returning(function), torch.rand(3, 4) + 0.5)


def test_mutation_from_within_a_branch_is_refused():
    class Inside(nn.Module):
        def forward(self, x):
            y = x.clone()
            if bool(x.sum() > 0):
                y[0].add_(1)
            return y

    class Itself(nn.Module):
        def forward(self, x):
            y = x.clone()
            if bool(x.sum() > 0):
                y.add_(1)
                z = x * 2
            else:
                z = x
            return y, z

    for model in (Inside(), Itself()):
        with pytest.raises(ImportFailure, match="outside the branch or loop"):
            from_pytorch(torch.jit.script(model), torch.rand(3, 4))


def test_data_is_not_a_constant():
    """A trace of torch holds the numbers of the example for `x.data`, and does not say so."""

    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4))

        def forward(self, x):
            return x.data.clamp(min=0) * self.weight.data, (x + 1).data.sum(1)

    assert_computes(Reading(), torch.randn(3, 4), others=[(torch.randn(3, 4),)])
    assert "data" not in vars(torch.Tensor)
