"""The models of the zoo: each file fills the table with those of its kind."""

from . import detectors, super_resolution
from .registry import MODELS
