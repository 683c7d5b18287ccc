"""A network that fails: on one image, which is an error then, or on all, which ends the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import one_line
from .errors import BadImage, BatchError
from .found import Found
from .letterbox import Prepared

Run = Callable[[Sequence[Prepared]], list[Found]]


class NetworkFailed(BatchError):
    """The network fails also on an image that has nothing in it: the device or the network is to blame."""


def run_each(run: Run, images: Sequence[Prepared], ids: Sequence[str]) -> list[Found | BadImage]:
    """What a network finds in each image of a batch, or why it fails on this one.

    A batch that fails is run again image by image.
    """
    try:
        return [*run(images)]
    except BatchError:
        raise
    except Exception as error:
        first = error
    alone = [_alone(run, image) for image in images]
    if all(isinstance(one, BadImage) for one in alone) and isinstance(_alone(run, images[0] * 0), BadImage):
        raise NetworkFailed(
            f"the network failed on {', '.join(ids)} ({one_line(first)}): what was written is whole; give "
            "--resume (resume=True) to try again"
        ) from first
    return alone


def _alone(run: Run, image: Prepared) -> Found | BadImage:
    try:
        (found,) = run([image])
    except Exception as error:
        return BadImage(f"makes the network fail: {one_line(error)}")
    return found
