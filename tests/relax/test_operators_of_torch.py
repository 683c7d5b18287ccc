"""Operators of torch in Relax with arguments that are not their defaults, beside what torch computes.

They are one model, since it takes half a second to import one.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision

import frontends.relax
from frontends.relax import ImportFailure
from tests.relax.compared_with_torch import SEEDED, assert_as_in_torch, put, random, results_of
from tests.relax.modules import QUICK, Of, compiled, run

X, Y = random(2, 4, 7, 9), random(2, 4, 7, 9)
ROWS, MATRIX = random(2, 4, 9), random(3, 5)
HALF, DOUBLE = MATRIX.half(), MATRIX.double()
INTEGERS, OTHERS = torch.tensor([[3, -4, 7], [5, 1, -2]]), torch.tensor([[2, 3, -2], [-5, 4, 1]])
MASK = INTEGERS > 1
GRID = torch.rand(2, 5, 6, 2, generator=SEEDED) * 2.4 - 1.2
EIGHTHS = (GRID * 8).round() / 8  # whose pixels torch finds in half precision too
WEIGHT, BIAS = random(6, 4, 3, 3), random(6)
PLACES = torch.tensor([[0, 1], [4, 2], [3, 3]])
QUERIES = random(2, 2, 5, 8)
VOLUME, OF_VOLUMES = random(2, 4, 5, 6, 7), random(6, 4, 3, 2, 3)
INFINITE = torch.tensor(
    [[float("nan"), 1, -1, 0, float("inf"), float("-inf")], [2, float("nan"), 3, -2, 0, 5]]
)


def in_half(x):
    """Operators of which TVM has no code in half precision, or returns float32."""
    x, half = x.half(), (WEIGHT[0, :, 0, 0].half(), BIAS[:4].half())
    normal = F.batch_norm(x, half[0], half[1] ** 2, *half)
    small = x.tanh() * 0.9
    return [
        *(normal, F.group_norm(normal, 2), F.grid_sample(x, EIGHTHS.half(), align_corners=False)),
        *(small.acos(), small.asin(), x.atan(), x.atan2(x.abs() + 1), x.sinh(), x.cosh(), x.asinh()),
        *((x.abs() + 1).acosh(), x.isnan(), x.bfloat16().isnan(), x.bfloat16().isinf()),
        *(
            each.float()
            for each in (
                F.layer_norm(x.bfloat16(), (7, 9)),
                F.group_norm(x.bfloat16(), 2, half[0].bfloat16(), half[1].bfloat16()),
            )
        ),
        *((x.abs().bfloat16() ** power).float() for power in (0.3, 2, -1.5)),
    ]


CASES = {
    # Arithmetic.
    "add": (lambda x, y: torch.add(x, y, alpha=2), [X, Y]),
    "add_number": (lambda x: torch.add(x, 3, alpha=2), [X]),
    "add_integers": (lambda x, y: torch.add(x, y, alpha=2), [INTEGERS, OTHERS]),
    "sub": (lambda x, y: torch.sub(x, y, alpha=2.5), [X, Y]),
    "rsub": (lambda x, y: torch.rsub(x, y, alpha=2), [X, Y]),
    "rsub_number": (lambda x: torch.rsub(x, 3, alpha=2), [X]),
    "addmm": (lambda x: torch.addmm(torch.ones(3), x, x.T, beta=2, alpha=3), [MATRIX]),
    "baddbmm": (lambda x: torch.baddbmm(torch.ones(2, 4, 4), x, x.mT, beta=0.5, alpha=3), [ROWS]),
    "add_products": (
        lambda x, y: (
            torch.addmv(y[:, 0], x.double(), y[0], beta=2, alpha=3),
            torch.addbmm(torch.ones(3, 3), x.float()[None], x.float().T[None], beta=2, alpha=3),
            torch.baddbmm(x[None, :, :3], x[None, :, :3], x[None, :, 2:], beta=0.2, alpha=1.6),
        ),
        [(MATRIX * 9).long(), MATRIX.double()],
    ),
    "signs": (
        lambda x, y: (
            *(x.copysign(y), x.copysign(-2), x.int().copysign(-0.0), y.signbit(), x.int().signbit()),
            *(x.int().copysign(y.half()), (x > 0).copysign(x.int())),
            *((x > 0).copysign(-2), x.new_full((2,), -128, dtype=torch.int8).copysign(2)),
        ),
        [MATRIX, torch.tensor([0, -0.0, 1, -1, -torch.inf])],
    ),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=2), [X, Y]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), [X, Y]),
    "matmul_half": (lambda x: x @ x.T, [HALF]),
    "matmul_double": (lambda x: x @ x.T, [DOUBLE]),
    "matmul_integers": (lambda x: x @ x.T, [INTEGERS]),
    "bmm_half": (lambda x: x @ x.mT, [ROWS.half()]),
    "linear_half": (lambda x: F.linear(x, x, x[:, 0]), [HALF]),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), [X, Y]),
    "div_trunc": (lambda x: torch.div(x, 0.7, rounding_mode="trunc"), [X]),
    "div_integers_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), [INTEGERS, OTHERS]),
    "div_integers_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), [INTEGERS, OTHERS]),
    "floor_divide": (lambda x: (x // 4, x // -2, x // 2.5), [INTEGERS]),
    "remainder": (lambda x: (x % 3, x % -3, x % 0.7), [INTEGERS]),
    "shift": (
        lambda x: (x << 3, x >> 1, x.to(torch.uint8) << 7, x >> 70, x.to(torch.uint8) >> 9),
        [INTEGERS],
    ),
    "shift_by_tensors": (
        lambda x, y: (
            x << y,
            x >> y,
            x.int() << 2 * y,
            9 >> y,
            y[:, :1].to(torch.uint8) >> x.to(torch.uint8),
        ),
        [INTEGERS, torch.tensor([[0, 1, 62], [63, 70, -1]])],
    ),
    "pow": (lambda x: (x**2, x**3, x.abs() ** 0.5, 2**x), [X]),
    "roots": (
        lambda x: (x**0.5, 1 / x**0.5, x**-0.5, x.int() ** 0.5, x.int() ** -0.5),
        [torch.tensor([float("-inf"), float("inf"), -0.0, 0.0, 4, float("nan")])[[0, 1, 2, 3, 4, 4]]],
    ),
    "clamp": (lambda x: (x.clamp(-0.5, 0.3), x.clamp(min=0.1), x.clamp(max=0.1)), [X]),
    "clamp_integers": (
        lambda x: (x.clamp(min=0), x.clamp(max=3), x.clamp(0, 3), x.clamp(max=2.5)),
        [INTEGERS],
    ),
    "clamp_by_tensors": (lambda x, y: (x.clamp(y, y + 1), torch.clamp(x, max=y)), [INTEGERS, OTHERS]),
    "masks": (
        lambda x, y: (x * y, x + y, x & y, ~x, x.cumsum(1), x.sum(1), x.any(1, keepdim=True), x != y, x == y),
        [MASK, MASK.flip(1)],
    ),
    "masks_in_order": (lambda x, y: (x > y, x >= y, x < y, x <= y, x > 0, x.sign()), [MASK, MASK.flip(1)]),
    "round": (lambda x: (torch.round(x), torch.round(x, decimals=1)), [X]),
    "of_integers": (lambda x: (x.exp(), x.sigmoid(), x.abs().sqrt(), x.relu()), [INTEGERS]),
    "cat": (lambda x, y: torch.cat([x, y, x * 1.5], -1), [INTEGERS, OTHERS.int()]),
    "where": (lambda x: (torch.where(x > 0, 1, 0), torch.where(x > 0, x, 0.5)), [X]),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1.5), [X]),
    # Activations.
    "elu": (lambda x: F.elu(x, 0.5), [X]),
    "selu": (F.selu, [X]),
    "celu": (lambda x: F.celu(x, 0.5), [X]),
    "gelu": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")), [X]),
    "softplus": (lambda x: F.softplus(x, 2, 1), [X]),
    "softshrink": (lambda x: F.softshrink(x, 0.3), [X]),
    "hardtanh": (lambda x: (F.hardtanh(x, -0.5, 0.7), F.relu6(x * 4)), [X]),
    "hardswish": (lambda x: (F.hardswish(x * 3), F.hardsigmoid(x * 3), F.mish(x), F.silu(x)), [X]),
    "leaky_relu": (lambda x: (F.leaky_relu(x, 0.2), F.prelu(x, torch.arange(4) * 0.1)), [X]),
    "softmax": (lambda x: (F.softmax(x, 1), F.log_softmax(x, 2), x.half().softmax(1, torch.float32)), [X]),
    "normalize": (lambda x: (F.normalize(x), F.normalize(x, 1, 2)), [X]),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), [X]),
    "erfc": (lambda x: (x.erfc(), x.exp2(), x.int().exp2()), [X]),
    "in_half": (in_half, [X]),
    # Convolutions.
    "conv": (lambda x: F.conv2d(x, WEIGHT, BIAS, (1, 2), (2, 1), (2, 1)), [X]),
    "conv_of_groups": (lambda x: F.conv2d(x, WEIGHT[:4, :2], BIAS[:4], 2, 1, 1, 2), [X]),
    "conv_depthwise": (lambda x: F.conv2d(x, WEIGHT[:4, :1], None, 1, 1, 1, 4), [X]),
    "conv_half": (lambda x: F.conv2d(x, WEIGHT.half(), BIAS.half()), [X.half()]),
    "conv_double": (lambda x: F.conv2d(x, WEIGHT.double(), BIAS.double()), [X.double()]),
    "conv_1d": (lambda x: F.conv1d(x, WEIGHT[..., 0], BIAS, 2, 1, 2), [ROWS]),
    "conv_transposed": (lambda x: F.conv_transpose2d(x, WEIGHT[:4], BIAS[:4], 2, 1, 1), [X]),
    "conv_transposed_of_groups": (lambda x: F.conv_transpose2d(x, WEIGHT[:4, :2], None, 2, 1, 0, 2), [X]),
    "conv_of_volumes": (
        lambda x: (
            F.conv3d(x, OF_VOLUMES, BIAS, (2, 1, 2), 1, (1, 2, 1)),
            F.conv3d(x, OF_VOLUMES[:, :2], None, groups=2),
            F.conv_transpose3d(x, OF_VOLUMES[:4], None, 2, 1, (1, 0, 1)),
            F.conv_transpose3d(x, OF_VOLUMES[:4], None, groups=2),
        ),
        [VOLUME],
    ),
    # Pooling.
    "max_pool": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, 2, 1, 1, True)), [X]),
    "max_pool_dilated": (lambda x: F.max_pool2d(x, 2, 1, 0, 2), [X]),
    "max_pool_ceil": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), [X]),  # without a stride
    "adaptive_max_pool": (
        lambda x: (
            F.adaptive_max_pool2d(x, 1),
            *F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
            F.adaptive_max_pool1d(x[0], 2),
        ),
        [X],
    ),
    "adaptive_max_pool_of_ties": (
        lambda x: (
            *F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
            *F.adaptive_max_pool2d(x[0], (12, 1), return_indices=True),
        ),
        [(X * 2).round()],
    ),
    "adaptive_max_pool_of_volumes": (
        lambda x: (
            F.adaptive_max_pool3d(x, (None, 1, 4)),
            *F.adaptive_max_pool3d(x, (2, 4, 9), return_indices=True),
            *F.adaptive_max_pool3d(x[0], 3, return_indices=True),
        ),
        [(VOLUME * 2).round()],
    ),
    "regions": (
        lambda x, rois: (
            torchvision.ops.roi_pool(x, rois, (3, 2), 0.7),
            torchvision.ops.ps_roi_pool(x, rois, 2, 0.5),
        ),
        [X, torch.tensor([[0.0, 1, 2, 9, 8], [1, 0, 0, 5, 4]])],
    ),
    "regions_by_position": (
        lambda x, rois: (
            torchvision.ops.ps_roi_align(x, rois, 2, 0.7, 2),
            torchvision.ops.ps_roi_align(x, rois, (1, 2), 0.5),
        ),
        [X, torch.tensor([[0.0, 1, 2, 9, 8], [1, 0, 0, 5, 4]])],
    ),
    "deformed": (
        lambda x, offset, mask: (
            torchvision.ops.deform_conv2d(x, offset, WEIGHT, BIAS, padding=1, mask=mask),
            torchvision.ops.deform_conv2d(x, offset, WEIGHT, padding=1),
        ),
        [X, random(2, 18, 7, 9) * 3, random(2, 9, 7, 9)],
    ),
    "deformed_of_groups": (
        lambda x, offset, mask: torchvision.ops.deform_conv2d(
            x, offset, WEIGHT[:, :2], BIAS, (2, 1), 1, (1, 2), mask
        ),
        [X, random(2, 36, 4, 7) * 3, random(2, 18, 4, 7)],
    ),
    "max_pool_places": (
        lambda x: (
            *F.max_pool2d(x, 3, 2, 1, return_indices=True),
            *F.max_pool2d(x, 2, 1, 1, 2, True, return_indices=True),
            *F.max_pool2d(x[0], 2, return_indices=True),
            *F.max_pool1d(x[0], 2, return_indices=True),
            F.max_pool2d(x, 2, return_indices=True)[1].sum(),
        ),
        [(X * 2).round()],  # with equal ones
    ),
    "max_pool_of_volumes": (
        lambda x: (
            F.max_pool3d(x, 2),
            F.max_pool3d(x, 3, 2, 1, ceil_mode=True),
            *F.max_pool3d(x, (2, 1, 3), 1, return_indices=True),
        ),
        [VOLUME],
    ),
    "avg_pool_by_divisor": (
        lambda x, volume: (
            F.avg_pool2d(x, 2, divisor_override=3),
            F.avg_pool2d(x, (3, 2), 2, 1, False, False, 5),
            F.avg_pool3d(volume, 2, divisor_override=3),
        ),
        [X, VOLUME],
    ),
    "avg_pool": (lambda x: (F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, False, False)), [X]),
    "avg_pool_ceil": (lambda x: (F.avg_pool2d(x, 2, 2, 0, True), F.avg_pool2d(x, 2, 2, 1, True, False)), [X]),
    "adaptive_avg_pool": (
        lambda x: (
            *(F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 4))),
            *(F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), size) for size in (1, 2)),  # in channels_last
        ),
        [X.permute(0, 2, 3, 1).contiguous()],
    ),
    # Normalization.
    "batch_norm": (lambda x: F.batch_norm(x, BIAS[:4], BIAS[:4] ** 2, BIAS[2:], BIAS[:4], eps=0.1), [X]),
    "layer_norm": (lambda x: F.layer_norm(x, (7, 9), X[0, 0], None, 0.1), [X]),
    "group_norm": (lambda x: F.group_norm(x, 2, BIAS[:4], BIAS[2:], 0.1), [X]),
    "group_norm_plain": (lambda x: (F.group_norm(x, 2), F.group_norm(x, 4, BIAS[:4])), [X]),
    "norms_of_doubles": (
        lambda x: (F.layer_norm(x, (7, 9), eps=0.1), F.group_norm(x, 2, x[0, :, 0, 0], x[0, :, 1, 1], 0.1)),
        [X.double()],
    ),
    "instance_norm": (lambda x: F.instance_norm(x, weight=BIAS[:4], bias=BIAS[2:], eps=0.1), [X]),
    "norms_far_from_0": (
        lambda x: (F.instance_norm(x), F.group_norm(x, 2), F.batch_norm(x, None, None, training=True)),
        [X + 50],
    ),
    # NaN and infinities.
    "infinite_bounds": (
        lambda x: (F.relu(x), F.relu6(x), x.clamp(min=0), x.clamp(max=1), x.clamp(1, -1), x.clamp(x.T[0, 0])),
        [INFINITE],
    ),
    "infinite_activations": (lambda x: (F.hardtanh(x), F.leaky_relu(x), F.elu(x), torch.sign(x)), [INFINITE]),
    "infinite_extremes": (
        lambda x: (torch.maximum(x, x.flip(1)), torch.minimum(x, x.flip(1)), *x.max(1), x.argmin(1), x.max()),
        [INFINITE],
    ),
    "infinite_extremes_of_axes": (
        lambda x: (x.amax(), x.amin(1), *x.min(0), *x.half().min(1, True)),
        [INFINITE],
    ),
    "infinite_but_for_nan": (lambda x: (torch.fmax(x, x.flip(1)), torch.fmin(x, x.flip(1))), [INFINITE]),
    "infinite_compared": (
        lambda x: (x == x, x != x, x != 1, ~(x > 0), ~(x <= 0), torch.where(~(x > 0), 1.0, x)),
        [INFINITE],
    ),
    "infinite_pool": (lambda x: F.max_pool2d(x[None], 2, 1, 1), [INFINITE]),
    "infinite_sort": (lambda x: (*x.sort(1), *x.sort(1, descending=True), *x.topk(2, 1)), [INFINITE]),
    "infinite_remainder": (lambda x: (x % 0.7, x // 0.7, x // -0.7, x * 0), [INFINITE]),
    # Reductions.
    "sum": (lambda x: (x.sum((1, -1)), x.sum(1, True), x.int().sum(), x.sum(0, dtype=torch.float64)), [X]),
    "mean": (lambda x: (x.mean((2, 3), keepdim=True), x.mean(), x.half().mean(1)), [X]),
    "variance": (
        lambda x: (x.var(1), x.std(1, correction=0), x.var((1, 2), correction=2, keepdim=True)),
        [X],
    ),
    "variance_and_mean": (
        lambda x: (*torch.std_mean(x, 1), *torch.var_mean(x), *torch.var_mean(x, (2, 3), correction=0)),
        [X],
    ),
    "product": (
        lambda x: (x.prod(1), x.int().prod(0, True), x.prod(), x.int().prod(), (x > 1).prod()),
        [INTEGERS],
    ),
    "any": (lambda x: (x.any(), (x > 100).any(), x.any(1), x.float().any(0, True)), [INTEGERS]),
    "kthvalue": (lambda x: (*x.kthvalue(2), *x.kthvalue(3, 0, True)), [MATRIX]),
    "max": (lambda x: (x.max(), *x.max(1), *x.max(-1, keepdim=True)), [MATRIX]),
    "argmax": (lambda x: (x.argmax(), x.argmax(1), x.argmin(0, keepdim=True)), [MATRIX]),
    "vector_norm": (lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (1, 2, 3, float("inf"))], [X]),
    "cumsum": (lambda x: (x.cumsum(-2), x.int().cumsum(1), x.cumsum(1, dtype=torch.float64)), [X]),
    "cumprod": (lambda x: (x.cumprod(1), (x > 0).cumprod(0), x.float().cumprod(-1)), [INTEGERS]),
    "bytes_and_numbers": (
        lambda x: (-x, x.sign(), x - 5, x + (-1), x * -1, 1 - x, x > -1, x < 300, x == -1),
        [(INTEGERS * 50).byte()],
    ),
    "extremes_of_masks": (
        lambda x, y: (
            *(torch.maximum(x, y), torch.minimum(x, y), x.amax(1), x.amin((0, 1)), x[0, 0].amin(0)),
            *(
                x.amax(0, True),
                x.max(),
                x.min(),
                *x.max(1),
                *x.min(1),
                *x.aminmax(),
                x.isnan(),
                x.isinf(),
                x.isfinite(),
            ),
        ),
        [INTEGERS > 4, INTEGERS.flip(0) > 3],
    ),
    "any_of_bytes": (lambda x: (x.any(), x.any(1), x.any(0, True), x.all(1)), [(INTEGERS > 4).byte()]),
    "extremes_of_axes": (lambda x: (x.amax((1, 2)), x.amin(-1, True), x.int().amax(0)), [X]),
    "sort_stable": (
        lambda x: (
            *x.sort(stable=True, descending=True),
            *x.sort(dim=0, stable=True),
            x.argsort(dim=1, stable=True),
        ),
        [INTEGERS % 3],
    ),
    "scalars": (
        lambda x: (
            *(x.cumsum(0), x.int().cumsum(-1), x.cumprod(0), x.argmin(), x.argmax(0), x.amax(0, True)),
            *(*x.max(0), *x.min(-1), *x.sort(), *x.topk(1), x.softmax(0), x.logsumexp(0), x.sum(0)),
            *(x.mean(0), x.prod(0), x.any(0), x.all(0), x.var(0, correction=0), *x.median(0), x.flip(0)),
            *(x.scatter(0, x.int().long() * 0, 5), x.scatter_add(0, x.int().long() * 0, x)),
        ),
        [torch.tensor(2.5)],
    ),
    "nothing": (
        lambda x: (
            *(x.sum(0), x.mean(1), x.mean(), x.var(0), x.any(0), x.all(0), (x > 0).any(), x.prod(1)),
            *(*x.sort(0), *x.topk(2, 1), x.gather(0, x.long()), x.flip(1), x[None].expand(2, 0, 3)),
            *(torch.einsum("ij,kj->ik", x, x), torch.cat([x, torch.ones(2, 3)]), F.pad(x, (0, 0, 1, 0))),
        ),
        [torch.zeros(0, 3)],
    ),
    "remainder_of_number": (lambda x: 100 % x, [INTEGERS]),
    "sort": (lambda x: (*x.sort(1, descending=True), x.argsort(0)), [MATRIX]),
    "topk": (lambda x: (*x.topk(3), *x.topk(2, 0, largest=False)), [MATRIX]),
    # Shapes.
    "shuffle": (lambda x: (F.pixel_shuffle(x, 2), F.channel_shuffle(x, 2)), [X]),
    "unfold": (lambda x: (x.unfold(2, 3, 2), x.unfold(-1, 4, 3), F.unfold(x, 3, 2, 1, 2)), [X]),
    "fold": (lambda x: F.fold(x, (6, 8), 3, padding=1, stride=2), [random(2, 18, 12)]),
    "split": (lambda x: (*x.split(3, 2), *x.chunk(4, 3), *x.split([1, 4, 2], 2), *x.unbind(-3)), [X]),
    "roll": (lambda x: (x.roll((1, -2), (2, 3)), x.roll(3), x.flip(1, -1)), [X]),
    "repeat": (lambda x: (x.repeat(2, 1, 2), x.repeat_interleave(2, 1), x.tril(-1), x.triu(1)), [MATRIX]),
    "pad": (lambda x: [F.pad(x, (1, 2, 3, 0), mode) for mode in ("reflect", "replicate", "circular")], [X]),
    "pad_constant": (
        lambda x: (F.pad(x, (1, 2), value=0.5), F.pad(x, (-1, 2, -2, 0)), F.pad(x > 0, (1, 2), value=2)),
        [X],
    ),
    "dist": (lambda x: (torch.dist(20 * x.half(), -20 * x.half(), 4), torch.dist(x, x[0], 3)), [MATRIX]),
    "ldexp": (
        lambda x, power: (
            *(x.ldexp(power), x.half().ldexp(power), power.ldexp(power)),
            *((1e-30 * x).ldexp(power + 140), (1e30 * x).ldexp(power - 160)),
        ),
        [MATRIX[:2, :3], INTEGERS],
    ),
    "view_copy": (lambda x: torch.view_copy(x, (5, 3)), [MATRIX]),
    "created": (
        lambda x: (
            *(torch.zeros_like(x, dtype=torch.int64), x.new_ones(2), torch.full_like(x, 2)),
            *(
                torch.full((2, 3), -torch.inf),
                x.new_full((2,), torch.nan),
                torch.full_like(x.half(), torch.inf),
            ),
        ),
        [X],
    ),
    # Images.
    "nearest": (lambda x: [F.interpolate(x, size=size) for size in ((14, 18), (13, 13), (3, 20))], [X]),
    "nearest_by_factors": (lambda x: [F.interpolate(x, scale_factor=k) for k in (2, 1.3, (3, 0.5))], [X]),
    "bilinear": (lambda x: [F.interpolate(x, size=s, mode="bilinear") for s in ((14, 20), (3, 11))], [X]),
    "bilinear_by_factors": (
        lambda x: [F.interpolate(x, scale_factor=k, mode="bilinear") for k in (2, 1.3, (3, 0.5))],
        [X],
    ),
    "bilinear_of_corners": (
        lambda x: [
            F.interpolate(x, size=s, mode="bilinear", align_corners=True) for s in ((14, 20), (3, 11))
        ],
        [X],
    ),
    "bilinear_to_one": (
        lambda x: [
            F.interpolate(x, size=s, mode="bilinear", align_corners=True) for s in ((1, 1), (1, 5), (4, 1))
        ],
        [X],
    ),
    "bicubic": (lambda x: F.interpolate(x, size=(14, 5), mode="bicubic"), [X]),
    "antialiased": (
        lambda x: [
            F.interpolate(x, size=size, mode=mode, antialias=True)
            for size in ((14, 20), (3, 4), (14, 3), (1, 1))
            for mode in ("bilinear", "bicubic")
        ],
        [X],
    ),
    "antialiased_by_factors": (
        lambda x: [
            F.interpolate(x, scale_factor=factor, mode=mode, antialias=True)
            for factor in (0.4, (1.3, 0.7), 2)
            for mode in ("bilinear", "bicubic")
        ],
        [X],
    ),
    "antialiased_of_corners": (
        lambda x: F.interpolate(x, size=(3, 4), mode="bicubic", antialias=True, align_corners=True),
        [X.double()],
    ),
    "grid_sample": (
        lambda x, grid: [
            F.grid_sample(x, grid, mode, padding, align_corners=False)
            for mode, padding in (("bilinear", "zeros"), ("nearest", "border"), ("bilinear", "reflection"))
        ],
        [X, GRID],
    ),
    "grid_sample_of_volumes": (
        lambda x, grid: [
            F.grid_sample(x, grid, mode, padding, align_corners=corners)
            for mode, padding, corners in (("bilinear", "zeros", False), ("nearest", "reflection", True))
        ],
        [VOLUME, torch.rand(2, 3, 4, 5, 3, generator=SEEDED) * 2.4 - 1.2],
    ),
    "grid_sample_of_corners": (lambda x, grid: F.grid_sample(x, grid, align_corners=True).mean(), [X, GRID]),
    "affine_grid": (lambda x: F.affine_grid(x, (2, 3, 5, 6), False), [random(2, 2, 3)]),
    "attention": (
        lambda q: (
            F.scaled_dot_product_attention(q, q + 1, q * 2, scale=0.5),
            F.scaled_dot_product_attention(q, q + 1, q * 2, is_causal=True),
            F.scaled_dot_product_attention(q, q + 1, q * 2, attn_mask=torch.eye(5) > 0),
        ),
        [QUERIES],
    ),
}


@pytest.fixture(scope="module")
def results():
    return results_of(CASES)


@pytest.mark.parametrize("name", CASES)
def test_as_in_torch(results, name):
    assert_as_in_torch(results[name])


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_rounded_as_in_torch(mode, antialias):
    images = torch.randint(2, (1, 3, 7, 9), dtype=torch.uint8, generator=SEEDED) * 255
    images[0, 0] = torch.randint(256, (7, 9), generator=SEEDED)

    def resize(x):
        options = {"mode": mode, "antialias": antialias}
        return F.interpolate(x, size=(13, 5), **options), F.interpolate(x, scale_factor=1.3, **options)

    found = run(compiled(frontends.relax.from_pytorch(Of(resize), images), QUICK), [images.numpy()])
    for mine, theirs in zip(found, resize(images), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_bilinear_pixels_of_float64_have_its_precision():
    def resize(x):
        return F.interpolate(x, size=(13, 5), mode="bilinear", align_corners=True)

    image = X.double()
    (found,) = run(compiled(frontends.relax.from_pytorch(Of(resize), image), QUICK), [image.numpy()])
    np.testing.assert_allclose(found, resize(image), rtol=1e-12, atol=1e-12)


REFUSED = {
    "divisor": (
        lambda x: F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3),
        "avg_pool with a divisor_override and ceil_mode",
    ),
    "random": (lambda x: F.dropout(x, training=True), "dropout.* draws random values: make them an input"),
    "normal": (lambda x: x + torch.randn_like(x), "randn.* draws random values: make them an input"),
    "mask": (lambda x: x[x > 0], "aten.index.Tensor .* as many elements as a mask says.*torch.where"),
    "place": (
        lambda x: put(x, (slice(None), x.argmax() % 4), 1),
        r"depends on data.* x\[index\[None\]\] = y",
    ),
    "masked_select": (lambda x: x.masked_select(x > 0), "the shape of .*masked_select.* depends on data"),
    "compared": (
        lambda x: x + 1 if torch.equal(x, x * 2) else x,
        "a shape or a branch of Of depends on data",
    ),
    "narrowed": (lambda x: x.narrow(3, x.argmax() % 4, 3), "a shape or a branch of Of depends on data"),
    "type": (
        lambda x: F.avg_pool3d(x.long(), 2, divisor_override=2),
        r"result 0 of Of would be \(torch.float32, .*torch computes \(torch.int64",
    ),
    "number": (lambda x: x * x[0, 0, 0, 0].item(), "makes a number of data: keep it a tensor"),
    "function": (lambda x: torch.special.i0(x), r"no equivalent of .*aten.i0.default \(.*leave it to torch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name):
    function, reason = REFUSED[name]
    with pytest.raises(ImportFailure, match=reason):
        frontends.relax.from_pytorch(Of(function), X)
