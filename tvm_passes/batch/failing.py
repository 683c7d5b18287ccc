"""A network that fails: on one image, which is an error then, or on all, which ends the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from ..errors import one_line
from .errors import BadImage, BatchError
from .found import Found
from .letterbox import Prepared

Start = Callable[[Sequence[Prepared]], Callable[[], list[Found]]]


class NetworkFailed(BatchError):
    """The network fails also on an image that has nothing in it: the device or the network is to blame."""


def start_each(
    start: Start, images: Sequence[Prepared], ids: Sequence[str]
) -> Callable[[], list[Found | BadImage]]:
    """Begin to run a network on a batch; what this returns waits.

    It gives what is found in each image, or why the network fails on this one: a batch that fails is run
    again image by image.
    """
    return partial(_each, _begun(start, images), start, images, ids)


def _begun(start: Start, images: Sequence[Prepared]) -> Callable[[], list[Found]]:
    try:
        return start(images)
    except Exception as error:
        return raising(error)


def raising(error: Exception) -> Callable[[], NoReturn]:
    def call() -> NoReturn:
        raise error

    return call


def _each(
    found: Callable[[], list[Found]], start: Start, images: Sequence[Prepared], ids: Sequence[str]
) -> list[Found | BadImage]:
    try:
        return [*found()]
    except BatchError:
        raise
    except Exception as error:
        first = error
    alone = [_alone(start, image) for image in images]
    if all(isinstance(one, BadImage) for one in alone) and isinstance(_alone(start, images[0] * 0), BadImage):
        raise NetworkFailed(
            f"the network failed on {', '.join(ids)} ({one_line(first)}): what was written is whole; give "
            "--resume (resume=True) to try again"
        ) from first
    return alone


def _alone(start: Start, image: Prepared) -> Found | BadImage:
    try:
        (found,) = start([image])()
    except Exception as error:
        return BadImage(f"makes the network fail: {one_line(error)}")
    return found
