"""What `from_pytorch` holds every converter to: no argument passed over, and the types that torch has."""

import pytest
import torch
from torch import nn

from frontends import ImportFailure, from_pytorch
from frontends._pytorch import convert as _torch_convert
from frontends._pytorch.arguments import Arguments
from tests.helpers import run

from tvm import relay


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def pass_over(argument, change):
    """A converter that knows nothing of all but the first arguments."""

    def convert(converter, inputs, input_types):
        return change(converter, inputs[:argument], input_types)

    return convert


def refusal(function, x=None):
    with pytest.raises(ImportFailure) as failure:
        from_pytorch(Function(function), torch.rand(3, 4) if x is None else x)
    message = str(failure.value)
    assert "\n" not in message
    assert "test_pytorch_contract.py" in message
    return message


@pytest.fixture
def converters(monkeypatch):
    """The table of converters, which a test may change."""
    table = dict(_torch_convert.CONVERTERS)
    monkeypatch.setattr(_torch_convert, "CONVERTERS", table)
    return table


def test_an_argument_that_the_converter_does_not_read(converters):
    converters["aten::add"] = pass_over(
        2, lambda converter, inputs, types: converter.stock["aten::add"](inputs, types)
    )
    from_pytorch(Function(lambda x: torch.add(x, x)), torch.rand(3, 4))
    assert "at aten::add" in refusal(lambda x: torch.add(x, x, alpha=2))
    assert "alpha=2 cannot be converted" in refusal(lambda x: torch.add(x, x, alpha=2))


def test_a_result_of_another_kind(converters):
    converters["aten::neg"] = lambda converter, inputs, types: relay.cast(inputs[0], "bool")
    assert "converted to bool[3, 4], but is float32[3, 4]" in refusal(lambda x: -x)


def test_a_result_of_another_shape(converters):
    converters["aten::neg"] = lambda converter, inputs, types: converter.stock["aten::t"](inputs, types)
    assert "converted to float32[4, 3], but is float32[3, 4]" in refusal(lambda x: -x)


def test_a_wider_result_is_cast(converters):
    converters["aten::neg"] = lambda converter, inputs, types: relay.cast(
        relay.negative(inputs[0]), "float64"
    )
    mod, _ = from_pytorch(Function(lambda x: (-x) + 1), torch.rand(3, 4))
    assert run(mod, torch.ones(3, 4).numpy())[0].dtype == "float32"


def test_a_result_that_is_missing(converters):
    converters["aten::sort"] = lambda converter, inputs, types: (
        relay.sort(inputs[0], inputs[1]),
        inputs[2] or None,
    )
    assert "only some of its 2 results" in refusal(lambda x: x.sort(1))
    from_pytorch(Function(lambda x: x.sort(1)[0]), torch.rand(3, 4))


@pytest.mark.parametrize(
    "function",
    [torch.rand_like, torch.bernoulli, lambda x: nn.functional.dropout(x, 0.5, training=True)],
    ids=["rand_like", "bernoulli", "dropout"],
)
def test_random_numbers(function):
    assert "draws random numbers" in refusal(function)


def test_an_error_of_python_in_a_converter_becomes_the_call(converters):
    converters["aten::softmax"] = lambda converter, inputs, types: None + len(list(inputs))
    message = refusal(lambda x: x.softmax(1))
    assert "at aten::softmax" in message
    assert "it cannot be converted with self=float32[3, 4], dim=1" in message
    assert "NoneType" not in message


def test_a_stated_reason_is_kept(converters):
    def refuse(converter, inputs, types):
        raise ImportFailure("half of a matrix has no softmax")

    converters["aten::softmax"] = refuse
    assert refusal(lambda x: x.softmax(1)).endswith("half of a matrix has no softmax")


def test_all_operators_without_a_converter_are_named():
    message = refusal(lambda x: torch.special.airy_ai(x) + torch.special.bessel_y0(x))
    assert "aten::special_airy_ai (" in message
    assert "aten::special_bessel_y0 (" in message


def test_a_failed_trace_says_where():
    message = refusal(lambda x: x @ x)
    assert "torch cannot trace Function with inputs of [3, 4] torch.float32, at " in message


@pytest.mark.parametrize("module", [nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2)], ids=type)
def test_attention_is_not_traced_into_the_fast_path(module):
    x = torch.rand(5, 2, 8)
    given = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    mod, _ = from_pytorch(module, given)
    assert torch.backends.mha.get_fastpath_enabled() == was_enabled
    assert "_native_multi_head_attention" not in mod.astext()


def test_arguments_know_what_was_read():
    arguments = Arguments([10, 11, 12, 13])
    assert len(arguments) == 4
    assert arguments[:3][1:][0] == 11
    assert arguments.unread == {0, 2, 3}
    assert arguments[-1] == 13
    assert arguments.unread == {0, 2}
    assert [*arguments[:1], 5] == [10, 5]
    assert arguments.unread == {2}
    assert list(arguments) == [10, 11, 12, 13]
    assert not arguments.unread


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.narrow(0, 0, 2),
        lambda x: x.swapaxes(0, 1),
        lambda x: x.unflatten(0, (1, 3)),
        lambda x: x.expand(3, 4),
    ],
    ids=["narrow", "swapaxes", "unflatten", "expand"],
)
def test_what_changes_is_seen_through_any_view(view):
    def function(x):
        x = x * 1
        seen = view(x)
        x.add_(1)
        return seen * 2

    x = torch.rand(3, 4)
    mod, _ = from_pytorch(Function(function), x)
    assert abs(run(mod, x.numpy())[0] - Function(function)(x).numpy()).max() == 0


def test_a_new_shape_in_place_changes_no_number():
    def function(x):
        x = x * 1
        row = x[0]
        row.unsqueeze_(0)
        return x + row

    x = torch.rand(3, 4)
    mod, _ = from_pytorch(Function(function), x)
    assert abs(run(mod, x.numpy())[0] - Function(function)(x).numpy()).max() == 0


@pytest.mark.parametrize(
    "tensor, said",
    [
        (torch.eye(3).to_sparse(), "is sparse_coo, and compiled networks take dense tensors"),
        (torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]), "is nested, and"),
        (torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.quint8), "give .dequantize()"),
        (torch.eye(3).to(torch.complex64), "TVM has no complex numbers"),
        (torch.eye(3).bfloat16(), "import the model in float32"),
        (torch.eye(3).to(torch.float8_e4m3fn), "is of torch.float8_e4m3fn, which TVM does not have"),
    ],
    ids=["sparse", "nested", "quantized", "complex", "bfloat16", "float8"],
)
def test_an_input_that_a_compiled_network_cannot_take(tensor, said):
    with pytest.raises(ImportFailure) as failure:
        from_pytorch(nn.Identity(), tensor)
    assert str(failure.value).startswith("example_inputs[0] is")
    assert said in str(failure.value)


def test_a_weight_in_bfloat16_is_named():
    with pytest.raises(ImportFailure, match=r"Sequential\.0\.weight is of torch\.bfloat16, which"):
        from_pytorch(nn.Sequential(nn.Linear(3, 3).bfloat16()), torch.rand(2, 3))


def test_what_cannot_be_computed_in_a_dtype_is_named():
    class Autocast(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)

    with pytest.raises(ImportFailure, match=r"forward.*: it gives torch.bfloat16, .* without autocast"):
        from_pytorch(Autocast(3, 3), torch.rand(2, 3))
    assert "it gives torch.complex64, and TVM has no complex numbers" in refusal(
        lambda x: torch.view_as_real(x.to(torch.complex64))
    )
