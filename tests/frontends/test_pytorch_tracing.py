"""What a trace of torch loses: autograd Functions, constants that change, inputs that are written to."""

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.detection._utils import BoxCoder

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_functions import assert_right
from tests.helpers import ops, run, runner

from tvm import relay


def assert_computes(function, *tensors, rtol=1e-5):
    class Model(nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    expected = function(*(each.clone() for each in tensors))
    mod = from_pytorch(Model(), tensors)[0]
    (found,) = run(mod, *(each.numpy() for each in tensors))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6)
    return mod


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.is_scaled = any(ctx.needs_input_grad)
        return x * factor


class NewStyle(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp() - 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.kept = inputs


@pytest.mark.parametrize("function", [lambda x: OldStyle.apply(x, 3.0), NewStyle.apply])
def test_an_autograd_function_is_what_it_computes(function):
    assert_computes(function, torch.rand(2, 3))
    assert torch.rand(2, requires_grad=True).mul(2).grad_fn is not None


def test_a_constant_that_changes_after_it_is_read():
    def scaled(x):
        matrix = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        before = matrix[0, 0] + 1
        matrix[0, 0] = matrix[0, 0] * 4
        return x @ matrix * before

    assert_computes(scaled, torch.rand(3, 2))


def test_a_tensor_that_is_taken_as_one_is_not_copied():
    assert "copy" not in ops(assert_computes(lambda x: torch.as_tensor(x) + 1, torch.rand(3)))


def test_scripts_are_compiled_as_ever_afterwards():
    made_by = torch.tensor
    assert_computes(lambda x: x + torch.tensor([1.0]), torch.rand(3))
    assert torch.tensor is made_by
    scripted = torch.jit.script(lambda_with_a_constant)
    assert scripted(torch.zeros(1)) == 2


def lambda_with_a_constant(x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor([2.0])


def test_operators_of_constants_are_numbers():
    assert_computes(lambda x: x.clamp(max=torch.log(torch.tensor(100.0)).item()), torch.rand(3) * 9)
    assert_computes(
        lambda x: torch.clamp(x, max=torch.log(torch.tensor(1.0 / 0.01))).exp(), torch.rand(3) * 9
    )


class BestRegions(nn.Module):
    """Boxes of three classes for each region above a score, as a Faster R-CNN decodes them."""

    def forward(self, codes, regions, scores):
        rows = torch.where(scores > 0.5)[0]
        decoded = BoxCoder((10.0, 10.0, 5.0, 5.0)).decode(codes[rows], [regions[rows]])
        return decoded[:, 1:].reshape(-1, 4)


def test_an_example_without_regions_is_as_one_with_some():
    codes, regions = torch.rand(9, 12), torch.rand(9, 4).cumsum(1)
    few, none = torch.arange(9) / 9, torch.zeros(9)
    for example in (few, none):
        detect = runner(from_pytorch(BestRegions(), (codes, regions, example))[0])
        for scores in (few, none):
            (found,) = detect(*(tensor.numpy() for tensor in (codes, regions, scores)))
            rows = scores > 0.5
            decoded = BoxCoder((10.0, 10.0, 5.0, 5.0)).decode_single(codes[rows], regions[rows])
            np.testing.assert_allclose(found, decoded[:, 4:].reshape(-1, 4).numpy(), rtol=1e-5)


def test_constant_tensors_keep_their_type_and_value():
    """TVM's own makes float32 of float64, and int32 of int64, which lost all beyond it."""
    mean, far, near = torch.tensor([0.1, 0.7]).double() / 3, torch.tensor([2**40, 3]), torch.tensor([1, 2])
    assert_right(
        {
            "float64": lambda x: x.double() - mean,
            "float64 as float32": lambda x: x - mean.to(x),
            "of 41 bits": lambda x: x.long() + far,
            "multiplied beyond int32": lambda x: x.long() + near * 2**40,
            "indices": lambda x: x[near - 1],
        },
        torch.tensor([3.0, 4.0]),
        rtol=0,
    )


def test_numbers_that_are_true_or_false():
    """torch traces operators of them that it does not know itself."""
    mask = torch.tensor([[True, False, True], [False, False, True]])

    def filled(mask):
        mask = mask.clone().fill_(True)
        mask[0] = False
        return mask

    assert_right(
        {
            "compared": lambda mask: (mask == True, mask != False),  # noqa: E712
            "combined": lambda mask: (mask & True, mask ^ True),
            "filled": filled,
            "full": lambda mask: mask & torch.full((2, 3), True),
            "like": lambda mask: (torch.full_like(mask, True), mask.new_full((2,), False)),
            "masked": lambda mask: (mask.masked_fill(mask, False), mask.float().masked_fill(mask, True)),
            "chosen": lambda mask: (torch.where(mask, True, ~mask), torch.where(mask, mask * 0.5, False)),
            "scattered": lambda mask: mask.scatter(1, torch.zeros(2, 1, dtype=torch.int64), True),
            "clamped": lambda mask: (mask * 0.5).clamp(min=True) ** True,
        },
        mask,
    )


def test_numbers_that_are_computed_of_shapes_are_known_without_compiling(monkeypatch):
    """As einops computes them: TVM's own compiled each, some hundred in a transformer."""

    def windows(x):
        n, c, h, w = x.shape
        x = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
        x = x.reshape(n * (h // 2) * (w // 2), c, 4).repeat(1, h // 4, 1)
        return x + torch.arange(h // 2) * torch.full((c * (h // 4), 1), 2.0)

    built = []
    monkeypatch.setattr(relay, "build", lambda *args, **options: built.append(args))
    x = torch.rand(1, 3, 8, 6)
    mod = assert_computes(windows, x)
    assert not built and "dyn.reshape" not in ops(mod)


def test_the_example_stays_as_it_is():
    class Writes(nn.Module):
        def forward(self, x):
            x *= 255
            return x + 1

    example = torch.rand(2, 3)
    kept = example.clone()
    (found,) = run(from_pytorch(Writes(), example)[0], kept.numpy())
    assert torch.equal(example, kept)
    np.testing.assert_allclose(found, kept * 255 + 1, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 5), (7,)])
def test_what_is_computed_of_a_mask_is_assigned_to_it(shape):
    def assigned(x):
        y = x * 1
        y[x > 0.5] = 4 + (x / 3)[x > 0.5] % 2
        return y

    assert "where" in ops(assert_computes(assigned, torch.rand(*shape)))


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 2)])
def test_what_is_computed_of_rows_is_assigned_to_them(shape):
    """In a graph whose shapes stay known."""
    factors = torch.rand(shape[-1])

    def assigned(x):
        y = x * 1
        rows = x[..., 0] > 0.5
        y[rows] = y[rows] * factors + 1
        return y

    names = ops(assert_computes(assigned, torch.rand(*shape)))
    assert "where" in names
    assert "adv_index" not in names


