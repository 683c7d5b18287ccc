"""The models of the zoo: each file fills the table with those of its kind."""

from . import backbones, detectors, super_resolution, trained  # noqa: F401  they fill the table
from .registry import MODELS

__all__ = ["MODELS"]
