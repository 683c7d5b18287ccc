"""from_pytorch: the numbers of torch, the names of the model, and nothing left changed."""

import collections
import fcntl
import os
import pty
import struct
import sys
import termios
import warnings
from typing import Optional

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.detection import roi_heads, transform

from frontends import ImportFailure, from_pytorch
from frontends._pytorch import convert as converter
from tests.helpers import ops, run
from tests.models.zoo import detection_model, random_image
from tests.ops.objects import heatmaps, objects
from tvm_passes import runtime
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay


class Plain(nn.Module):
    """What most networks are made of; `forward` has a parameter that is no tensor."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.dense = nn.Linear(4 * 4 * 4, 5)

    def forward(self, image, scale: float = 2.0):
        features = nn.functional.max_pool2d(torch.relu_(self.norm(self.conv(image))), 2)
        return self.dense(self.dropout(features).flatten(1)) * scale


class Returning(nn.Module):
    """A model that is given by what it returns."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Branching(nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            low, high = x - 1, x * 2
        else:
            low, high = x - 3, x * 4
        return {"low": low, "high": high}


class Scripted(nn.Module):
    """With what TVM's importer does not take as it comes from the scripting compiler."""

    def __init__(self):
        super().__init__()
        self.plain = Plain()

    def forward(self, x):
        out = self.plain(x)
        if bool(out.sum() > 0):  # noqa: SIM108  (this is what is tested)
            out = out + x.shape[1]
        else:
            out = out - x.shape[2]
        return out


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def numbers(mod, params, *tensors):
    bound = relay.build_module.bind_params_by_name(mod["main"], params)
    return run(tvm.IRModule.from_expr(bound), *(tensor.numpy() for tensor in tensors))


def names(mod):
    attributes = mod["main"].attrs
    return [str(name) for name in attributes["input_names"]], [
        str(name) for name in attributes["output_names"]
    ]


def assert_computes(model, *tensors, others=(), rtol=1e-4, atol=1e-5):
    """Assert that the import computes what torch does, on the example and on other inputs."""
    mod, params = from_pytorch(model, tensors)
    with torch.no_grad():
        for inputs in (tensors, *others):
            expected = model.eval()(*inputs)
            expected = expected.values() if isinstance(expected, dict) else expected
            expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
            found = numbers(mod, params, *inputs)
            assert len(found) == len(expected)
            for ours, theirs in zip(found, expected):
                assert ours.dtype == theirs.numpy().dtype
                np.testing.assert_allclose(ours, theirs.numpy(), rtol=rtol, atol=atol)
    return mod, params


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


# --- what TVM's importer gets wrong


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


# --- mutation, which TVM's importer computes wrongly in silence


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


def an_unknown_part(x):
    y = x[torch.where(x[:, 0] > 0.5)[0]]
    y[0] = 1
    return y


