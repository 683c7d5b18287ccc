"""Converters of neural-network operators: the numbers of torch, or a refusal."""

import pytest
import torch
from torch.nn import functional as F
from torchvision import ops

from frontends import ImportFailure, from_pytorch
from tests.frontends.torch_models import Returning, assert_all

# --- pooling


def test_average_pooling_divides_by_what_it_counts():
    assert_all(
        [
            lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=2),
            lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
            lambda x: F.avg_pool2d(x, (4, 3), (3, 2), 1, ceil_mode=True),
            lambda x: F.avg_pool2d(x, (4, 3), (3, 2), 1, ceil_mode=True, count_include_pad=False),
            lambda x: F.avg_pool3d(x[None], 2, 2, 1, ceil_mode=True, divisor_override=3),
            lambda x: F.avg_pool2d(x[0], 3, 2),
            lambda x: F.lp_pool2d(x.abs(), 2, 3, 2),
        ],
        torch.randn(2, 3, 8, 9),
    )


def test_average_pooling_of_integers():
    assert_all([lambda x: F.avg_pool2d(x, 3, 2, 1)], torch.randint(-99, 99, (1, 2, 8, 9)))


def test_maximum_pooling_and_its_indices():
    assert_all(
        [
            lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True),
            lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True),
            lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, return_indices=True),
            lambda x: F.max_pool2d(x[0], (2, 3), ceil_mode=True, return_indices=True),
            lambda x: F.max_pool3d(x, 2, 2, 1, ceil_mode=True),
            lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
            lambda x: F.adaptive_max_pool1d(x[0], 4, return_indices=True),
            lambda x: F.adaptive_avg_pool2d(x[0], (3, 5)),
            lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(8, 9)),
        ],
        torch.randn(2, 3, 8, 9),
    )


def test_activations_and_choices_of_nan_and_infinities():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.5, -1.5, 1e30, -1e30] * 5)
    assert_all(
        [
            F.relu,
            lambda x: F.relu(x).clamp(max=6.0),
            lambda x: F.hardtanh(x, -1.0, torch.nan),
            *(F.elu, F.selu, F.celu, F.leaky_relu, F.relu6, F.hardswish, F.softplus, F.silu, F.mish),
            torch.nan_to_num,
            lambda x: ~(x > 0) | (x == 1.5),
            lambda x: x.reshape(5, 9).all(1),
            lambda x: torch.sort(x.reshape(9, 5), dim=0, stable=True),
        ],
        x,
    )


def test_indices_of_maxima_among_nan():
    """The last NaN of a window, as torch has it, and the first of minus infinities."""
    x = torch.randn(1, 2, 8, 9)
    x[torch.rand(x.shape) < 0.15] = torch.nan
    x[:, :, :4, :4] = -torch.inf
    assert_all(
        [
            lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
            lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        ],
        x,
    )


def test_windows_as_columns():
    assert_all(
        [
            lambda x: F.unfold(x, (3, 2), dilation=2, padding=1, stride=(2, 1)),
            lambda x: F.unfold(x[0], 2),
            lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2), (8, 9), 3, padding=1, stride=2),
        ],
        torch.randn(2, 3, 8, 9),
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding(mode):
    assert_all(
        [
            lambda x: F.pad(x, (2, 1, 0, 3), mode),
            lambda x: F.pad(x, (-1, 2, 1, -2), mode),
            lambda x: F.pad(x[0], (1, 2), mode),
        ],
        torch.randn(2, 3, 5, 6),
    )


def test_padding_by_what_is_known_at_run_time():
    def padded(x, before, after):
        return F.pad(x[x > 0], (before, after - x[x > 0].shape[0]), value=0.5)

    assert_all([lambda x: padded(x, 1, 30), lambda x: padded(x, -1, 3)], torch.randn(2, 5))


# --- convolutions


def test_convolutions_of_the_same_size():
    weight = torch.randn(4, 3, 4, 3), torch.randn(6, 1, 2, 2), torch.randn(4, 1, 2, 3, 2)
    assert_all(
        [
            lambda x: F.conv2d(x, weight[0], padding="same", dilation=(1, 2)),
            lambda x: F.conv2d(x, weight[0], padding="valid"),
            lambda x: F.conv2d(x[0], weight[1], padding="same", groups=3),
            lambda x: F.conv3d(x[:, :2], weight[2], padding="same", groups=2),
        ],
        torch.randn(2, 3, 8, 9),
    )


