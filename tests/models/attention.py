"""Multi-scale deformable attention as networks in torch spell it."""

import numpy as np
import torch


class DeformableAttention(torch.nn.Module):
    """As in Deformable DETR (`stack`), with as many points on each level, or in RT-DETR v2 (`concat`)."""

    def __init__(self, shapes, counts, joined="stack"):
        super().__init__()
        self.shapes, self.counts, self.joined = shapes, list(counts), joined

    def forward(self, value, points, weights):
        images, _, heads, width = value.shape
        queries, sampled = points.shape[1], []
        of_levels = value.split([height * across for height, across in self.shapes], 1)
        for level, shape, places in zip(of_levels, self.shapes, points.split(self.counts, 3)):
            map_ = level.flatten(2).transpose(1, 2).reshape(images * heads, width, *shape)
            grid = (2 * places - 1).transpose(1, 2).flatten(0, 1)
            sampled.append(torch.nn.functional.grid_sample(map_, grid, align_corners=False))
        together = torch.stack(sampled, -2).flatten(-2) if self.joined == "stack" else torch.cat(sampled, -1)
        of_heads = weights.transpose(1, 2).reshape(images * heads, 1, queries, sum(self.counts))
        result = (together * of_heads).sum(-1).view(images, heads * width, queries)
        return result.transpose(1, 2).contiguous()


def attention_inputs(shapes, counts, queries, heads, width, images=1, seed=0):
    """Values, points near those of neighbouring queries, a few of them outside, and weights."""
    random, points = np.random.default_rng(seed), sum(counts)
    row = np.linspace(0, 1, queries)[:, None]
    near = np.stack([(row * np.sqrt(queries)) % 1, row], -1)[None, :, None]
    arrays = [
        random.standard_normal((images, sum(h * w for h, w in shapes), heads, width)),
        near + random.normal(0, 0.05, (images, queries, heads, points, 2)),
        random.dirichlet(np.ones(points), (images, queries, heads)),
    ]
    return [torch.from_numpy(array.astype("float32")) for array in arrays]
