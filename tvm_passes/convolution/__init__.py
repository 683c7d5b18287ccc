"""Passes for convolutions on tensor cores: NHWC, half precision, and one kernel for what follows."""