@pytest.mark.parametrize(
    "function, reason",
    [
        (an_unknown_part, "length is known only at run time"),
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


# --- names of outputs

Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "returned, expected",
    [
        (lambda x: {"out": {"logits": x}, "aux": [x + 1, x + 2]}, ["out.logits", "aux.0", "aux.1"]),
        (lambda x: (x, [x + 1, {"a": x}]), ["output0", "output1.0", "output1.1.a"]),
        (lambda x: Point(x, x + 1), ["x", "y"]),
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


# --- what cannot be imported


@pytest.mark.parametrize("model", [lambda x: x, Plain, "resnet", None])
def test_a_model_must_be_a_module(model):
    with pytest.raises(ImportFailure, match=r"model must be a torch.nn.Module"):
        from_pytorch(model, torch.rand(3))


@pytest.mark.parametrize(
    "example, message",
    [
        ((1, 3, 8, 8), r"example_inputs\[0\] must be a tensor, not int"),
        (np.zeros((1, 3, 8, 8)), "not ndarray"),
        ((), "at least one tensor"),
        ({"image": torch.rand(1)}, "not dict"),
        ([torch.rand(1), None], r"example_inputs\[1\] must be a tensor, not NoneType"),
    ],
)
def test_inputs_must_be_tensors(example, message):
    with pytest.raises(ImportFailure, match=message):
        from_pytorch(Plain(), example)


def test_what_torch_says_of_a_model_that_does_not_run():
    with pytest.raises(
        ImportFailure, match=r"torch cannot trace Plain with inputs of \[1, 5, 8, 8\] torch.float32"
    ):
        from_pytorch(Plain(), torch.rand(1, 5, 8, 8))


def test_an_output_that_is_no_tensor():
    with pytest.raises(ImportFailure, match=r"the model's sizes.count is of type str, not a tensor"):
        from_pytorch(Returning(lambda x: {"x": x, "sizes": {"count": "3"}}), torch.rand(3))


def test_a_model_that_returns_nothing():
    with pytest.raises(ImportFailure, match="returns no tensor"):
        from_pytorch(Returning(lambda x: {"x": None}), torch.rand(3))


def test_an_operator_that_tvm_lacks():
    with pytest.raises(
        ImportFailure, match=r"TVM cannot import Returning, at aten::special_i1 \(.*: prims::bessel_i1 "
    ):
        from_pytorch(Returning(torch.special.i1), torch.rand(3))


def test_an_operator_that_tvm_has_but_not_so():
    with pytest.raises(ImportFailure, match=r"at aten::to \(.*test_from_pytorch.py.*bfloat16"):
        from_pytorch(Returning(lambda x: x.to(torch.bfloat16) + 1), torch.rand(3))


class Detecting(nn.Module):
    """A detector inside another model, which takes and returns tensors."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def forward(self, image):
        found = self.detector([image])
        if torch.jit.is_scripting():
            return found[1][0]["boxes"]
        return found[0]["boxes"]


class RetinaNet(nn.Module):
    """A detector by its name, and by what it takes and returns, that takes no time."""

    def forward(self, images: list[torch.Tensor], targets: Optional[list[dict[str, torch.Tensor]]] = None):
        found = [{"boxes": image * 2} for image in images]
        if torch.jit.is_scripting():
            return {"loss": images[0].sum()}, found
        return found


@pytest.mark.parametrize("name", ["maskrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large"])
def test_a_scripted_detector(name):
    detector = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None).eval()
    reason = rf"a scripted {type(detector).__name__} .* pass the nn\.Module that .*, or a traced one"
    with pytest.raises(ImportFailure, match=reason):
        from_pytorch(torch.jit.script(detector), torch.rand(3, 320, 320))


def test_a_scripted_detector_inside_a_model():
    for model in (Detecting(torch.jit.script(RetinaNet())), torch.jit.script(Detecting(RetinaNet()))):
        with pytest.raises(ImportFailure, match="a scripted RetinaNet "):
            from_pytorch(model, torch.rand(3, 8, 8))


def test_a_traced_detector(tmp_path):
    image = torch.rand(3, 8, 8)
    traced = torch.jit.trace(Detecting(RetinaNet()), image)
    torch.jit.save(traced, tmp_path / "traced.pt")
    for model in (traced, nn.Sequential(traced), torch.jit.load(tmp_path / "traced.pt")):
        assert_computes(model, image)


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


# --- detection models


@pytest.fixture(scope="module")
def mask_rcnn():
    return detection_model("maskrcnn_resnet50_fpn", min_size=128, max_size=128)


@pytest.mark.slow
def test_a_batch_of_one_and_an_image_differ_in_the_input_alone(mask_rcnn):
    image, _ = from_pytorch(mask_rcnn, random_image())
    batch, _ = from_pytorch(mask_rcnn, random_image()[None])
    assert names(image) == names(batch)
    assert [len(mod["main"].params[0].checked_type.shape) for mod in (image, batch)] == [3, 4]


class Pasting(nn.Module):
    def forward(self, masks, boxes):
        return transform.paste_masks_in_image(masks, boxes, (20, 30))


class FindingKeypoints(nn.Module):
    def forward(self, maps, rois):
        places, scores = roi_heads.keypointrcnn_inference(maps, [rois])
        return places[0], scores[0]


@pytest.mark.parametrize(
    "model, operator, arrays",
    [
        (Pasting(), "topi_ext.paste_masks", objects(4, (20, 30), side=7)),
        (FindingKeypoints(), "topi_ext.heatmaps_to_keypoints", heatmaps(4, 3, (7, 7), image_size=(20, 30))),
    ],
)
def test_what_is_done_with_each_detection_is_one_operator(model, operator, arrays):
    functions = transform.paste_masks_in_image, roi_heads.heatmaps_to_keypoints
    tensors = tuple(map(torch.from_numpy, arrays))
    mod, params = from_pytorch(model, tensors)
    assert [name for name in ops(mod) if name.startswith("topi_ext.")] == [operator]
    assert not any(isinstance(node, relay.Let) for node in Graph(mod["main"]).nodes)
    assert functions == (transform.paste_masks_in_image, roi_heads.heatmaps_to_keypoints)
    expected = model(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found, tensor in zip(numbers(mod, params, *tensors), expected):
        np.testing.assert_allclose(found, tensor.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_several_images(mask_rcnn):
    mod, _ = from_pytorch(mask_rcnn, [random_image(96, 128), random_image(128, 96)])
    assert names(mod)[0] == ["images0", "images1"]
    assert names(mod)[1][2:5] == ["output0.labels", "output0.masks", "output1.boxes"]


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
