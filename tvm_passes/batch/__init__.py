"""From many images to a table of detections, by a compiled detector.

    from tvm_passes import batch

    summary = batch.detect("photos/", "detections.parquet", "detector")

`sources.py` finds the images, `decode.py` and `letterbox.py` prepare them, `network.py` and `detector.py`
run the network and bring what it finds back to each image, `table.py` writes, `local.py` does all this in
threads, `processes.py` in processes, one or more for each GPU, `on_ray.py` in processes of Ray, and `job.py`
is the whole. `pip install "tvm-vision-passes[batch]"` has what it needs, `[ray]` also Ray.
"""

from typing import TYPE_CHECKING

from topi_ext.bootstrap import tvm_in_use

from .errors import BadImage, BatchError

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .detector import Detector
    from .job import Summary, detect
else:
    __getattr__ = tvm_in_use.getattr_without_relay(__name__)

__all__ = ["BadImage", "BatchError", "Detector", "Summary", "detect"]
