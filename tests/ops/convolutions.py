"""Convolutions to test and to time: small ones of all kinds, and large ones."""

from dataclasses import dataclass, field, replace

import numpy as np

from topi_ext.conv2d_nhwc import conv2d_nhwc, reference
from topi_ext.conv2d_nhwc.op import problem_of

from tvm import relay

ARGUMENTS = "data", "weight", "bias", "slope", "residual", "scale"
OF_QUANTIZED = "residual_scale", "out_scale", "out_dtype"  # among the options
LEAKY, CLIP = ("leaky_relu", 0.1), ("clip", -0.5, 0.5)


@dataclass(frozen=True)
class Case:
    size: tuple  # height and width of the data
    channels: int
    filters: int
    kernel: tuple = (3, 3)
    batch: int = 1
    dtype: str = "float16"
    bias: str = "float32"  # its type
    residual: bool = False
    options: dict = field(default_factory=dict)

    def __str__(self):
        size, kernel = ("x".join(map(str, extents)) for extents in (self.size, self.kernel))
        more = [f"{name}={value}" for name, value in self.options.items()] + ["residual"] * self.residual
        name = ",".join([size, f"{self.channels}to{self.filters}", kernel, self.dtype, *more])
        return name.replace(" ", "")

    @property
    def shape(self):
        return self.batch, *self.size, self.channels

    def shapes(self):
        """Of the arguments, by name."""
        of_group = self.channels // self.options.get("groups", 1)
        shapes = {"data": self.shape, "weight": (self.filters, *self.kernel, of_group)}
        if self.bias:
            shapes["bias"] = (self.filters,)
        if self.options.get("activation") == "prelu":
            shapes["slope"] = (self.filters,)
        if self.residual:
            call = self.call(shapes)[1]
            shapes["residual"] = tuple(map(int, relay.transform.InferTypeLocal(call).shape))
        return shapes

    def types(self):
        return {name: self.bias if name == "bias" else self.dtype for name in ARGUMENTS}

    def arrays(self):
        """Arguments by name, of float32 values that the case's type holds exactly; results are about 1."""
        rng = np.random.default_rng(0)
        arrays = {name: rng.standard_normal(shape, "float32") for name, shape in self.shapes().items()}
        arrays["weight"] /= np.float32(np.prod(arrays["weight"].shape[1:]) ** 0.5)
        return {name: rounded(array, self.dtype) for name, array in arrays.items()}

    def tensors(self, torch):
        """The like for a GPU, in the types that they have."""
        torch.manual_seed(0)
        types = {name: getattr(torch, dtype or "float32") for name, dtype in self.types().items()}
        tensors = {name: torch.randn(shape, device="cuda") for name, shape in self.shapes().items()}
        tensors["weight"] /= tensors["weight"][0].numel() ** 0.5
        return {name: tensor.to(types[name]) for name, tensor in tensors.items()}

    def call(self, shapes, cast=False):
        """Variables, and the call of the operator with them; if `cast`, they and the result are float32."""
        types = self.types()
        variables = {
            name: relay.var(name, shape=shape, dtype="float32" if cast else types[name])
            for name, shape in shapes.items()
        }
        inputs = {name: relay.cast(v, types[name]) if cast else v for name, v in variables.items()}
        result = conv2d_nhwc(**inputs, **self.options)
        return list(variables.values()), relay.cast(result, "float32") if cast else result

    def problem(self):
        """What the operator makes of it."""
        call = self.call(self.shapes())[1]
        return problem_of([relay.transform.InferTypeLocal(argument) for argument in call.args], call.attrs)

    def function(self, arrays):
        """For NumPy, which has no bfloat16."""
        return relay.Function(*self.call({name: array.shape for name, array in arrays.items()}, cast=True))

    def expected(self, arrays):
        options = {name: value for name, value in self.options.items() if name != "weight_id"}
        return reference.conv2d_nhwc(**arrays, **options, rounded=False)


