"""from_pytorch: the numbers of torch, the names of the model, and nothing left changed."""

import collections
import dataclasses
import fcntl
import os
import pty
import struct
import sys
import termios
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from frontends import ImportFailure, from_pytorch
from frontends._pytorch import convert as converter
from tests.frontends.torch_models import Branching, Plain, Returning, Scripted, assert_computes, names
from tests.helpers import run
from tvm_passes import runtime

import tvm
from tvm import relay


def spans(mod):
    found = collections.Counter()

    def visit(node):
        if isinstance(node, relay.Call):
            found[node.span.source_name.name if node.span else None] += 1

    relay.analysis.post_order_visit(mod["main"], visit)
    return found


# --- what is imported


def test_a_module():
    mod, params = assert_computes(Plain(), torch.rand(1, 3, 8, 8))
    assert names(mod) == (["image"], ["output"])
    assert "aten::_convolution_0.weight" in params
    assert [str(var.name_hint) for var in mod["main"].params][:1] == ["image"]


def test_every_call_has_a_span():
    mod, _ = from_pytorch(Plain(), torch.rand(1, 3, 8, 8))
    assert {"aten::_convolution_0", "aten::max_pool2d_0", "aten::linear_0"} < set(spans(mod))
    assert None not in spans(mod)


def test_spans_and_result_do_not_depend_on_the_context():
    model, example = Plain(), torch.rand(1, 3, 8, 8)
    outside, _ = from_pytorch(model, example)
    with tvm.transform.PassContext(opt_level=0, config={"relay.frontend.fill_span": False}) as context:
        inside, _ = from_pytorch(model, example)
        assert tvm.transform.PassContext.current() == context
    assert spans(inside) == spans(outside)
    tvm.ir.assert_structural_equal(inside, outside)


def test_the_module_is_typed_and_has_no_other_types():
    mod, _ = from_pytorch(Plain(), torch.rand(1, 3, 8, 8))
    assert mod["main"].checked_type is not None
    assert not mod.type_definitions


def test_several_inputs_in_the_order_of_forward():
    class Two(nn.Module):
        def forward(self, left, right, *more):
            return right - left, sum(more)

    tensors = [torch.rand(2, 3) for _ in range(4)]
    mod, _ = assert_computes(Two(), *tensors)
    assert names(mod) == (["left", "right", "more0", "more1"], ["output0", "output1"])
    from_list, _ = from_pytorch(Two(), tensors)
    tvm.ir.assert_structural_equal(mod, from_list)


def test_an_unused_input_stays():
    class Second(nn.Module):
        def forward(self, unused, used):
            return used + 1

    mod, _ = assert_computes(Second(), torch.rand(2), torch.arange(3))
    assert names(mod)[0] == ["unused", "used"]


def test_variables_used_in_a_list_and_elsewhere():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(2, 3))

        def forward(self, x):
            return torch.cat([x]) + x[:, :1], torch.stack([self.weight, x])[0] + self.weight[:1]

    assert_computes(Twice(), torch.rand(2, 3))


def test_traced():
    traced = torch.jit.trace(Plain().eval(), torch.rand(1, 3, 8, 8))
    mod, params = assert_computes(traced, torch.rand(1, 3, 8, 8))
    assert names(mod) == (["image"], ["output"])
    assert params


def test_scripted():
    positive = torch.rand(1, 3, 8, 8)
    mod, params = assert_computes(torch.jit.script(Scripted()), positive, others=[(-30 * positive,)])
    assert names(mod) == (["x"], ["output"])
    assert "aten::conv2d_0.weight" in params


def test_a_scripted_branch_with_several_results():
    x = torch.rand(2, 3)
    mod, _ = assert_computes(torch.jit.script(Branching()), x, others=[(-x,)])
    assert names(mod)[1] == ["low", "high"]


def test_a_scripted_part_of_a_module():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.jit.script(Branching())

        def forward(self, x):
            return self.part(x)["high"] + 1

    x = torch.rand(2, 3)
    assert_computes(Whole(), x, others=[(-x,)])


def test_scripted_layers_without_bias_and_with_checks():
    """A norm checks how many axes its data have, and a convolution without a bias has None in its place."""

    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.Sequential(
                nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)
            )
            self.last = nn.Linear(4, 2, bias=False)

        def forward(self, x):
            means = self.parts(x).mean((2, 3))
            if means.dim() != 2:
                raise ValueError("no batch of vectors")
            return self.last(means)

    x = torch.rand(2, 3, 8, 8)
    assert_computes(torch.jit.script(Norms().eval()), x, others=[(-x,)])


