"""Passes for detection networks: NMS with its classes, pooled regions, fixed shapes, the image in front."""
