"""From many images to a table of detections, by a compiled detector.

    from tvm_passes import batch

    summary = batch.detect("photos/", "detections.parquet", "detector")

`sources.py` finds the images, `decode.py` and `letterbox.py` prepare them, `network.py` and `detector.py`
run the network and bring what it finds back to each image, `table.py` writes, `local.py` does all this in
threads, `processes.py` in a process for each of several GPUs, `on_ray.py` in processes of Ray, and `job.py`
is the whole. `pip install tvm-vision-passes[batch]` has what it needs, `[ray]` also Ray.
"""

from .detector import Detector
from .errors import BadImage, BatchError
from .job import Summary, detect

__all__ = ["BadImage", "BatchError", "Detector", "Summary", "detect"]
