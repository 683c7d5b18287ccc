"""Scenes drawn as images: boxes, polygons and lines as masks, maps in colours, as OpenCV draws them.

The functions build Relay expressions; `reference` says in NumPy what they answer.
"""

from .op import rasterize_boxes, rasterize_map, rasterize_polygons, rasterize_polylines

__all__ = ["rasterize_boxes", "rasterize_map", "rasterize_polygons", "rasterize_polylines"]