@dataclass(frozen=True)
class QuantizedCase(Case):
    """A convolution with int8 among its types. Its arrays are of float32, as those of the others."""

    dtype: str = "int8"
    added: str = "int8"  # the residual's type
    out_dtype: str = "int8"

    def __post_init__(self):
        of_result = {"out_dtype": self.out_dtype, "out_scale": 50.0 if self.out_dtype == "int8" else 1.0}
        of_residual = {"residual_scale": 0.02} if self.residual and self.added == "int8" else {}
        object.__setattr__(self, "options", {**of_result, **of_residual, **self.options})

    def shapes(self):
        own = "added", "out_dtype", "options"
        given = {name: value for name, value in vars(self).items() if name not in own}
        of_float = {name: value for name, value in self.options.items() if name not in OF_QUANTIZED}
        shapes = Case(**{**given, "dtype": self.bias or "float32", "options": of_float}).shapes()
        return {**shapes, "scale": (self.filters,)} if self.dtype == "int8" else shapes

    def types(self):
        floats = {"bias": self.bias, "scale": "float32", "residual": self.added}
        slope = "float32" if self.dtype == "int8" else self.dtype
        return {**super().types(), "slope": slope, **floats}

    def arrays(self):
        """Integers where the type is int8, also the extreme ones; results before `out_scale` are about 1."""
        arrays, types, rng = super().arrays(), self.types(), np.random.default_rng(1)
        for name, array in arrays.items():
            if types[name] == "int8":
                arrays[name] = rng.integers(-128, 128, array.shape).astype("float32")
        if "scale" in arrays:
            deviation = 74**2 * np.prod(arrays["weight"].shape[1:]) ** 0.5  # of the sums
            arrays["scale"] = (rng.uniform(0.5, 1.5, self.filters) / deviation).astype("float32")
        return arrays


def in_float32(case):
    return replace(case, dtype="float32", bias=case.bias and "float32")


def options(**given):
    return {"options": {"padding": 1, **given}}


