"""TVM's operators as `topi_ext.corrections_of_relax` has them: of NaN, infinities, and what none divides."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import topi_ext  # noqa: F401
from tests.relax.emulated_cuda import emulate_cuda
from tests.relax.modules import CUDA, LLVM, compiled, module_of, run, types_of

import tvm
from tvm import relax

op = relax.op
INF, NAN = np.inf, np.nan
NUMBERS = np.float32([NAN, 1, -1, 0, -0.0, INF, -INF, 2.5, NAN, -3, -0.5, 7, NAN, -INF, 3])
OTHERS = np.roll(NUMBERS, 4)
ROWS = np.float32(
    [
        NUMBERS[3:10],
        [-INF] * 7,
        [INF] * 7,
        [NAN] * 7,
        [1, 1, 1, NAN, 2, NAN, 2],
        [NAN, 2, 2, 1, 1, 1, 1],
        [3, 5, 1, 5, 1, -4, -4],
    ]
)
FLOATS = "float16", "float32", "float64"


def found(build, *arrays, target=LLVM, device=None):
    """Of one call."""
    module = module_of({"main": (lambda parameters: build(*parameters), types_of(arrays))})
    return run(compiled(module, target), arrays, device=device)


def assert_equal(mine, theirs):
    theirs = np.asarray(theirs)
    assert mine.dtype == theirs.dtype
    np.testing.assert_array_equal(mine, theirs)


ELEMENTWISE = {
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "clip": (lambda x: op.clip(x, -1, 2), lambda x: np.clip(x, -1, 2)),
    "clip_below": (lambda x: op.clip(x, 0, INF), lambda x: np.maximum(x, 0)),
    "clip_crossed": (lambda x: op.clip(x, 2, -1), lambda x: np.minimum(np.maximum(x, 2), -1)),
    "zero": (lambda x: x * relax.const(0, x.ty.dtype), lambda x: x * 0),
    "zero_first": (lambda x: relax.const(0, x.ty.dtype) / x, lambda x: x.dtype.type(0) / x),
    "by_zero": (lambda x: x / relax.const(0, x.ty.dtype), lambda x: x / x.dtype.type(0)),
    "differs": (lambda x: op.not_equal(x, x), lambda x: x != x),
    "maximum_of_number": (lambda x: op.maximum(relax.const(1, x.ty.dtype), x), lambda x: np.maximum(x, 1)),
}
OF_TWO = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "not_equal": np.not_equal,
    "equal": np.equal,
    "less": np.less,
}


@pytest.mark.parametrize("dtype", FLOATS)
@np.errstate(all="ignore")
def test_elements(dtype):
    x, y = NUMBERS.astype(dtype), OTHERS.astype(dtype)[:, None]

    def of_all(x, y):
        one = [build(x) for build, _ in ELEMENTWISE.values()]
        return relax.Tuple([*one, *(getattr(op, name)(x, y) for name in OF_TWO)])

    expected = [oracle(x) for _, oracle in ELEMENTWISE.values()]
    expected += [oracle(x, y) for oracle in OF_TWO.values()]
    for mine, theirs in zip(found(of_all, x, y), expected, strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors_of_one_number(dtype):
    numbers = (INF, -INF, NAN, 0.5)

    def filled(x):
        return relax.Tuple(
            [op.full([2, 3], relax.const(each, dtype)) for each in numbers]
            + [op.full_like(x, relax.const(each, dtype)) for each in numbers]
        )

    mine = found(filled, np.zeros((2, 3), dtype))
    for one, number in zip(mine, numbers * 2, strict=True):
        assert_equal(one, np.full((2, 3), number, dtype))


@pytest.mark.parametrize("exponent", [0.3, -2])
def test_powers_of_bfloat16(exponent):
    numbers = torch.tensor([0.1, 0.5, 1, 3, 7.3, 100]).bfloat16()
    (mine,) = found(
        lambda x: op.astype(op.power(op.astype(x, "bfloat16"), relax.const(exponent, "bfloat16")), "float32"),
        numbers.float().numpy(),
    )
    assert_equal(mine, (numbers**exponent).float())


def test_instances_of_bfloat16_are_normalized():
    pixels = np.random.default_rng(5).standard_normal((2, 3, 5, 4)).astype("float32")

    def normalized(x):
        scale, bias = op.ones([3], "bfloat16"), op.zeros([3], "bfloat16")
        return op.astype(op.nn.instance_norm(op.astype(x, "bfloat16"), scale, bias, 1, [2, 3]), "float32")

    expected = F.instance_norm(torch.from_numpy(pixels).bfloat16()).float()
    np.testing.assert_allclose(found(normalized, pixels)[0], expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("groups", [1, 3])
def test_normalizations_of_what_is_far_from_0(groups):
    pixels = np.random.default_rng(6).standard_normal((2, 3, 5, 4)).astype("float32") + 1000

    def normalized(x):
        scales = op.ones([3], "float32"), op.zeros([3], "float32")
        if groups == 3:
            return op.nn.instance_norm(x, *scales, 1, [2, 3])
        return op.nn.group_norm(x, *scales, groups, 1, [2, 3])

    expected = F.group_norm(torch.from_numpy(pixels).double(), groups)
    np.testing.assert_allclose(found(normalized, pixels)[0], expected, atol=1e-4)


def test_indices_out_of_range_are_of_the_first_or_the_last_element(capfd):
    x, at = np.arange(6, dtype="float32").reshape(2, 3), np.array([[-7, 2], [0, 9]])
    (rows,) = found(lambda x, at: op.take(x, at, 1), x, at)
    assert_equal(rows, x[:, at.clip(0, 2)])
    assert "segfaults" not in "".join(capfd.readouterr())


def test_a_negated_comparison_of_nan_is_true():
    (mine,) = found(lambda x: op.logical_not(op.greater(x, relax.const(0.0))), NUMBERS)
    assert_equal(mine, ~(NUMBERS > 0))


# --- divisions


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("name", ["divide", "floor_divide", "floor_mod", "mod"])
@np.errstate(all="ignore")
def test_integers_are_divided_by_whatever_there_is(name, dtype):
    """NumPy has quotients that are rounded down only: towards 0, remainders have the sign of the dividend."""
    least, greatest = np.iinfo(dtype).min, np.iinfo(dtype).max
    numbers = np.array([least, least + 1, greatest, 0, 1, 7, 100], dtype)
    if least:
        numbers = np.concatenate([numbers, np.array([-1, -2, -7], dtype)])
    x, y = (each.reshape(-1) for each in np.meshgrid(numbers, numbers))
    rest = np.fmod(x, y)
    expected = {
        "divide": np.where(y == 0, 0, np.where((x == least) & (y == y.dtype.type(-1)), x, (x - rest) // y))
        if least
        else x // y,
        "floor_divide": x // y,
        "floor_mod": x % y,
        "mod": rest,
    }
    (mine,) = found(getattr(op, name), x, y)
    assert_equal(mine, expected[name].astype(dtype))


@pytest.mark.parametrize("divisor", [0, -1, 1, 3, -3])
@np.errstate(all="ignore")
def test_integers_are_divided_by_a_number(divisor):
    x = np.int32([-(2**31), 2**31 - 1, 0, 7, -7])
    quotient, rest = found(
        lambda x: relax.Tuple([getattr(op, name)(x, relax.const(divisor, "int32")) for name in ROUNDED_DOWN]),
        x,
    )
    assert_equal(quotient, x // np.int32(divisor))
    assert_equal(rest, x % np.int32(divisor))


ROUNDED_DOWN = "floor_divide", "floor_mod"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_floats_are_exact(dtype):
    numbers = [1, -1, 0.3, -0.3, 5, 7.25, 1e20, INF, -INF, NAN, 0]
    x, y = (each.reshape(-1) for each in np.meshgrid(numbers, [0.1, -0.1, 3, -7, INF, -INF, NAN, 0]))
    x, y = x.astype(dtype), y.astype(dtype)
    quotient, rest = found(lambda x, y: relax.Tuple([getattr(op, name)(x, y) for name in ROUNDED_DOWN]), x, y)
    assert_equal(quotient, torch.floor_divide(torch.from_numpy(x), torch.from_numpy(y)))
    assert_equal(rest, torch.remainder(torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_quotients_of_any_size_are_exact(dtype):
    """Next to whole multiples, where a rounded quotient is one too high, and on either side of 2**20."""
    random = np.random.default_rng(3)
    y = (random.uniform(0.1, 9, 4000) * random.choice([1, -1, 1e-30, 1e25], 4000)).astype(dtype)
    times = np.floor(2.0 ** random.uniform(-2, 40, 4000)).astype(dtype) * random.choice([1, -1], 4000)
    x = np.nextafter(y * times.astype(dtype), random.choice([-INF, 0, INF], 4000).astype(dtype))
    x[:1000] = (y * times.astype(dtype))[:1000]
    names = (*ROUNDED_DOWN, "mod")
    quotient, rest, truncated = found(
        lambda x, y: relax.Tuple([getattr(op, name)(x, y) for name in names]), x, y
    )
    of_torch = torch.from_numpy(x), torch.from_numpy(y)
    assert_equal(quotient, torch.floor_divide(*of_torch))
    for mine, theirs in ((rest, torch.remainder(*of_torch)), (truncated, torch.fmod(*of_torch))):
        assert_equal(mine, theirs)
        np.testing.assert_array_equal(np.signbit(mine), theirs.signbit())


# --- windows


def image(*shape, dtype="float32"):
    pixels = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    pixels[0, 0, 2], pixels[0, 1, 1:6], pixels[0, 1, -1] = NAN, -INF, INF
    return pixels


WINDOWS = {  # the extents of an image, and arguments of torch
    "plain": ((9, 8), {"kernel_size": 2, "stride": 2}),
    "padded": ((9, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "uneven": ((9, 8), {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0), "dilation": (2, 1)}),
    "ceil": ((9, 8), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "line": ((17,), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "volume": ((7, 6, 5), {"kernel_size": 3, "stride": 2, "padding": 1}),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_last", [False, True], ids=["channels first", "channels last"])
def test_maxima_of_windows(name, dtype, is_last):
    extents, options = WINDOWS[name]
    rank = len(extents)
    pixels = image(2, 3, *extents, dtype=dtype)
    expected = getattr(F, f"max_pool{rank}d")(torch.from_numpy(pixels), **options).numpy()
    layout = "NC" + "DHW"[-rank:]
    options = {
        "pool_size": options["kernel_size"],
        "strides": options["stride"],
        **{key: options[key] for key in ("padding", "dilation", "ceil_mode") if key in options},
        "layout": f"N{layout[2:]}C" if is_last else layout,
    }
    given = np.moveaxis(pixels, 1, -1) if is_last else pixels
    (mine,) = found(lambda x: getattr(op.nn, f"max_pool{rank}d")(x, **options), np.ascontiguousarray(given))
    assert_equal(np.moveaxis(mine, -1, 1) if is_last else mine, expected)


# --- rows


REDUCTIONS = {
    "max": lambda x: relax.Tuple([op.max(x, 1), op.max(x, [0], True), op.max(x)]),
    "min": lambda x: relax.Tuple([op.min(x, 1), op.min(x, [0], True), op.min(x)]),
    "argmax": lambda x: relax.Tuple([op.argmax(x, 1), op.argmax(x, 0, True), op.argmax(x)]),
    "argmin": lambda x: relax.Tuple([op.argmin(x, 1), op.argmin(x, 0, True), op.argmin(x)]),
}


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("name", REDUCTIONS)
@np.errstate(all="ignore")
def test_reductions(name, dtype):
    rows = np.nan_to_num(ROWS, nan=-9).astype(dtype) if dtype == "int32" else ROWS.astype(dtype)
    oracle = getattr(np, name)
    expected = [oracle(rows, 1), oracle(rows, 0, keepdims=True), oracle(rows)]
    for mine, theirs in zip(found(REDUCTIONS[name], rows), expected, strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [*FLOATS, "bool", "int8", "uint8", "int16", "int32", "int64"])
def test_sorts(dtype):
    """NaN is greatest, and what is equal keeps its order."""
    rows = ROWS if dtype in FLOATS else np.random.default_rng(1).integers(-300, 300, (3, 7))
    rows = torch.from_numpy(rows.astype(dtype))

    def sorts(x):
        best = relax.op.topk(x, 3, 1, dtype="int64")
        return relax.Tuple(
            [
                op.sort(x, 1),
                op.argsort(x, 0, dtype="int64"),
                op.argsort(x, 1, True, "int64"),
                best[0],
                best[1],
            ]
        )

    ascending, descending = (torch.sort(rows, dim=1, stable=True, descending=each) for each in (False, True))
    columns = torch.sort(rows, dim=0, stable=True)[1]
    best = [each[:, :3] for each in descending]
    mine = found(sorts, rows.numpy())
    for one, theirs in zip(mine, [ascending[0], columns, descending[1], *best], strict=True):
        assert_equal(one, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_long_rows(dtype, largest):
    """By the heap of `sort.heap`."""
    rows = np.random.default_rng(4).integers(-9999, 9999, (2, 20_000)).astype(dtype)
    if dtype in FLOATS:
        rows[:, [5, 77]], rows[:, 13_000] = NAN, -INF
    order = torch.sort(torch.from_numpy(rows), dim=1, stable=True, descending=largest)
    values, indices = found(lambda x: op.topk(x, 300, 1, largest=largest, dtype="int64"), rows)
    assert_equal(values, order[0][:, :300])
    assert_equal(indices, order[1][:, :300])


# --- CUDA


ON_CUDA = {
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "clip": (lambda x: op.clip(x, -1, 2), lambda x: np.clip(x, -1, 2)),
    "maximum": (lambda x: op.maximum(x, op.permute_dims(x)), lambda x: np.maximum(x, x.T)),
    "minimum": (lambda x: op.minimum(x, op.permute_dims(x)), lambda x: np.minimum(x, x.T)),
    "not_equal": (lambda x: op.not_equal(x, op.permute_dims(x)), lambda x: x != x.T),
    "zero": (lambda x: op.multiply(x, relax.const(0.0)), lambda x: x * np.float32(0)),
    **{
        f"{name}_{axis}": (
            lambda x, name=name, axis=axis: getattr(op, name)(x, axis),
            lambda x, name=name, axis=axis: getattr(np, name)(x, axis),
        )
        for name in ("max", "min", "argmax", "argmin")
        for axis in (0, 1, None)
    },
    "sort": (lambda x: op.sort(x, 1), lambda x: np.sort(x, 1)),
    "argsort": (
        lambda x: op.argsort(x, 0, True, "int64"),
        lambda x: torch.sort(torch.from_numpy(x), dim=0, stable=True, descending=True)[1],
    ),
    "topk": (
        lambda x: op.topk(x, 3, 1, "values"),
        lambda x: torch.sort(torch.from_numpy(x), dim=1, descending=True)[0][:, :3],
    ),
    "topk_indices": (
        lambda x: op.topk(x, 3, 1, dtype="int64")[1],
        lambda x: torch.sort(torch.from_numpy(x), dim=1, stable=True, descending=True)[1][:, :3],
    ),
    "floor_mod": (lambda x: op.floor_mod(x, relax.const(0.7)), lambda x: np.mod(x, np.float32(0.7))),
    "floor_divide": (
        lambda x: op.floor_divide(op.astype(op.isnan(x), "int32"), op.astype(op.isinf(x), "int32")),
        lambda x: np.isnan(x).astype("int32") // np.isinf(x).astype("int32"),
    ),
}


@pytest.mark.parametrize("name", ON_CUDA)
@np.errstate(all="ignore")
def test_on_the_emulated_device(name):
    build, oracle = ON_CUDA[name]
    with emulate_cuda():
        (mine,) = found(build, ROWS, target=CUDA, device=tvm.cuda())
    assert_equal(mine, oracle(ROWS))


def test_maxima_of_windows_on_the_emulated_device():
    pixels = image(1, 2, 9, 8)
    expected = F.max_pool2d(torch.from_numpy(pixels), 3, 2, 1)
    with emulate_cuda():
        (mine,) = found(lambda x: op.nn.max_pool2d(x, 3, 2, 1), pixels, target=CUDA, device=tvm.cuda())
    assert_equal(mine, expected)