@pytest.mark.parametrize("above", [-9.0, 0.0])
def test_convolutions_by_filters_of_objects(above):
    """One for each object, as in SOLO, or a group of them, as in CondInst; how many is known at run time."""

    def filters(scores, kernels):
        return kernels[scores > above]

    def groups(image, of_objects):
        count = of_objects.shape[0]
        image = image.expand(count, -1, -1, -1).reshape(1, -1, *image.shape[2:])
        hidden, last = of_objects.split([12, 4], 1)
        image = F.conv2d(
            image, hidden.reshape(count * 3, 4, 1, 1), of_objects[:, :3].reshape(-1), groups=count
        )
        return F.conv2d(image.relu(), last[:, :3].reshape(count, 3, 1, 1), groups=count)

    assert_all(
        [
            lambda image, scores, kernels: F.conv2d(image, filters(scores, kernels)[:, :4, None, None]),
            lambda image, scores, kernels: groups(image, filters(scores, kernels)),
        ],
        torch.randn(1, 4, 5, 6),
        torch.tensor([0.5, -0.1, 0.2, 1.0]),
        torch.randn(4, 16),
    )


def test_transposed_convolutions():
    weight, grouped = torch.randn(4, 3, 3, 2), torch.randn(4, 3, 3)
    assert_all(
        [
            lambda x: F.conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1),
            lambda x: F.conv_transpose2d(x, weight, stride=(3, 2), dilation=(2, 3), padding=(1, 4)),
            lambda x: F.conv_transpose2d(x, weight, stride=2, dilation=2, groups=2, output_padding=1),
            lambda x: F.conv_transpose2d(x[0], weight, groups=4),
            lambda x: F.conv_transpose1d(x[0, :, 0], grouped, stride=2, dilation=3, groups=2),
        ],
        torch.randn(2, 4, 5, 6),
    )


def test_shuffles():
    assert_all(
        [
            lambda x: F.channel_shuffle(x, 2),
            lambda x: F.pixel_shuffle(x[0], 2),
            lambda x: F.pixel_unshuffle(x[None], 2),
        ],
        torch.randn(2, 8, 4, 6),
    )


# --- normalization


def test_normalization_with_and_without_weight():
    weight, bias = torch.randn(6), torch.randn(6)
    of_images = torch.randn(5, 7)
    mean, variance = torch.randn(6), torch.rand(6) + 0.5
    assert_all(
        [
            lambda x: F.layer_norm(x, (7,)),
            lambda x: F.layer_norm(x, (5, 7), of_images),
            lambda x: F.group_norm(x, 3),
            lambda x: F.group_norm(x, 2, weight),
            lambda x: F.instance_norm(x, mean, variance, weight, None, use_input_stats=False),
            lambda x: F.instance_norm(x, weight=weight),
            lambda x: F.batch_norm(x, mean.clone(), variance.clone(), weight, bias, training=True),
            lambda x: F.batch_norm(x, None, None, training=True),
            lambda x: F.batch_norm(x, mean, variance, None, bias),
            lambda x: F.rms_norm(x, (5, 7), of_images),
            lambda x: F.local_response_norm(x, 3),
            lambda x: F.normalize(x, dim=1),
            lambda x: F.cosine_similarity(x, x[:1] + 1, dim=-1),
            lambda x: F.pairwise_distance(x, x[:1] + 1, p=3.0, keepdim=True),
            lambda x: F.pairwise_distance(x, x[:1] + 1, p=float("-inf")),
        ],
        torch.randn(2, 6, 5, 7),
    )


def test_any_number_of_images():
    """TVM's own group norm ended the process, and its resizing along one or three axes was refused."""
    torch.manual_seed(0)
    weight, bias, x = torch.rand(4), torch.rand(4), torch.rand(3, 4, 5, 6)
    x[:, 0, 0, 0] = torch.tensor([0.9, 0.1, 0.8])

    def images(x):
        return x[x[:, 0, 0, 0] > 0.5]

    assert_all(
        [
            lambda x: F.group_norm(images(x), 2, weight, bias),
            lambda x: F.group_norm(images(x).half(), 2).float(),
            lambda x: F.group_norm(x[:, :, x[0, 1, :, 0] > 0.5], 2, weight, bias),
            lambda x: F.interpolate(images(x).flatten(2), 7),
            lambda x: F.interpolate(images(x)[:, :, None], (2, 3, 4), mode="trilinear"),
        ],
        x,
        atol=1e-3,
    )


