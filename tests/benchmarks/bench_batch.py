"""Time a job of many images, its stages alone and together: `python -m tests.benchmarks.bench_batch`.

Photographs are JPEGs in memory, of 1280x720. Each stage alone runs in one thread: decode and fit into the
network's input, the network on what was prepared, bring what it finds back to the photographs, write. The job
is the engine `local` from these bytes to rows, as it goes on once all of its processes have begun; the
process that serves all others is bound by Python where it needs a whole core. What the engine itself costs is
measured with a network of which each batch is there so long after it was begun, or after the one before, as a
GPU would compute: the job should need nothing more than this time; likewise what Ray costs, where it is
installed, with such a network, slower by as much as this host has fewer than 16 cores, since the processes of
Ray need some. The peer does what Ray's example of batch inference with torchvision does in a worker: it
decodes, runs the network in eager mode, under autocast on a GPU, and copies all that it finds to the host;
what Ray takes is not counted.

Without a GPU, the network is Mask R-CNN for images of 256x320, with one, 800x1333 in float16.
"""

import argparse
import contextlib
import io
import os
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.io import decode_jpeg

import topi_ext
import tvm_passes
from tests.batch.seen import Seen
from tests.benchmarks import _common as common
from tests.benchmarks._models import of_torchvision
from tests.benchmarks._photos import photos as encoded_photos
from tests.zoo.outcome import imported
from tvm_passes import batch, runtime
from tvm_passes.batch.decode import MAX_PIXELS, decode
from tvm_passes.batch.figures import Figures
from tvm_passes.batch.item import Held, Item
from tvm_passes.batch.job import MAX_DECODERS, processes_of
from tvm_passes.batch.local import run_in_threads
from tvm_passes.batch.on_ray import Model, run_on_ray
from tvm_passes.batch.output import Tables
from tvm_passes.batch.process import Options
from tvm_passes.batch.processes import run_in_processes
from tvm_passes.batch.results import number_of
from tvm_passes.batch.table import detections_schema

WIDTH, HEIGHT, DISTINCT = 1280, 720, 16
SECONDS = 3  # that a stage runs alone, at least
SETTLING = 2  # seconds in which processes that have begun build their CUDA graphs, and queues fill
WAIT = 0.004  # of the network that only waits: seconds for a batch
# On Ray, whose own processes need the cores: as a GPU that has 16 of them.
WAIT_ON_RAY = 0.013 * 16 / len(os.sched_getaffinity(0))
WAITED, WAITS = 8, 400  # its batch, and how many
PEER_BATCH = 4
ENDLESS = 10**9  # images
NOT_A_JOB = "", "", ""  # in the columns that only jobs have


