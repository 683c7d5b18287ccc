"""l5kit's rasterisers for a whole batch of samples, on a CPU or a GPU; l5kit itself is not needed.

    rasterizer = SemBoxRasterizer(context, 0.5, 10, SemanticMap(lanes, crosswalks), target="cuda")
    images = rasterizer.rasterize(history_frames, history_agents, history_tl_faces, agents)

The four arguments are lists, with an entry for each sample: what l5kit's own `rasterize` takes. Frames,
agents and faces are l5kit's structured NumPy arrays. Images equal those that l5kit draws with OpenCV, bit for
bit, with two exceptions. Sides of lanes are drawn state by state, those without a light first, then red,
green and yellow; l5kit begins with the state of the first lane in view. And `mode="union"` leaves no holes
where boxes overlap.
"""

from .map import Lane, SemanticMap
from .rasterizer import BoxRasterizer, RenderContext, SemanticRasterizer, SemBoxRasterizer
from .records import AGENT_DTYPE, FRAME_DTYPE, TL_FACE_DTYPE, boxes_by_layer

__all__ = [
    "AGENT_DTYPE",
    "FRAME_DTYPE",
    "TL_FACE_DTYPE",
    "BoxRasterizer",
    "Lane",
    "RenderContext",
    "SemBoxRasterizer",
    "SemanticMap",
    "SemanticRasterizer",
    "boxes_by_layer",
]
