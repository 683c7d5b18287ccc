"""Find the fastest of cuDNN's plans for each convolution of a model, once for a kind of GPU."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from topi_ext.cudnn import plans, session

from . import cuda
from .model import Model
from .tensors import Tensor

_tuning = threading.Lock()  # others at the same time would disturb what is measured


def tune(model: Model, *inputs: Tensor) -> None:
    """Time all of cuDNN's plans for each convolution of a model on CUDA, in one call on these inputs.

    This takes minutes, most of them in cuDNN, which compiles a dozen kernels for each. The fastest plans are
    kept in the user's cache, by the card and the version of cuDNN, and models that are made from then on use
    them; without it, they use the plan that cuDNN takes for the fastest. Results of other plans differ by
    rounding. For a target without `-libs=cudnn-frontend`, there is nothing to choose.

    >>> model = runtime.compile(mod, "cuda -arch=sm_90 -libs=cudnn-frontend")  # doctest: +SKIP
    >>> runtime.tune(model, image)  # doctest: +SKIP
    >>> model = runtime.compile(mod, "cuda -arch=sm_90 -libs=cudnn-frontend")  # doctest: +SKIP
    """
    if model.device.device_type != model.device.kDLCUDA:
        raise ValueError(f"tune: the model is on {model.device}, where cuDNN is not used: give one on CUDA")
    # A thread of its own has no plans yet.
    with _tuning, ThreadPoolExecutor(1) as thread:
        thread.submit(_called, model, inputs).result()
    session.forget_plans()


def _called(model: Model, inputs: tuple[Tensor, ...]) -> None:
    twin = Model(model.lib, model.device, cuda_graph=False)
    with plans.timed_by(partial(cuda.milliseconds, model.device)):
        twin(*inputs)
