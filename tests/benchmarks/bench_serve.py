"""Load `tvm-passes serve` with clients on this machine: `python -m tests.benchmarks.bench_serve`.

A small Mask R-CNN of random weights is compiled for this CPU, and served to `--clients` clients for
`--seconds`; then to more than may wait; then with a worker killed in the middle; and with clients that send
slowly, too much, or garbage. It fails if a request gets no answer. Clients take processor time, too.
"""

import argparse
import importlib.metadata
import os
import signal
import sys
import tempfile

import torch

import frontends
from tests.benchmarks import _clients
from tests.benchmarks import _common as common
from tests.benchmarks._photos import photos
from tests.models.zoo import tiny_mask_rcnn
from tests.serve.client import ask, metric, until
from tests.serve.processes import served
from topi_ext import cpu_target
from tvm_passes import detection_pipeline, runtime

from tvm import relay

SIZE, BATCH, DETECTIONS = (320, 448), 4, 20
PHOTO = 480, 640
QUEUED, TIMEOUT, MAX_BYTES = 128, 20, 2 * 2**20
NOTE = """
Latency is from the first byte that is sent to the last one of the answer, by the clients' clocks: 50, 95 and
99% of what was answered with 200, and 95% of what was answered with 503. A client sends its next image when
it has the answer to the last one, and waits as long as `Retry-After` says after a 503. Clients and service
share the cores. The killed worker is the only one: what it had, and what came until there was another, was
answered by the next one.
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--folder", help="a compiled detector, in place of the small one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.folder:
            compile_small(folder)
        limits = "--max-queued", QUEUED, "--timeout", TIMEOUT, "--max-bytes", MAX_BYTES
        with served(options.folder or folder, *limits) as service:
            cases, odd = measured(service, options.clients, options.seconds)
    rows = [row(name, *case) for name, case in cases.items()]
    header = ["", "answers", "200 a second", "50%, ms", "95%, ms", "99%, ms", "503: 95%, ms"]
    load = common.markdown_table(header, rows)
    others = [[who, str(outcome.status), f"{outcome.seconds:.2f}"] for who, outcome in odd.items()]
    answered = common.markdown_table(["a client that", "is answered", "after, s"], others)
    text = "\n".join([*facts(), "", load, NOTE, answered])
    common.publish("serve", "The service under load", text, common.cpu_name())
    outcomes = [outcome for found, _ in cases.values() for outcome in found] + list(odd.values())
    lost = sum(outcome.status == _clients.LOST for outcome in outcomes)
    sys.exit(f"{lost} requests got no answer" if lost else 0)


def row(name, outcomes, seconds):
    good = sum(outcome.status == 200 for outcome in outcomes)
    _, refused, _ = _clients.quantiles(outcomes, 503)
    return [
        name,
        _clients.by_status(outcomes),
        f"{good / seconds:.1f}",
        *_clients.quantiles(outcomes),
        refused,
    ]


def compile_small(folder):
    height, width = SIZE
    model = tiny_mask_rcnn(min_size=height, max_size=width, box_detections_per_img=DETECTIONS)
    mod, params = frontends.from_pytorch(model, torch.rand(BATCH, 3, height, width))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    target = str(cpu_target())
    mod = detection_pipeline(target, masks="raw")(mod)
    runtime.save(folder, runtime.build_library(mod, target), mod, target, {"model": "a small Mask R-CNN"})


def measured(service, clients, seconds):
    images = list(photos(16, *PHOTO))
    for image in images:
        assert ask(service.url, "/detect", image, "image/jpeg").status == 200

    def kill():
        (worker,) = service.replicas()
        os.kill(worker, signal.SIGKILL)

    crowds = {
        f"{clients} clients": (clients, seconds),
        f"{3 * clients} clients, more than may wait": (3 * clients, seconds / 2),
        f"{clients // 2} clients, a worker killed": (clients // 2, seconds / 2, kill),
    }
    cases = {}
    for name, (number, *how) in crowds.items():
        cases[name] = _clients.crowd(service.url, images, number, *how)
        until(lambda: metric(service.url, "tvm_passes_computing_requests") == 0, 2 * TIMEOUT)
    return cases, _clients.misbehaving(service.url, images[0], MAX_BYTES)


def facts():
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("ray", "torch", "uvicorn"))
    return [
        f"- CPU: {common.cpu_name()}, {len(os.sched_getaffinity(0))} threads",
        f"- Packages: {versions}",
        f"- Network: a small Mask R-CNN for {BATCH} images of {SIZE[0]}x{SIZE[1]}, {DETECTIONS} detections",
        f"- Images: JPEG, {PHOTO[0]}x{PHOTO[1]}; answers with masks",
        f"- Limits: {QUEUED} requests wait, {TIMEOUT} s, {MAX_BYTES} bytes",
    ]


if __name__ == "__main__":
    main()
