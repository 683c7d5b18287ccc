"""Scripts that compute with sizes, ask for types and modes, and branch on them: as the example has them."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frontends import ImportFailure, from_pytorch
from frontends._pytorch.sizes import settle_sizes
from tests.frontends.torch_models import assert_computes
from tests.helpers import quick, runner

import tvm

ROWS = torch.rand(2, 5, 8)


def assert_as_torch(model, *examples):
    """Import the script for the first example, and compare with torch on all of them."""
    script = torch.jit.script(model.eval())
    mod, params = from_pytorch(script, examples[0])
    bound = tvm.relay.build_module.bind_params_by_name(mod["main"], params)
    run = runner(tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): bound}), quick())
    for example in examples:
        with torch.no_grad():
            expected = model(example)
        (found,) = run(example.numpy())
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


class Fitted(nn.Module):
    """Pads to whole windows, resizes what it has convolved, and cuts the result to the image's size."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.window = 4

    def forward(self, x):
        height, width = x.shape[2:]
        down = (self.window - height % self.window) % self.window
        x = F.pad(x, (0, (self.window - width % self.window) % self.window, 0, down), mode="reflect")
        small = self.conv(x)
        b, c, h, w = small.shape
        windows = small.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)
        small = windows.softmax(1).reshape(b, h // 2, w // 2, 2, 2, c).permute(0, 5, 1, 3, 2, 4)
        for _ in range(int(x.dim()) - 3):
            small = small.reshape(b, c, h, w) * 2
        small = F.interpolate(small, size=x.shape[2:], mode="bilinear", align_corners=False)
        return F.interpolate(small, scale_factor=2.0, mode="nearest")[:, :, : 2 * height, : 2 * width]


class Attention(nn.Module):
    """torch chooses among many ways of computing it, by types and modes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0].unflatten(1, [x.size(1) // 2, 2])


def test_sizes_of_an_image():
    assert_as_torch(Fitted(), torch.rand(2, 3, 7, 9))


class ByConstants(nn.Module):
    """Indices that torch computes as it compiles the script, with the list that they are in."""

    def forward(self, x):
        places = torch.arange(3)[:, None] - torch.arange(3)[None] + 2
        return x[places] + x[:, torch.tensor([1, 2, 0])].sum()


def test_indices_that_are_constants():
    assert_as_torch(ByConstants(), torch.rand(5, 4))


def test_attention():
    assert_as_torch(Attention(), torch.rand(2, 6, 8))


class OfRows(nn.Module):
    def forward(self, x):
        rows = x[x[:, 0] > 0.5]
        return x * rows.size(0) + rows.sum()


class OfPlaces(nn.Module):
    def forward(self, x):
        return x * torch.nonzero(x > 0.5).size(0)


class OfAChoice(nn.Module):
    def forward(self, x):
        y = x if bool(x.sum() > 0) else x[1:]
        return y * y.size(0)


class OfANumber(nn.Module):
    def forward(self, x):
        return x * x[: int(x[0, 0])].size(0)


@pytest.mark.parametrize("model", [OfRows(), OfPlaces(), OfAChoice(), OfANumber()])
def test_sizes_that_depend_on_values_are_no_constants(model):
    script = torch.jit.script(model)
    before = len(script.graph.findAllNodes("aten::size", recurse=True))
    settle_sizes(script, [torch.rand(4, 3) + 1])
    torch._C._jit_pass_dce(script.graph)
    assert len(script.graph.findAllNodes("aten::size", recurse=True)) == before == 1


def test_a_size_before_such_a_one_is_a_constant():
    @torch.jit.script
    def function(x):
        first = x.size(0)
        return torch.nonzero(x).size(0) * first

    class Sized(nn.Module):
        def forward(self, x):
            return function(x)

    script = torch.jit.script(Sized())
    torch._C._jit_pass_inline(script.graph)
    settle_sizes(script, [torch.rand(4, 3)])
    torch._C._jit_pass_dce(script.graph)
    (left,) = script.graph.findAllNodes("aten::size", recurse=True)
    assert left.inputsAt(0).node().kind() == "aten::nonzero"


def test_numbers_that_depend_on_values_are_refused_or_right():
    try:
        mod, _ = from_pytorch(torch.jit.script(OfRows()), torch.rand(4, 3))
    except ImportFailure as refusal:
        assert "aten::" in str(refusal)
        return
    run = runner(mod, quick())
    for x in (torch.rand(4, 3), torch.zeros(4, 3)):
        np.testing.assert_allclose(run(x.numpy())[0], OfRows()(x).numpy(), rtol=1e-5)


def test_a_script_that_torch_cannot_trace():
    script = torch.jit.script(ReturningNone())
    with pytest.raises(ImportFailure, match=r"type None.*; pass the nn.Module that it was scripted from"):
        from_pytorch(script, torch.rand(3))


def test_a_frozen_script_that_was_put_in_evaluation_mode():
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Conv2d(3, 4, 3).eval()))
    with pytest.raises(ImportFailure, match=r"a frozen script .*: pass what torch.jit.freeze was given"):
        from_pytorch(frozen.eval(), torch.rand(1, 3, 8, 8))


class ReturningNone(torch.nn.Module):
    def forward(self, x):
        return x, None


class OfAnyNumber(nn.Module):
    """A detector that looks at the shape of what is left, as those do that return early."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor):
        kept = boxes[scores > 0.5]
        if kept.shape[0] == 0:
            return torch.zeros(0, 4), torch.zeros(1)
        middle = kept.view(kept.shape[0], 2, 2).mean(1)
        return kept.view(kept.size()), torch.full([1], float(kept.shape[0] + kept.shape[-1])) + middle.sum()


def test_the_shape_of_what_is_left():
    boxes, scores = torch.rand(6, 4), torch.tensor([0.9, 0.2, 0.7, 0.1, 0.6, 0.3])
    assert_computes(torch.jit.script(OfAnyNumber()), boxes, scores, others=[(boxes, scores * 0)])


class TensorsOfNumbers(nn.Module):
    """Of a shape, and of numbers, that depend on data."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor):
        kept = boxes[scores > 0.5]
        shape = torch.tensor(kept.shape)
        mixed = torch.tensor([[float(scores.sum()), 2.0], [1.0, kept.shape[0] * 1.0]])
        count = torch.tensor(int(scores.sum()), dtype=torch.float32)
        return shape, mixed, count, torch.zeros(kept.shape[:1]) + torch.ones(kept.shape[1:])[0]


def test_tensors_of_numbers_that_depend_on_data():
    boxes, scores = torch.rand(6, 4), torch.tensor([0.9, 0.2, 0.7, 0.1, 0.6, 0.3])
    assert_computes(torch.jit.script(TensorsOfNumbers()), boxes, scores, others=[(boxes, 1 - scores)])


class OfOthers(nn.Module):
    """Keys and values are not the queries, and some of them are masked."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        mask[:, -1] = True
        return self.attention(x, x + 1, x * 2, key_padding_mask=mask, need_weights=False)[0]


class Decoded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x, x * 2)