def main():
    args = parser().parse_args()
    on_gpu = torch.cuda.is_available() and not args.cpu
    size = (800, 1333) if on_gpu else (256, 320)
    photos = [*encoded_photos(DISTINCT, HEIGHT, WIDTH)]
    with tempfile.TemporaryDirectory() as folder:
        if not args.model:
            print("Compiling Mask R-CNN, which takes a minute or two ...", flush=True)
        model = args.model or compiled(Path(folder), size, on_gpu, args.batch or (8 if on_gpu else 1))
        devices = [f"cuda:{at}" for at in range(args.gpus)] if on_gpu else ["cpu"]
        processes = args.processes or processes_of(devices[0])
        decoders = args.decoders or max(1, len(os.sched_getaffinity(0)) - 1)
        detector = batch.Detector(model, devices[0])
        rows = alone(detector, photos, Path(folder))
        network = rows[2][1]
        if processes == 1:
            name = f"the job, {devices[0]}, {decoders} decoders"
            rows.append([name, *job(detector, photos, args.images, decoders), ""])
        del detector  # and its memory
        powers = [2**power for power in range(len(devices).bit_length())]
        for count in powers[processes == 1 :]:
            shared = min(decoders, MAX_DECODERS * count)
            workers = devices[:count] * processes
            rate = job_of_processes(model, workers, photos, args.images * count, shared)
            rows.append([f"the job, {count} GPUs, {processes} processes each, {shared} decoders", *rate])
    if on_gpu:
        rows.append(["decode on the GPU, by torchvision's nvJPEG", by_nvjpeg(photos, devices[0]), *NOT_A_JOB])
    rows.append(["torchvision, one device", by_torchvision(photos, size, devices[0]), *NOT_A_JOB])
    overheads = overhead_of_engine(min(decoders, MAX_DECODERS)), overhead_of_ray()
    if on_gpu:
        machine = common.environment(common.copy_bandwidth(), times=None)
    else:
        machine = f"- CPU: {common.cpu_name()}, {os.cpu_count()} threads"
    facts = [machine, f"- Network: Mask R-CNN, {size}"]
    table = [[name, f"{rate:.1f}", f"{rate / network:.2f}", *others] for name, rate, *others in rows]
    header = ["", "images a second", "of the network's", "bound by", "cores that serve all", "begun, s"]
    text = [*facts, "", __doc__.split("\n\n")[1], "", common.markdown_table(header, table), ""]
    for engine, wait, overhead in zip(("", " on Ray"), (WAIT, WAIT_ON_RAY), overheads):
        if overhead is not None:
            says = f"A job{engine} took {overhead:.1%} longer than its network"
            text.append(f"{says}, which waited {wait * 1e3:.0f} ms a batch.")
    common.publish("batch", "Many images", "\n".join(text), None if on_gpu else common.cpu_name())


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a compiled folder, rather than Mask R-CNN")
    parser.add_argument("--batch", type=int, help="of the network; by default 8 on a GPU, and else 1")
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    parser.add_argument("--gpus", type=int, default=max(torch.cuda.device_count(), 1))
    parser.add_argument("--processes", type=int, help="of each GPU in a job; by default as the job has")
    parser.add_argument("--images", type=int, default=64, help="of a job, for each device; %(default)s")
    parser.add_argument("--decoders", type=int, help="threads; by default one less than there are cores")
    return parser


def compiled(folder, size, on_gpu, number):
    """A folder of Mask R-CNN whose masks are small, to be pasted into photographs."""
    target = common.tensor_core_target("cudnn-frontend") if on_gpu else topi_ext.cpu_target()
    mod = imported(*of_torchvision("maskrcnn_resnet50_fpn", size, batch=number))
    options = {"outputs": "padded"} if on_gpu else {}
    mod = tvm_passes.detection_pipeline(target, masks="raw", **options)(mod)
    runtime.save(folder / "model", runtime.build_library(mod, target), mod, target, {"model": "maskrcnn"})
    return folder / "model"


def alone(detector, photos, folder):
    """[what, images a second in one thread, *NOT_A_JOB] for each stage."""
    torch.set_num_threads(1)
    images = [decode(photo) for photo in photos]
    prepared = [detector.prepare(image) for image in images]
    fitted = detector.fitted([array for array, _ in prepared])
    batches = [fitted[at : at + detector.batch] for at in range(0, DISTINCT, detector.batch)]
    found = [one for each in batches for one in detector.run(each)]
    pairs = [(one, placed) for one, (_, placed) in zip(found, prepared)]
    results = [detector.finish("image", *pair) for pair in pairs]
    tables = Tables(folder / "detections.parquet", folder / "errors.parquet", 2000)

    def write(result):
        tables.write(result)

    stages = {
        "decode": (decode, photos, 1),
        "fit into the input": (lambda image: detector.fitted([detector.prepare(image)[0]]), images, 1),
        f"network, batches of {detector.batch}": (detector.run, batches, detector.batch),
        "map back": (lambda pair: detector.finish("image", *pair), pairs, 1),
        "write": (write, results, 1),
    }
    rows = []
    for name, stage in stages.items():
        rows.append([name, rate_of(*stage), *NOT_A_JOB])
        print(f"{name}: {rows[-1][1]:.1f} images a second", flush=True)
    return rows


def rate_of(call, values, images):
    """Images a second, of which each value has so many."""
    call(values[0])
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        call(values[calls % len(values)])
        calls += 1
    return calls * images / (time.perf_counter() - start)


def job(detector, photos, count, decoders):
    """Images a second of a job, what bounds it, and how many cores this process needs; nothing is written."""
    figures = Figures()
    return timed(run_in_threads(items_of(photos, count), detector, figures, decoders), count, figures)