CASES = [
    Case((20, 20), 16, 16, **options()),
    Case((7, 20), 64, 64, batch=2, **options(activation=LEAKY)),
    Case((9, 18), 64, 64, residual=True, **options(activation="relu", final_activation=CLIP)),
    Case((7, 9), 64, 128, dtype="bfloat16", bias="bfloat16", **options(block_size=2)),
    Case((9, 17), 32, 64, bias="float16", **options(block_size=2, activation="prelu")),
    Case((11, 19), 12, 27, **options(padding=(0, 1, 2, 1), block_size=3)),
    Case((5, 6), 8, 64, kernel=(1, 1), **options(padding=0, block_size=4)),
    Case((9, 18), 256, 256, kernel=(2, 1), **options(padding=0, activation="relu")),
    Case((9, 7), 128, 128, kernel=(1, 1), residual=True, **options(padding=0)),
    Case((17, 19), 3, 64, **options(strides=2)),
    Case((13, 14), 3, 12, kernel=(5, 5), dtype="bfloat16", **options(padding=2)),
    Case((17, 20), 50, 12, kernel=(1, 1), bias=None, **options(padding=0, strides=(2, 1))),
    Case((19, 17), 16, 3, **options(final_activation=CLIP)),
    Case((15, 14), 32, 24, kernel=(5, 5), **options(padding=(4, 4), dilation=2)),
    Case((15, 14), 37, 65, kernel=(3, 2), batch=2, **options(dilation=(1, 2), padding=(3, 0, 0, 2))),
    Case((12, 12), 16, 300, kernel=(2, 2), residual=True, **options(strides=(1, 2))),
    Case((12, 20), 40, 48, kernel=(6, 6), **options(padding=2, strides=2, block_size=4)),
    Case((1, 1), 1, 1, kernel=(1, 1), **options(padding=0)),
]
FEW_PIXELS = [
    Case((1, 1), 1152, 48, kernel=(1, 1), **options(padding=0, activation="silu")),
    Case((1, 1), 5000, 7, kernel=(1, 1), bias="float16", **options(padding=0, activation="sigmoid")),
    Case((1, 1), 50, 301, kernel=(1, 1), batch=2, bias=None, **options(padding=0)),
    Case((1, 2), 37, 65, kernel=(1, 1), dtype="bfloat16", **options(padding=0, activation="prelu")),
    Case((2, 1), 256, 30, kernel=(1, 1), residual=True, **options(padding=0, final_activation="relu")),
    Case((1, 1), 1, 1, kernel=(1, 1), **options(padding=0, activation="gelu", final_activation=CLIP)),
]
DEPTHWISE = [
    Case((11, 13), 24, 24, **options(groups=24, activation="relu")),
    Case((12, 9), 40, 40, kernel=(7, 7), residual=True, **options(groups=40, padding=3)),
    Case((9, 10), 33, 33, kernel=(5, 3), batch=2, bias=None, **options(groups=33, strides=2, dilation=2)),
    Case((9, 10), 16, 16, kernel=(1, 1), **options(groups=16, padding=0, final_activation=CLIP)),
    Case((9, 10), 5, 5, **options(groups=5, activation="prelu", final_activation="silu")),
]
GROUPED = [
    Case((9, 18), 64, 64, **options(groups=16, activation="relu")),
    Case((11, 13), 64, 64, residual=True, **options(groups=8, strides=2, final_activation="relu")),
    Case((9, 10), 64, 64, dtype="bfloat16", bias="bfloat16", **options(groups=4, activation=LEAKY)),
    Case((9, 10), 96, 96, batch=2, bias=None, **options(groups=3)),
    Case((8, 9), 72, 72, residual=True, **options(groups=3, dilation=2)),
    Case((9, 10), 18, 30, kernel=(2, 3), **options(groups=6, strides=(1, 2))),
    Case((6, 7), 35, 15, **options(groups=5, activation="silu")),
    Case((9, 10), 32, 48, **options(groups=4, activation=LEAKY)),
    Case((9, 10), 6, 18, **options(groups=6, activation="prelu")),
    Case((5, 6), 32, 96, **options(groups=4, block_size=2)),
    Case((5, 6), 12, 12, **options(groups=3, block_size=2, activation="prelu")),
    Case((5, 6), 2056, 24, kernel=(1, 1), **options(groups=2, padding=0)),
    Case((5, 7), 40, 80, kernel=(1, 1), residual=True, **options(groups=20, padding=0)),
    Case((5, 9), 32, 272, kernel=(1, 2), **options(groups=2, padding=0)),
    Case((5, 9), 528, 32, **options(groups=2)),
]
ACTIVATED = [
    Case((6, 7), 16, 24, residual=True, **options(activation=name, final_activation=name))
    for name in ("gelu", "gelu_tanh", "hard_swish", "mish", "sigmoid", "silu", "tanh")
]
BIG = [
    Case((720, 1280), 64, 64, **options(activation=LEAKY)),
    Case((720, 1280), 64, 64, residual=True, **options(activation="relu", final_activation="relu")),
    Case((720, 1280), 64, 128, **options(block_size=2)),
    Case((1440, 2560), 32, 64, **options(block_size=2)),
    Case((2880, 5120), 16, 3, **options()),
    Case((1440, 2560), 64, 12, **options(block_size=2)),
    Case((1080, 1920), 64, 256, **options(block_size=2)),
    Case((2160, 3840), 64, 3, **options()),
    Case((720, 1280), 3, 64, **options(activation="prelu")),
    Case((200, 336), 256, 256, **options(activation="relu")),
    Case((200, 336), 256, 256, dtype="bfloat16", batch=2, residual=True, **options()),
    Case((399, 667), 64, 64, batch=3, **options(strides=2)),
    Case((200, 336), 512, 1024, kernel=(1, 1), **options(padding=0)),
    Case((200, 336), 256, 64, kernel=(1, 1), **options(padding=0, activation="relu")),
    Case((200, 336), 64, 256, kernel=(1, 1), residual=True, **options(padding=0, final_activation="relu")),
    Case((200, 336), 128, 64, **options(activation="relu")),
    Case((200, 336), 128, 128, **options(activation="relu")),
    Case((100, 168), 256, 256, **options(activation="relu")),
    Case((50, 84), 512, 512, **options(activation="relu")),
    Case((50, 84), 2048, 256, kernel=(1, 1), **options(padding=0)),
]
BIG_GROUPED = [  # those of ResNeXt-50, 32x4d, for images of 800x800
    Case(
        (size, size), channels, channels, batch=batch, **options(groups=32, strides=stride, activation="relu")
    )
    for batch in (1, 8)
    for channels, size, stride in (
        (128, 200, 1),
        *((256, 200, 2), (256, 100, 1)),
        *((512, 100, 2), (512, 50, 1)),
        *((1024, 50, 2), (1024, 25, 1)),
    )
]
BIG_BOTTLENECKS = [  # those of ResNet-50 for images of 800x1333, whose blocks get narrow and wide again
    *(
        Case((height, width), *channels, kernel=kernel, residual=residual, **options(**more))
        for height, width, narrow in ((200, 336, 64), (100, 168, 128), (50, 84, 256), (25, 42, 512))
        for channels, kernel, residual, more in (
            ((4 * narrow, narrow), (1, 1), False, {"padding": 0, "activation": "relu"}),
            ((narrow, narrow), (3, 3), False, {"activation": "relu"}),
            ((narrow, 4 * narrow), (1, 1), True, {"padding": 0, "final_activation": "relu"}),
        )
    ),
    Case((200, 336), 256, 128, kernel=(1, 1), **options(padding=0, activation="relu")),
    Case((200, 336), 256, 256, kernel=(1, 1), residual=True, **options(padding=0)),  # of its pyramid
]
BIG_STEMS = [  # the first ones of networks: ResNet's, YOLO's and MobileNet's
    *(
        Case(size, 3, 64, kernel=(7, 7), batch=batch, **options(padding=3, strides=2, activation="relu"))
        for size, batch in (((800, 1344), 1), ((800, 1344), 8), ((800, 800), 1))
    ),
    Case((640, 640), 3, 16, **options(strides=2, activation="silu")),
    Case((320, 320), 3, 16, **options(strides=2, activation="relu")),
]
BIG_DEPTHWISE = [
    Case((512, 512), 64, 64, **options(groups=64)),
    Case((128, 128), 256, 256, **options(groups=256, activation="silu")),
    Case((270, 480), 64, 64, kernel=(7, 7), **options(groups=64, padding=3)),
    Case((50, 84), 384, 384, kernel=(7, 7), **options(groups=384, padding=3)),
    Case((1080, 1920), 64, 64, kernel=(9, 9), **options(groups=64, padding=4)),
    Case((112, 112), 96, 96, batch=8, **options(groups=96, strides=2, activation=("clip", 0, 6))),
    Case((56, 56), 72, 72, kernel=(5, 5), batch=8, **options(groups=72, padding=2, activation="hard_swish")),
]