class ByNorms(nn.Module):
    def forward(self, x):
        return torch.norm(x, dim=-1, keepdim=True) + torch.norm(x) + torch.norm(x, p=1.0, dim=1, keepdim=True)


class Warned(nn.Module):
    """torch warns in some of its functions, too."""

    def forward(self, x):
        if x.shape[0] != 3:
            warnings.warn(f"not three but {x.shape[0]}", stacklevel=2)
        print(x.shape)
        return F.grid_sample(x[None], torch.zeros(1, 3, 3, 2))


class OfNoAxes(nn.Module):
    def forward(self, x):
        return F.mse_loss(x.sum(), x.mean())


class OfAnItem(nn.Module):
    def forward(self, x):
        return x * int(x.sum().item()) + x.max().item()


class ByName(nn.Module):
    """Dicts whose keys are known."""

    def forward(self, x):
        found: dict[str, Tensor] = {"first": x}
        found["second"] = x * 2
        for _ in range(2):
            if "second" in found:
                found["first"] = found["first"] + found["second"]
        return found["first"] / len(found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [OfOthers, Decoded, ByNorms, Warned, OfNoAxes, OfAnItem, ByName])
def test_what_torch_asks_of_tensors_that_it_is_given(model):
    torch.manual_seed(0)
    assert_as_torch(model(), ROWS)


class Named(nn.Module):
    def forward(self, x) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        found["logits"] = x * 2
        found["mean"] = x.mean(1)
        return found


def test_a_dict_that_is_returned():
    mod, _ = from_pytorch(torch.jit.script(Named()), ROWS)
    assert list(mod["main"].attrs["output_names"]) == ["logits", "mean"]
    assert_computes(torch.jit.script(Named()), ROWS)


class ItsInput(nn.Module):
    """`reshape` to its own shape gives the tensor itself."""

    def forward(self, x):
        y = x.reshape(2, 5, 8)
        return x * 2 if y is x else x - 1


def test_tensors_that_may_be_the_same_are_not_told_apart():
    """Only the run knows it, and Relay has no such question."""
    with pytest.raises(ImportFailure, match="aten::__is__"):
        from_pytorch(torch.jit.script(ItsInput()), ROWS)