def test_half():
    if torch.__version__.startswith("2.1."):
        pytest.skip("this torch does not convolve half numbers on the CPU")
    mod, params = from_pytorch(Plain().half(), torch.rand(1, 3, 8, 8).half())
    assert mod["main"].ret_type.dtype == "float16"
    assert params["aten::_convolution_0.weight"].dtype == "float16"


def test_scripted_half():
    if torch.__version__.startswith("2.1."):
        pytest.skip("this torch does not convolve half numbers on the CPU")
    mod, _ = from_pytorch(torch.jit.script(Scripted().half()), torch.rand(1, 3, 8, 8).half())
    assert mod["main"].ret_type.dtype == "float16"


def test_pixel_unshuffle():
    x = torch.rand(2, 3, 6, 9)
    mod, _ = from_pytorch(nn.PixelUnshuffle(3), x)
    np.testing.assert_array_equal(run(mod, x.numpy())[0], torch.nn.functional.pixel_unshuffle(x, 3).numpy())


def test_weights_of_one_name_that_one_operator_reads_are_two():
    class Joined(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (torch.nn.Linear(4, 3) for _ in range(3))

        def forward(self, x):
            weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
            return torch.nn.functional.linear(x, weight) + self.key.bias.sum()

    torch.manual_seed(0)
    model, x = Joined(), torch.randn(2, 4)
    mod, params = from_pytorch(model, x)
    found = runtime.compile(mod, "llvm", params)(x.numpy())
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


# --- what TVM's importer gets wrong


class ReturningItsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.anchors = nn.Parameter(torch.rand(3))
        self.register_buffer("strides", torch.arange(4))

    def forward(self, x):
        return x * self.anchors, self.anchors, self.strides


class ReturningThemFromABranch(ReturningItsWeights):
    def forward(self, x):
        return self.anchors if bool(x.sum() > 0) else x[0]


def test_weights_that_a_model_returns():
    image = torch.rand(2, 3)
    assert_computes(ReturningItsWeights(), image)
    assert_computes(torch.jit.script(ReturningThemFromABranch()), image, others=[(-image,)])


def test_division_keeps_its_rounding_mode():
    class Divide(nn.Module):
        def forward(self, a, b, c):
            modes = (None, "floor", "trunc")
            return [
                torch.div(x, y, rounding_mode=mode) for x, y in ((a, b), (c, 2), (a, 3)) for mode in modes
            ]

    assert_computes(
        Divide(), torch.tensor([-7, 7, 8]), torch.tensor([2, -2, 3]), torch.tensor([-7.0, 5.0, 2.5])
    )


def test_slices_of_an_unknown_length():
    def slices(x):
        rows = x[torch.where(x[:, 0] > 0.5)[0]]
        return (
            rows[:, 1:3],
            rows[:4],
            rows[-2:],
            rows[:-1],
            rows[5:],
            rows[2:9],
            rows[-4:-1, 0::4],
            rows[1:100:3],
        )

    full = torch.rand(10, 8) + 0.5
    some = [torch.cat([full[:count], 0 * full[count:]]) for count in (0, 1, 4)]
    mod, _ = assert_computes(Returning(slices), full, others=[(x,) for x in some])
    assert all(isinstance(field.shape[1], tvm.tir.IntImm) for field in mod["main"].ret_type.fields)


def test_a_view_of_an_unknown_length():
    def view(x):
        rows = x[torch.where(x[:, 0] > 0.5)[0]]
        return rows.contiguous().view(rows.shape[0], 2, 4), rows.reshape(rows.shape[0], 8) + 1

    mod, _ = assert_computes(Returning(view), torch.rand(10, 8), others=[(torch.rand(10, 8),)])
    assert [int(extent) for extent in mod["main"].ret_type.fields[0].shape[1:]] == [2, 4]


def test_a_slice_after_expanding_to_an_unknown_length():
    def expand(x):
        rows = x[torch.where(x[:, 0] > 0.5)[0]]
        return torch.arange(8).view(1, -1).expand_as(rows)[:, 1:].reshape(-1)

    assert_computes(Returning(expand), torch.rand(10, 8))


def test_indices_have_torchs_dtype():
    assert_computes(Returning(lambda x: torch.where(x > 0.5)[0]), torch.rand(9))


# --- names of outputs

Point = collections.namedtuple("Point", "x y")
Pair = dataclasses.make_dataclass("Pair", ["b", "a"])


@pytest.mark.parametrize(
    "returned, expected",
    [
        (lambda x: {"out": {"logits": x}, "aux": [x + 1, x + 2]}, ["out.logits", "aux.0", "aux.1"]),
        (lambda x: (x, [x + 1, {"a": x}]), ["output0", "output1.0", "output1.1.a"]),
        (lambda x: Point(x, x + 1), ["x", "y"]),
        (lambda x: {"p": Pair(Pair(x, None), x + 1)}, ["p.b.b", "p.a"]),
        (lambda x: {"p": Point(x, None), "rest": None}, ["p.x"]),
        (lambda x: [{"a": x + 1}], ["a"]),
        (lambda x: collections.OrderedDict([("b", x), ("a", x + 1)]), ["b", "a"]),
        (
            lambda x: {"labels": x, "masks": x, "boxes": x, "scores": x},
            ["boxes", "scores", "labels", "masks"],
        ),
    ],
)
def test_outputs_are_flat_and_named_by_their_place(returned, expected):
    mod, _ = from_pytorch(Returning(returned), torch.rand(3))
    assert names(mod)[1] == expected


def test_a_traced_module_that_returns_a_dict():
    traced = torch.jit.trace(Returning(lambda x: {"a": x * 2, "b": x + 1}), torch.rand(3), strict=False)
    mod, _ = from_pytorch(traced, torch.rand(3))
    assert names(mod)[1] == ["a", "b"]


# --- what is left unchanged


def test_training_flags_come_back():
    model = Plain()
    model.norm.eval()
    flags = [part.training for part in model.modules()]
    from_pytorch(model, torch.rand(1, 3, 8, 8))
    assert [part.training for part in model.modules()] == flags
    with pytest.raises(ImportFailure):
        from_pytorch(model, torch.rand(3))
    assert [part.training for part in model.modules()] == flags


def test_imported_as_in_evaluation():
    model, example = Plain().train(), torch.rand(1, 3, 8, 8)
    training, _ = from_pytorch(model, example)
    evaluation, _ = from_pytorch(model.eval(), example)
    tvm.ir.assert_structural_equal(training, evaluation)


def test_global_state_stays():
    model, example = Returning(lambda x: x + torch.rand(3)), torch.rand(3)
    filters = list(warnings.filters)
    seed, map_names = torch.get_rng_state(), set(vars(converter.stock))
    with pytest.raises(ImportFailure):  # TVM has no random numbers of torch
        from_pytorch(model, example)
    assert torch.equal(torch.get_rng_state(), seed)
    assert torch.is_grad_enabled()
    assert warnings.filters == filters
    assert set(vars(converter.stock)) == map_names
    assert converter.stock.PyTorchOpConverter is not converter._Converter


def test_the_same_model_imports_the_same():
    model, example = Plain(), torch.rand(1, 3, 8, 8)
    first, second = from_pytorch(model, example), from_pytorch(model, example)
    tvm.ir.assert_structural_equal(first[0], second[0])
    assert first[1].keys() == second[1].keys()
    assert all((first[1][key].numpy() == second[1][key].numpy()).all() for key in first[1])


# --- what is said meanwhile


def test_silent_where_stderr_is_no_terminal(capfd, monkeypatch):
    monkeypatch.setattr("tvm_passes.progress.SECONDS_BEFORE_SHOWN", 0)
    scripted = torch.jit.script(Scripted())
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_pytorch(Plain(), torch.rand(1, 3, 8, 8))
        from_pytorch(scripted, torch.rand(1, 3, 8, 8))
    assert capfd.readouterr() == ("", "")


def test_progress_on_a_terminal(monkeypatch):
    monkeypatch.setattr("tvm_passes.progress.SECONDS_BEFORE_SHOWN", 0)
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))  # rows and columns
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        from_pytorch(Plain(), torch.rand(1, 3, 8, 8))
        os.set_blocking(reader, False)
        shown = os.read(reader, 10000).decode()
    os.close(reader)
    assert "Importing Plain" in shown


def test_a_warning_about_the_users_own_code_is_shown():
    with pytest.warns(UserWarning, match="Python boolean"):
        from_pytorch(Returning(lambda x: x + 1 if x.sum() > 0 else x), torch.rand(3))