# --- activations


ACTIVATIONS = [
    lambda x: F.gelu(x, approximate="tanh"),
    F.gelu,
    F.mish,
    lambda x: F.celu(x, 0.7),
    F.selu,
    lambda x: F.elu(x, 0.7),
    F.hardshrink,
    lambda x: F.softshrink(x, 0.3),
    lambda x: F.hardtanh(x, -0.5, 2.0),
    F.relu6,
    lambda x: F.threshold(x, 0.1, -3.0),
    F.logsigmoid,
    F.softsign,
    F.tanhshrink,
    lambda x: F.rrelu(x),
    lambda x: F.glu(x, 1),
    lambda x: F.softmin(x, 1),
    lambda x: F.softmax(x, 1, dtype=torch.float32),
    lambda x: F.log_softmax(x, 1),
    lambda x: F.softplus(x, 2.0, 0.5),
    F.silu,
    F.hardswish,
    F.hardsigmoid,
    lambda x: F.leaky_relu(x, 0.2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_activations(dtype):
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}
    assert_all(ACTIVATIONS, (torch.randn(2, 4, 5) * 4).to(dtype), **tolerance)


def test_prelu_of_any_rank():
    one, four = torch.tensor([0.2]), torch.randn(4)
    assert_all(
        [
            lambda x: F.prelu(x, four),
            lambda x: F.prelu(x, one),
            lambda x: F.prelu(x[0, 0], one),
            lambda x: F.prelu(x[0, 0, 0], one),
        ],
        torch.randn(2, 4, 5),
    )


# --- attention, dense layers, embeddings


def test_attention():
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 4)
    mask = torch.randn(5, 6)
    attend = F.scaled_dot_product_attention
    assert_all(
        [
            lambda q, k, v, m: attend(q, k, v),
            lambda q, k, v, m: attend(q, k, v, m > -1),
            lambda q, k, v, m: attend(q, k, v, m),
            lambda q, k, v, m: attend(q, k, v, is_causal=True, scale=0.3),
            lambda q, k, v, m: attend(q, k[:1], v[:, :1]),
            lambda q, k, v, m: attend(q[0, 0], k[0, 0], v[0, 0]),
        ],
        *(query, key, value, mask),
    )


def test_dense_layers_of_any_rank():
    weight, bias, square = torch.randn(4, 6), torch.randn(4), torch.randn(3, 6, 6)
    assert_all(
        [
            lambda x: F.linear(x[0, 0], weight, bias),
            lambda x: F.linear(x, weight, bias),
            lambda x: F.linear(x, weight[0]),
            lambda x: F.bilinear(x, x + 1, square, bias[:3]),
        ],
        torch.randn(2, 5, 6),
    )


def test_embeddings():
    weight = torch.randn(10, 4)
    assert_all(
        [
            lambda i: F.embedding(i, weight, padding_idx=2),
            lambda i: F.one_hot(i, 10),
            lambda i: F.one_hot(i),
            lambda i: F.one_hot(i[:1]),
        ],
        torch.tensor([[1, 2], [9, 0]]),
    )


# --- losses


def test_losses():
    classes, weight = torch.tensor([1, 0, 3, -100]), torch.rand(5)
    assert_all(
        [
            lambda x, y: F.mse_loss(x, y),
            lambda x, y: F.l1_loss(x, y, reduction="sum"),
            lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
            lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7),
            lambda x, y: F.cross_entropy(x, classes, weight, label_smoothing=0.1),
            lambda x, y: F.cross_entropy(x, y.softmax(1), weight, reduction="none"),
            lambda x, y: F.nll_loss(x, classes, reduction="none"),
            lambda x, y: F.nll_loss(x[0], classes[0]),
            lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=weight),
            lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
            lambda x, y: F.kl_div(x, y.softmax(1), reduction="batchmean"),
            lambda x, y: F.hinge_embedding_loss(x, y.sign()),
        ],
        *(torch.randn(4, 5), torch.randn(4, 5)),
    )


# --- sampling, and torchvision


