"""from_pytorch: modules of exported programs, and what exports have that traces have not."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_models import Returning, assert_computes
from tests.helpers import quick, runner

import tvm

IMAGE = torch.rand(1, 3, 8, 6)


class OfAnyHeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image):
        _, _, height, width = image.shape
        means = self.conv(image).view(1, 4, height * width).mean(2)
        return means, F.interpolate(image, (2 * height, width))


def exported(model, **options):
    return torch.export.export(model, (IMAGE,), **options).module()


@pytest.fixture(scope="module")
def of_any_height():
    height = torch.export.Dim("height", min=4, max=64)
    return exported(OfAnyHeight().eval(), dynamic_shapes={"image": {2: height}})


def test_of_any_height(of_any_height):
    """It is imported for one: the module compares its inputs with fake tensors, which no trace may see."""
    for height in (8, 12):
        assert_imports(of_any_height, torch.rand(1, 3, height, 6))


def assert_imports(module, image):
    module.eval = lambda: module  # which torch refuses
    assert_computes(module, image)


@pytest.mark.parametrize("sizes, said", [((2, 6), "to be >= 4, but got 2"), ((8, 7), "to be equal to 6")])
def test_sizes_for_which_it_was_not_exported(of_any_height, sizes, said):
    with pytest.raises(ImportFailure, match=said):
        from_pytorch(of_any_height, torch.rand(1, 3, *sizes))


class OfTwoBranches(nn.Module):
    """Branches with weights, of which one changes what it computes, and branches again."""

    def __init__(self):
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, image):
        def by_sign(image):
            features = self.conv(image).add_(1)
            return torch.cond(image.max() > 2, torch.sin, torch.cos, (features,))

        return torch.cond(image.sum() > 0, by_sign, lambda image: self.other(image).relu(), (image,)) * 2


@pytest.mark.parametrize("form", ["plain", "exported", "decomposed"])
def test_branches_by_functions(form):
    """One import takes each branch, by the values that it is given; the other branch is not computed."""
    torch.manual_seed(0)
    model = OfTwoBranches().eval()
    program = model if form == "plain" else torch.export.export(model, (IMAGE,))
    given = {
        "plain": lambda: model,
        "exported": lambda: program.module(),
        "decomposed": lambda: program.run_decompositions().module(),
    }[form]()
    mod, params = from_pytorch(given, IMAGE)
    weights = [params[var.name_hint].numpy() for var in mod["main"].params[1:]]
    compute = runner(mod, quick())
    for image in (IMAGE, -IMAGE, IMAGE * 4):
        with torch.no_grad():
            expected = model.forward(image)
        np.testing.assert_allclose(compute(image.numpy(), *weights)[0], expected, rtol=1e-5, atol=1e-6)
    branches = mod["main"].body.args[0].tuple_value
    assert isinstance(branches, tvm.relay.If)
    assert not any(isinstance(each, tvm.relay.Let) for each in (branches.true_branch, branches.false_branch))


def test_a_branch_by_a_size():
    def twice_if_high(x):
        return torch.cond(x.shape[2] > 4, lambda x: x * 2, lambda x: x - 1, (x,))

    assert_computes(Returning(twice_if_high), IMAGE)


def test_loops_by_functions_are_refused_with_what_to_write():
    loop = torch._higher_order_ops.while_loop
    double = Returning(lambda x: loop(lambda x: x.sum() < 99, lambda x: (x * 2,), (x,)))
    with pytest.raises(ImportFailure, match=r"while_loop.*; write it as a `while` .* torch.jit.script"):
        from_pytorch(exported(double), IMAGE)


def with_parts_assigned(x):
    y = x.clone()
    y[:, 0::2] = y[:, 0::2].sigmoid()
    y[:, 1] = x[:, 2].to(torch.int64)
    y[0, 0] = 0.5
    y[..., 1:3].mul_(2)
    return y


@pytest.mark.parametrize("decomposed", [False, True])
def test_parts_that_are_assigned(decomposed):
    """An export writes them without an assignment, by `copy` and `fill`, or by what these are made of."""
    program = torch.export.export(Returning(with_parts_assigned), (IMAGE,))
    module = (program.run_decompositions() if decomposed else program).module()
    assert_imports(module, IMAGE * 5)


class OfCore(nn.Module):
    """What `run_decompositions` turns into other operators than a trace has."""

    def __init__(self):
        super().__init__()
        self.groups, self.layers, self.batch = nn.GroupNorm(3, 6), nn.LayerNorm(6), nn.BatchNorm2d(6)
        self.conv, self.linear = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, image):
        features = self.groups(self.batch(self.conv(image)))
        rows = self.linear(self.layers(features.flatten(2).transpose(1, 2)))
        attended = F.scaled_dot_product_attention(rows, rows, rows)
        larger = F.interpolate(features, scale_factor=2.0, mode="bilinear")
        pooled = F.adaptive_avg_pool2d(larger, 3), F.adaptive_avg_pool3d(larger, (2, 3, 5))
        finer = F.interpolate(F.instance_norm(pooled[0]), (7, 4), mode="area")
        return (rows.softmax(1), F.log_softmax(attended, -1), *pooled, finer)


def test_core_operators():
    torch.manual_seed(0)
    program = torch.export.export(OfCore().eval(), (IMAGE,)).run_decompositions()
    assert_imports(program.module(), IMAGE)


def test_fold_after_decompositions():
    """It becomes `_unsafe_index_put`, which sums where patches overlap."""
    fold = Returning(lambda image: F.fold(F.unfold(image, (3, 2)), (8, 6), (3, 2)))
    program = torch.export.export(fold.eval(), (IMAGE,)).run_decompositions()
    assert "_unsafe_index_put" in program.graph_module.code
    assert_imports(program.module(), IMAGE)
