"""The table of models, and what those who fill it share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.models.zoo import random_image

SIZE = 320
MODELS = {}


@dataclass(frozen=True)
class Model:
    """`build` gives a module and its inputs, or the path of an ONNX file and its inputs."""

    name: str
    package: str
    family: str
    build: Callable
    is_detector: bool
    any_size: bool  # whether an ONNX file is imported with its symbolic sizes


def model(name, package, family, is_detector=True, any_size=False):
    def register(build):
        MODELS[name] = Model(name, package, family, build, is_detector, any_size)
        return build

    return register


class Outputs(torch.nn.Module):
    """A network, and a function that makes tensors of what it returns."""

    def __init__(self, network, outputs):
        super().__init__()
        self.network, self.outputs = network, outputs

    def forward(self, image):
        return self.outputs(self.network, image)


def image(size=SIZE):
    return random_image(size, size)[None]