@pytest.mark.parametrize("align_corners", [False, True])
def test_sampling_by_a_grid(align_corners):
    theta = torch.tensor([[[0.8, -0.3, 0.1], [0.4, 1.1, -0.2]]])
    options = [
        {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
    ]
    grid = [lambda x, t: F.affine_grid(t, (1, 2, 4, 5), align_corners)]
    assert_all(
        grid + [lambda x, t, kw=kw: F.grid_sample(x, grid[0](x, t), **kw) for kw in options],
        *(torch.randn(1, 2, 6, 7), theta),
    )


REGIONS = torch.tensor([[0, 1.0, 2, 9, 11], [1, 0, 0, 16, 12], [1, -4, -3, 5, 5], [0, 3.2, 3.3, 3.9, 4.1]])


def test_pooling_of_regions():
    assert_all(
        [
            lambda x, r: ops.roi_align(x, r, 3, 0.7, 2, aligned=True),
            lambda x, r: ops.roi_align(x, r, (2, 3), 1.0, -1, aligned=True),
            lambda x, r: ops.roi_align(x, r, (2, 3), 0.5, 0),
            lambda x, r: ops.roi_pool(x, r, (2, 3), 0.7),
            lambda x, r: ops.ps_roi_align(x, r, 2, 0.7, 2),
            lambda x, r: ops.ps_roi_pool(x, r, (1, 2), 0.7),
        ],
        *(torch.randn(2, 4, 13, 17), REGIONS),
    )


@pytest.mark.parametrize(("groups", "offset_groups", "stride", "dilation"), [(1, 1, 1, 1), (2, 2, 2, 2)])
def test_deformable_convolution(groups, offset_groups, stride, dilation):
    options = {"stride": stride, "padding": 1, "dilation": dilation}
    rows, columns = ((size + 1 - 2 * dilation) // stride + 1 for size in (9, 8))
    weight, bias = torch.randn(6, 4 // groups, 3, 3), torch.randn(6)
    assert_all(
        [
            lambda x, o, m: ops.deform_conv2d(x, o, weight, bias, mask=m, **options),
            lambda x, o, m: ops.deform_conv2d(x, o, weight, **options),
        ],
        torch.randn(2, 4, 9, 8),
        torch.randn(2, 18 * offset_groups, rows, columns) * 3,
        torch.rand(2, 9 * offset_groups, rows, columns),
    )


def test_nms_keeps_what_torchvision_keeps():
    """At thresholds of 0 and less too, at an IoU equal to one, and for scores next to each other."""
    corner, size = torch.randint(0, 30, (40, 2)), torch.randint(-2, 25, (40, 2))
    boxes = torch.cat([corner, corner + size], 1).float()
    scores = 1e6 + torch.randperm(40) / 16
    same = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1], [0, 1, 2, 2]]), torch.tensor([1e-8, 2e-8, -3e-8])
    thresholds = 0.5, 0.0, -0.5, 1.0
    assert_all(
        [lambda b, s, _, __, iou=iou: ops.nms(b, s, iou) for iou in thresholds]
        + [lambda _, __, b, s, iou=iou: ops.nms(b, s, iou) for iou in thresholds],
        boxes,
        scores,
        *same,
    )


# --- refusals


@pytest.mark.parametrize(
    ("function", "tensor", "reason"),
    [
        (lambda x: F.conv2d(x[:1], x[x[:, 0, 0, 0] > 0]), torch.rand(3, 2, 3, 3), "number of its filters"),
        (lambda x: ops.nms(x[:, :4], x[:, 4], 0.5), torch.rand(3, 5).double(), "float32"),
        (lambda x: F.conv2d(x, x), torch.ones(1, 1, 3, 3, dtype=torch.int64), "int64"),
    ],
)
def test_refusals_say_why(function, tensor, reason):
    with pytest.raises(ImportFailure, match=reason) as failure:
        from_pytorch(Returning(function), tensor)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_activations_of_integers(dtype):
    """Those of uint8 are no quantized tensors."""
    x = torch.tensor([torch.iinfo(dtype).min, 0, 1, 5, 7, torch.iinfo(dtype).max], dtype=dtype)
    x = x if dtype is torch.uint8 else torch.cat([x, x.new_tensor([-7, -1])])
    assert_all(
        [
            torch.relu,
            F.relu6,
            lambda x: F.hardtanh(x, 1, 5),
            lambda x: x.clamp(1, 5),
            lambda x: x.clamp(min=2),
            lambda x: x.clamp(0.5, 5.5),
            lambda x: F.threshold(x, 2, 1),
        ],
        x,
    )
