"""Operators that read images in between their pixels."""

import itertools

import numpy as np

from tests.relax.onnx_cases.case import IMAGE, LATEST, RANDOM, WHOLE, case, integers, random


def resize(x, sizes=None, scales=None, opsets=(13, LATEST), **attributes):
    scales = None if scales is None else np.float32(scales)
    return case("Resize", x, None, scales, sizes, known=[2, 3], opsets=opsets, **attributes)


COORDINATES = "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"
ROUNDINGS = "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"
SAMPLING = {
    **{
        f"Resize_{mode}_{coordinates}_{at}": resize(
            IMAGE, [2, 4, *size], mode=mode, coordinate_transformation_mode=coordinates
        )
        for mode, sizes in (("linear", ([14, 27], [5, 13])), ("cubic", ([5, 13],)))
        for coordinates in COORDINATES
        for at, size in enumerate(sizes)
    },
    **{
        f"Resize_{rounding}_{coordinates}": resize(
            IMAGE,
            [2, 4, 14, 5],
            mode="nearest",
            nearest_mode=rounding,
            coordinate_transformation_mode=coordinates,
        )
        for rounding in ROUNDINGS
        for coordinates in COORDINATES
    },
    "Resize_scales": resize(
        IMAGE, None, [1, 1, 2, 3], nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    ),
    "Resize_rounded_scales": resize(IMAGE[..., :5], None, [1, 1, 1, 1.2], mode="linear"),
    "Resize_cubic_scales": resize(IMAGE, None, [1, 1, 2, 2], mode="cubic", cubic_coeff_a=-0.5),
    "Resize_axes": resize(IMAGE, [14, 4], mode="linear", axes=[2, 3], opsets=(18, LATEST)),
    "Resize_bytes": resize((WHOLE + 9).astype("uint8")[None, None], None, [1, 1, 2, 1.2], mode="nearest"),
    "Resize_same": resize(IMAGE, None, [1, 1, 1, 1]),
    "Resize_channels": resize(IMAGE, [2, 8, 7, 9], mode="nearest"),
    "Resize_excluding": resize(IMAGE, None, [1, 1, 2, 2], mode="cubic", exclude_outside=1),
    **{
        f"Resize_{mode}_{coordinates}_by_scale": resize(
            IMAGE, None, [1, 1, 1.3, 0.77], mode=mode, coordinate_transformation_mode=coordinates
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric")
    },
    **{
        f"Resize_{mode}_cropped_to_{size[2]}": case(
            *("Resize", IMAGE, np.float32([0, 0, 0.1, -0.2, 1, 1, 1.2, 0.8]), None, size),
            known=[1, 3],
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=3.0,
        )
        for mode in ("nearest", "linear", "cubic")
        for size in ([2, 4, 5, 6], [2, 4, 1, 3])
    },
    **{
        f"Resize_{mode}_to_one": resize(
            IMAGE, [2, 4, 1, 4], mode=mode, coordinate_transformation_mode="align_corners"
        )
        for mode in ("nearest", "linear", "cubic")
    },
    **{
        f"Resize_{mode}_of_{rank}_axes": resize(random(*size), None, scales, mode=mode)
        for mode in ("nearest", "linear")
        for rank, size, scales in (
            (2, (5, 6), [1.5, 2.2]),
            (3, (2, 5, 6), [1, 1.5, 2.2]),
            (4, (1, 5, 6, 3), [1, 2, 2.5, 1]),
            (5, (1, 2, 5, 6, 7), [1, 1, 1.5, 0.6, 2]),
        )
    },
    **{
        f"Resize_{mode}_{policy}": resize(
            *(IMAGE, [13, 12]),
            mode=mode,
            axes=[2, 3],
            keep_aspect_ratio_policy=policy,
            opsets=(18, LATEST),
        )
        for mode in ("nearest", "linear", "cubic")
        for policy in ("not_larger", "not_smaller")
    },
    **{
        f"Resize_{mode}_{coordinates}_{'excluding' if excluding else 'averaged'}": resize(
            *(IMAGE, [2, 4, 3, 12]),
            mode=mode,
            antialias=1,
            coordinate_transformation_mode=coordinates,
            exclude_outside=excluding,
            opsets=(18, LATEST),
        )
        for mode in ("linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric")
        for excluding in (0, 1)
    },
    "Resize_symmetric": resize(
        *(IMAGE, None, [1, 1, 1.3, 0.77]),
        mode="linear",
        coordinate_transformation_mode="half_pixel_symmetric",
        opsets=(19, LATEST),
    ),
}
GRID = (RANDOM.random((2, 5, 6, 2)) * 2.6 - 1.3).astype("float32")
SAMPLING |= {
    f"GridSample_{mode}_{padding}_{corners}": case(
        "GridSample", IMAGE, GRID, mode=mode, padding_mode=padding, align_corners=corners, opsets=(16, 19)
    )
    for mode, padding, corners in (
        *itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (0, 1)),
        ("bicubic", "zeros", 0),
    )
}
REGIONS = (RANDOM.random((5, 4)) * [5, 4, 4, 3] + [0, 0, 5, 4]).astype("float32")
SAMPLING |= {
    f"RoiAlign_{mode}_{ratio}": case(
        *("RoiAlign", IMAGE, REGIONS, integers(0, 2, 5)),
        coordinate_transformation_mode=mode,
        sampling_ratio=ratio,
        output_height=3,
        output_width=2,
        spatial_scale=0.8,
        opsets=(16, LATEST),
    )
    for mode in ("half_pixel", "output_half_pixel")
    for ratio in (0, 2)
}
SAMPLING |= {
    f"GridSample_cubic_{padding}_{corners}": case(
        *("GridSample", IMAGE, GRID),
        mode="cubic",
        padding_mode=padding,
        align_corners=corners,
        opsets=(20, LATEST),
    )
    for padding, corners in (("zeros", 1), ("border", 0), ("reflection", 0), ("reflection", 1))
}
SAMPLING |= {
    f"GridSample_3d_{mode}_{padding}": case(
        *("GridSample", random(1, 2, 3, 4, 5), random(1, 2, 3, 4, 3)),
        mode=mode,
        padding_mode=padding,
        opsets=(20, LATEST),
    )
    for mode in ("linear", "nearest")
    for padding in ("zeros", "border", "reflection")
}
SAMPLING["GridSample_cubic"] = case("GridSample", IMAGE, GRID, mode="cubic", opsets=(20, LATEST))
SAMPLING["GridSample_linear"] = case("GridSample", IMAGE, GRID, mode="linear", opsets=(20, LATEST))
