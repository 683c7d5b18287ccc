"""Passes for convolutions on tensor cores: NHWC, half precision, and fused epilogues."""
