"""Images and matrices for tests and benchmarks of affine warps."""

import numpy as np


def random_images(count, size, channels=3, layout="NCHW", dtype="uint8", seed=0):
    """Noise from 0 to 255, on which each wrong place shows."""
    shape = {"N": count, "C": channels, "H": size[0], "W": size[1]}
    noise = np.random.default_rng(seed).integers(0, 256, [shape[axis] for axis in layout])
    return noise.astype(dtype)


def rotations(count, size, most_degrees=30, seed=0):
    """Matrices (count, 2, 3) that turn images around their centres, scale and shift them a little."""
    rng = np.random.default_rng(seed)
    angle = np.radians(rng.uniform(-most_degrees, most_degrees, count))
    scale = rng.uniform(0.8, 1.25, count)
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    linear = np.stack([cos, -sin, sin, cos], axis=1).reshape(count, 2, 2)
    centre = (np.array(size[::-1]) - 1) / 2
    shift = centre + rng.uniform(-0.1, 0.1, (count, 2)) * size[::-1] - linear @ centre
    return np.concatenate([linear, shift[..., None]], axis=2)


def odd_matrices(count, seed=0):
    """Matrices of all kinds: turned by any angle, flipped, singular, huge, tiny, far away."""
    rng = np.random.default_rng(seed)
    matrices = rotations(count, (40, 50), most_degrees=180, seed=seed)
    for number, matrix in enumerate(matrices):
        kind = number % 10
        if kind == 1:
            matrix[:] = [[-1, 0, 40], [0, 1, 0]]
        elif kind == 2:
            matrix[1] = matrix[0] * 2
        elif kind == 3:
            matrix *= 10 ** rng.uniform(0, 30)
        elif kind == 4:
            matrix *= 10 ** -rng.uniform(0, 30)
        elif kind == 5:
            matrix[:, 2] = rng.choice([-1, 1], 2) * 10 ** rng.uniform(2, 12, 2)
        elif kind == 6:
            matrix[:] = 0
        elif kind == 7:
            matrix[:] = np.round(matrix * 16) / 16
        elif kind == 8:
            matrix[:, :2] = np.eye(2)
    return matrices
