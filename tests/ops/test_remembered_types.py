"""Types that are remembered are those that TVM infers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from topi_ext.corrections import remembered_types
from topi_ext.corrections.remembered_types import RELATIONS

import tvm
from tvm import relay

IMAGE = (1, 8, 6, 6)
WEIGHT = (8, 8, 3, 3)


def _weight(*shape: int) -> relay.Expr:
    return relay.const(np.zeros(shape, "float32"))


CALLS: dict[str, Callable[[relay.Expr], relay.Expr]] = {
    "conv2d": lambda x: relay.nn.conv2d(x, _weight(*WEIGHT)),
    "padded": lambda x: relay.nn.conv2d(x, _weight(*WEIGHT), padding=1),
    "strided": lambda x: relay.nn.conv2d(x, _weight(*WEIGHT), strides=2, out_dtype="int32"),
    "grouped": lambda x: relay.nn.conv2d(x, _weight(8, 1, 3, 3), groups=8),
    "transposed": lambda x: relay.nn.conv2d_transpose(
        x, _weight(*WEIGHT), channels=8, kernel_size=(3, 3), strides=(2, 2)
    ),
    "depth_to_space": lambda x: relay.nn.depth_to_space(x, 2),
    "space_to_depth": lambda x: relay.nn.space_to_depth(x, 2),
    "layout_transform": lambda x: relay.layout_transform(x, "NCHW", "NHWC"),
    "to blocks": lambda x: relay.layout_transform(x, "NCHW", "NCHW4c"),
    "resize2d": lambda x: relay.image.resize2d(x, (3, 9)),
    "upsampling": lambda x: relay.nn.upsampling(x, 2, 3),
}


def _inferred(function: relay.Function) -> relay.Function:
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]


@pytest.mark.parametrize("shape", [IMAGE, (3, 8, 10, 6), (relay.Any(), 8, relay.Any(), 6)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_types_are_those_of_tvm(name: str, shape: tuple[int | relay.Any, ...]) -> None:
    body = CALLS[name](relay.var("x", relay.TensorType(shape, "float32")))
    params = relay.analysis.free_vars(body)
    RELATIONS[body.op.name].known.clear()
    stock, remembered = (_inferred(relay.Function(params, body)) for _ in range(2))
    assert len(RELATIONS[body.op.name].known) == 1
    assert tvm.ir.structural_equal(remembered.ret_type, stock.ret_type)


def test_tvm_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    relation = RELATIONS["nn.conv2d"]
    asked = []

    def stock(*arguments: object) -> bool:
        asked.append(arguments)
        return bool(kept(*arguments))

    kept = relation.stock
    monkeypatch.setattr(relation, "stock", stock)
    x = relay.var("x", shape=(1, 8, 61, 67))  # a shape of no other test
    for _ in range(3):
        _inferred(relay.Function([x], CALLS["conv2d"](x)))
    assert len(asked) == 2  # of the call, and of the type to remember
    _inferred(relay.Function([x], CALLS["padded"](x)))
    assert len(asked) == 4


def test_weight_of_no_type_gets_it_from_the_attributes() -> None:
    x, weight = relay.var("x", shape=IMAGE), relay.var("weight")
    call = relay.nn.conv2d(x, weight, channels=4, kernel_size=(3, 3))
    function = _inferred(relay.Function([x, weight], call))
    assert [int(extent) for extent in function.params[1].checked_type.shape] == [4, 8, 3, 3]


def test_what_tvm_refuses_is_refused_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    x = relay.var("x", shape=IMAGE)
    for _ in range(2):
        with pytest.raises(tvm.error.DiagnosticError):
            _inferred(relay.Function([x], relay.nn.conv2d(x, _weight(8, 5, 3, 3))))
        assert "input channels" in "".join(capfd.readouterr())


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_types, "MAX_KNOWN", 3)
    relation = RELATIONS["nn.conv2d"]
    relation.known.clear()
    for height in range(20, 30):
        x = relay.var("x", shape=(1, 8, height, 9))
        _inferred(relay.Function([x], CALLS["conv2d"](x)))
        assert len(relation.known) <= 3
