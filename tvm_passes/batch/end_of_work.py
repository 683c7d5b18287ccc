"""When the work that is queued on a GPU has ended."""

from __future__ import annotations

from collections.abc import Callable

import torch


def end_of_work(*tensors: object) -> Callable[[], object]:
    """What waits until all that computes and copies these, on the current stream of their GPU, has ended."""
    devices = {each.device for each in tensors if isinstance(each, torch.Tensor) and each.is_cuda}
    if not devices:
        return lambda: None
    # By default, CUDA polls: in many processes, whose threads wait for a GPU most of the time, this takes the
    # processors from those that decode.
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(*devices))
    return event.synchronize