def job_of_processes(model, devices, photos, count, decoders):
    """The same of a process for each of the devices, when all of them have begun, and how long that took."""
    figures = Seen()
    share = -(-decoders // len(devices))
    options = [Options(model, device, "auto", MAX_PIXELS, share) for device in devices]
    start = time.perf_counter()
    with contextlib.closing(run_in_processes(items_of(photos, ENDLESS), options, figures)) as results:
        while len(figures.processes) < len(devices):
            next(results)
        begun = time.perf_counter()
        while time.perf_counter() < begun + SETTLING:
            next(results)
        return *timed(results, count, figures), f"{begun - start:.0f}"


def items_of(photos, count):
    return (Item(str(at), Held(photos[at % len(photos)])) for at in range(count))


def timed(results, count, figures):
    start, begin, images = time.perf_counter(), time.process_time(), 0
    while images < count:
        images += number_of(next(results))
    seconds, bound = time.perf_counter() - start, figures.progress().bound
    cores = f"{(time.process_time() - begin) / seconds:.2f}"
    print(f"{images / seconds:.1f} images a second, bound by: {bound}; {cores} cores here", flush=True)
    return images / seconds, bound, cores


def by_nvjpeg(photos, device):
    """Images a second, of batches as large as the photographs are many."""
    encoded = [torch.frombuffer(bytearray(photo), dtype=torch.uint8) for photo in photos]

    def run(batch):
        decode_jpeg(batch, device=device)
        torch.cuda.synchronize()

    return rate_of(run, [encoded], DISTINCT)


@torch.no_grad()
def by_torchvision(photos, size, device):
    """Images a second."""
    network, _ = of_torchvision("maskrcnn_resnet50_fpn", size)
    network = network.to(device)
    batches = [photos[at : at + PEER_BATCH] for at in range(0, DISTINCT, PEER_BATCH)]

    def run(encoded):
        images = [torch.from_numpy(decode(photo)).to(device).permute(2, 0, 1) / 255 for photo in encoded]
        with torch.autocast(device.partition(":")[0], enabled=device != "cpu"):
            return [{name: each.cpu().numpy() for name, each in found.items()} for found in network(images)]

    return rate_of(run, batches, PEER_BATCH)


def overhead_of_engine(decoders):
    """By how much a job takes longer than its network, which waits, while all else is next to nothing."""
    network = _Waiting()
    start = time.perf_counter()
    job(network, [small_image()], WAITS * WAITED, decoders)
    return (time.perf_counter() - start) / (WAITS * network.seconds) - 1


def overhead_of_ray():
    """The same from the first result of a job on Ray to the last one; None where there is no Ray."""
    if find_spec("ray") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        for number in range(WAITS * WAITED):
            Path(folder, f"{number}.png").write_bytes(small_image())
        model = _WaitingModel(Path(folder), None, "auto", _Waiting.max_pixels, False)
        results = run_on_ray(folder, set(), model, Figures(), workers=1)
        next(results)
        start = time.perf_counter()
        images = sum(map(number_of, results))
        seconds = time.perf_counter() - start
    return seconds / (images / WAITED * model.detector().seconds) - 1


def small_image():
    """An image that is decoded in no time."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(file, "PNG")
    return file.getvalue()


class _Waiting:
    """A detector that computes nothing: as on a GPU, a batch takes its time from when it was begun, or from
    the end of the one before, whether anyone waits or not."""

    batch, max_pixels = WAITED, 64

    def __init__(self, seconds=WAIT):
        self.seconds, self._end = seconds, 0.0

    def prepare(self, image):
        return image, None

    def own_stream(self):
        return contextlib.nullcontext()

    def start_each(self, images, _ids):
        self._end = end = max(self._end, time.perf_counter()) + self.seconds

        def found():
            time.sleep(max(end - time.perf_counter(), 0.0))
            return images

        return found

    def start_finish(self, ids, _found, _placed):
        row = dict.fromkeys(detections_schema().names)
        return [partial(dict, row, image_id=image_id) for image_id in ids]


class _WaitingModel(Model):
    """What Ray's processes know of it."""

    chunk = 2 * WAITED

    def detector(self):
        return _Waiting(WAIT_ON_RAY)

    def prepared(self, image):
        return image, None


if __name__ == "__main__":
    main()