QUANTIZED = [
    QuantizedCase((20, 20), 16, 16, **options(activation="relu")),
    QuantizedCase((7, 20), 64, 64, batch=2, bias=None, **options(activation=LEAKY)),
    QuantizedCase((9, 18), 64, 64, residual=True, **options(activation="relu", final_activation=CLIP)),
    QuantizedCase(
        (9, 7), 128, 136, kernel=(1, 1), residual=True, **options(padding=0, final_activation="relu")
    ),
    QuantizedCase((9, 7), 48, 24, residual=True, added="float16", out_dtype="float16", **options()),
    QuantizedCase((9, 7), 32, 40, bias="float16", out_dtype="float32", **options(strides=2)),
    QuantizedCase((17, 19), 3, 64, **options(strides=2, activation="prelu")),
    QuantizedCase((13, 14), 4, 12, kernel=(5, 5), **options(padding=2, activation="sigmoid")),
    QuantizedCase((12, 9), 30, 65, kernel=(3, 2), batch=2, **options(dilation=(1, 2), padding=(3, 0, 0, 2))),
    QuantizedCase((9, 17), 32, 64, **options(block_size=2, activation="silu")),
    QuantizedCase((5, 6), 16, 27, residual=False, out_dtype="float16", **options(block_size=3)),
    QuantizedCase((9, 18), 256, 256, kernel=(2, 1), **options(padding=0)),
    QuantizedCase((1, 1), 1, 1, kernel=(1, 1), **options(padding=0)),
]
QUANTIZED_DEPTHWISE = [
    QuantizedCase((11, 13), 24, 24, **options(groups=24, activation="relu")),
    QuantizedCase(
        (9, 10), 33, 33, kernel=(5, 3), batch=2, residual=True, **options(groups=33, strides=2, padding=4)
    ),
    QuantizedCase((9, 10), 16, 16, out_dtype="float16", **options(groups=16, activation="prelu")),
]
QUANTIZED_GROUPS = [
    QuantizedCase((9, 18), 64, 64, **options(groups=16, activation="relu")),
    QuantizedCase((11, 13), 64, 64, residual=True, **options(groups=8, strides=2, final_activation="relu")),
    QuantizedCase((9, 10), 64, 64, out_dtype="float16", **options(groups=4, activation=LEAKY)),
    QuantizedCase((9, 10), 96, 96, batch=2, **options(groups=3)),
    QuantizedCase((9, 10), 32, 48, **options(groups=4, activation=LEAKY)),
    QuantizedCase((9, 10), 18, 30, kernel=(2, 3), residual=True, **options(groups=6, strides=(1, 2))),
    QuantizedCase((5, 9), 1056, 32, **options(groups=2)),
]
QUANTIZING = [  # float data
    QuantizedCase((9, 18), 32, 40, dtype="float16", **options(activation="relu")),
    QuantizedCase((9, 7), 3, 16, dtype="float16", residual=True, **options(strides=1)),
    QuantizedCase((9, 10), 16, 16, dtype="float16", **options(groups=16)),
    QuantizedCase((9, 10), 16, 16, dtype="float16", **options(groups=4)),
]


def rounded(array, dtype):
    """To what the type holds exactly."""
    if dtype == "bfloat16":
        return (array.view("uint32") & np.uint32(0xFFFF0000)).view("float32")
    return array.astype(dtype).astype("float32")