def test_what_is_computed_of_another_mask_is_assigned_in_order():
    def assigned(x):
        y = x * 1
        y[x > 0.5] = x[x.flip(0) > 0.5]
        return y

    assert_computes(assigned, torch.arange(4.0))


def test_a_mask_without_axes_is_fixed_with_a_warning():
    def assigned(x):
        y = x * 1
        y[x.sum() > 0] = 3
        return y

    with pytest.warns(UserWarning, match="is fixed to .* Using a 0-d mask as an index at .*: assigned"):
        assert_computes(assigned, torch.ones(4))


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_an_inverse(size, lead):
    torch.manual_seed(0)
    matrices = torch.rand(*lead, size, size) + 2 * torch.eye(size)
    assert_computes(torch.inverse, matrices, rtol=1e-4)


def test_an_inverse_of_many_rows_is_refused():
    with pytest.raises(ValueError, match="equations of up to 16 unknowns can be solved, these have 17"):
        assert_computes(torch.inverse, torch.eye(17) * 2)


def matrices_that_need_pivots(size):
    """The second has a single element other than 0 in each row."""
    torch.manual_seed(0)
    matrices = torch.rand(2, size, size) - 0.5
    matrices[0, 0, 0] = 0
    matrices[1] = torch.eye(size)[torch.randperm(size)] * 3
    return matrices


@pytest.mark.parametrize(
    "solved",
    [
        lambda a, b, c: torch.linalg.solve(a, b),
        lambda a, b, c: torch.linalg.solve(a, c),  # of vectors
        lambda a, b, c: torch.linalg.solve(a[0], c[0]),
        lambda a, b, c: torch.linalg.solve(a, b.transpose(1, 2), left=False),
        lambda a, b, c: torch.linalg.solve(a[1], b),  # the same matrix for all
        lambda a, b, c: torch.linalg.solve(a.double(), b.double()),
    ],
)
def test_equations_are_solved(solved):
    right = torch.rand(2, 5, 3), torch.rand(2, 5)
    assert_computes(solved, matrices_that_need_pivots(5), *right, rtol=1e-3)


def test_equations_of_constants_are_solved_as_they_are_imported():
    matrices, right = matrices_that_need_pivots(6), torch.rand(2, 6)
    mod = assert_computes(lambda x: x * torch.linalg.solve(matrices, right), torch.rand(2, 6), rtol=1e-5)
    assert ops(mod) == ["multiply"]


class Marked(nn.Module):
    """With a part that is given, and a mark for the profiler."""

    def __init__(self, part=None):
        super().__init__()
        self.part = part or nn.Conv2d(2, 3, 1)

    def forward(self, x):
        with torch.profiler.record_function("head"):
            return self.part(x)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model, x: model,
        lambda model, x: nn.DataParallel(model),
        lambda model, x: torch.compile(model),
        lambda model, x: Marked(torch.compile(model.part)),
        lambda model, x: torch.export.export(model.part, (x,)).module(),
    ],
    ids=["marked for the profiler", "DataParallel", "compiled", "with a compiled part", "exported"],
)
def test_a_model_in_a_wrapping(wrap):
    model, x = Marked().eval(), torch.rand(1, 2, 4, 5)
    mod, params = from_pytorch(wrap(model, x), x)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    np.testing.assert_allclose(run(mod, x.numpy())[0], model(x).detach(), rtol=1e-5, atol=1e-6)


def test_the_name_of_an_input_of_a_compiled_model_stays():
    mod, _ = from_pytorch(torch.compile(Marked()), torch.rand(1, 2, 4, 5))
    assert list(mod["main"].attrs["input_names"]) == ["x"]


def test_a_frozen_script_is_refused():
    frozen = torch.jit.freeze(torch.jit.trace(nn.Conv2d(2, 3, 1).eval(), torch.rand(1, 2, 4, 5)))
    with pytest.raises(ImportFailure, match=r"pass what torch\.jit\.freeze was given"):
        from_pytorch(frozen, torch.rand(1, 2, 4, 5))
