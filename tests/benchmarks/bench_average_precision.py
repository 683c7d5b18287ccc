"""Measure what average precision detectors lose in float16 and int8.

`python -m tests.benchmarks.bench_average_precision` trains each network to find drawn shapes, which are faint
and in noise, and has pycocotools evaluate it on others. `--coco FOLDER` evaluates torchvision's weights on
COCO's images instead: the folder has `val2017` and `annotations/instances_val2017.json`. Each network is
trained and evaluated in a process of its own, all at once.

Before anything is compiled, the network in float32 must have an average precision from 30 to 70: at 70 and
above shapes are too easy to show a loss, so lower `--opacity`; below 30, raise it, or train for longer. The
benchmark fails, too, if int8 or float16 loses more than it may. With `--kept`, weights and calibrations are
used again. `--small` has tiny networks, on the CPU if there is no GPU, and writes no result.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
from pycocotools import mask as run_lengths
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.benchmarks import _common as common
from tests.benchmarks._detector import Notes, autocast
from tests.benchmarks._quantized import calibrated, compiled, made_once
from tests.models.shapes import drawn, train_on_shapes
from tests.models.zoo import detection_model, tiny_detector, tiny_mask_rcnn
from tests.zoo.outcome import imported
from tvm_passes.batch.image_input import ImageInput
from tvm_passes.batch.letterbox import fitted

EXACT, HALF, OURS_HALF, OURS_INT8 = "torch, float32", "torch, autocast", "ours, float16", "ours, int8"
MAY_LOSE = {"bbox": 0.4, "segm": 0.2}  # points of average precision
TELLING = 30, 70  # between these, a network is far from both of its limits
COUNTS = 6, 12, 40  # shapes in an image
SEEN = 24  # images to calibrate with
CLASSES = 21  # of shapes, and the background
NETWORKS = {"Mask R-CNN R50": "maskrcnn_resnet50_fpn", "RetinaNet R50": "retinanet_resnet50_fpn"}
SMALL = {"Mask R-CNN, tiny": tiny_mask_rcnn, "RetinaNet, tiny": tiny_detector}
KINDS = {"bbox": "box AP", "segm": "mask AP"}

TEXT = """Average precision in percent, by pycocotools: COCO's mean over IoUs from 0.5 to 0.95, of at most 100
detections an image. All have the same weights and the same images; torch's float32 is exact, without TF32.
Lost: how much less than torch in float32."""


def main(arguments=None):
    args = parser().parse_args(arguments)
    warnings.simplefilter("ignore")
    if not args.small:
        common.require_gpu()
    task = Photographs(args.coco, args.images) if args.coco else Shapes(args)
    if args.one:
        args.to.write_text(json.dumps(evaluated(args.one, task, args.kept, args, Notes())))
        return
    names = [name for name in (SMALL if args.small else NETWORKS) if is_wanted(name, args.only)]
    with tempfile.TemporaryDirectory() as folder:
        kept = args.kept or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        rows = evaluated_apart(names, kept, sys.argv[1:] if arguments is None else arguments)
    if not rows:
        sys.exit("None of these networks could be evaluated.")
    text = f"{TEXT}\n{task.text}\n\n{table(rows)}"
    if args.small:
        print(text)
        return
    facts = [common.environment(common.copy_bandwidth(), times=None)]
    facts += [f"- torchvision: {torchvision.__version__}", f"- Images: {args.images}"]
    common.publish("average_precision", "Average precision in int8", "\n".join([*facts, "", text]))
    not_evaluated = [name for name in names if name not in {row[0] for row in rows}]
    faults = [*missed(rows), *(f"{name} could not be evaluated" for name in not_evaluated)]
    if faults:
        sys.exit(f"Missed: {'; '.join(faults)}")


def is_wanted(name, only):
    return not only or any(text in name for text in only)


def evaluated_apart(names, kept, arguments):
    """The rows of these networks, each evaluated by a process of its own; none of those that fail."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_average_precision", *arguments]
    command += ["--kept", str(kept)]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{at}.json" for at, name in enumerate(names)}
        processes = [
            subprocess.Popen([*command, "--one", name, "--to", str(to)]) for name, to in files.items()
        ]
        done = [to for process, to in zip(processes, files.values()) if process.wait() == 0]
        return [row for to in done for row in json.loads(to.read_text())]


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="networks with this in their name")
    parser.add_argument("--images", type=int, default=500, help="to evaluate on; %(default)s")
    parser.add_argument("--kept", type=Path, help="where weights and calibrations are kept, or are already")
    parser.add_argument("--small", action="store_true", help="tiny networks, on any machine")
    parser.add_argument("--coco", type=Path, help="evaluate torchvision's weights on COCO in this folder")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    shapes = parser.add_argument_group("of drawn shapes")
    shapes.add_argument("--training", type=float, default=130, help="seconds for each; %(default)s")
    shapes.add_argument("--steps", type=int, help="of the training, if fewer: repeats one that took as many")
    shapes.add_argument("--opacity", type=float, default=0.4, help="of shapes; %(default)s")
    shapes.add_argument("--noise", type=float, default=0.2, help="added to pixels; %(default)s")
    return parser


# --- what is to be found


@dataclass
class Example:
    """An image, and what is to be found there: torchvision's targets, and which of them are crowds."""

    image: torch.Tensor
    boxes: torch.Tensor
    labels: torch.Tensor
    masks: torch.Tensor
    crowd: tuple = ()


class Shapes:
    """Drawn ones; other seeds have those to train and to calibrate with."""

    def __init__(self, args):
        self.args, self.count = args, args.images
        self.size = (64, 96) if args.small else (480, 800)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.look = {"opacity": args.opacity, "noise": args.noise}
        self.text = (
            f"The images are of drawn shapes, {self.size[0]}x{self.size[1]}, which are to {args.opacity:.0%} "
            f"opaque, with noise up to {args.noise:g}: `tests/models/shapes.py`."
        )

    def network(self, name, kept):
        options = {"min_size": self.size[0], "max_size": self.size[1]}
        if self.args.small:
            network = SMALL[name](classes=CLASSES, **options)
        else:
            network = detection_model(NETWORKS[name], num_classes=CLASSES, **options)

        def train(path):
            args = self.args
            train_on_shapes(network.to(self.device), args.training, self.size, args.steps, **self.look)
            torch.save(network.state_dict(), path)

        path = made_once(kept / f"{common.slug(name)}.pt", train)
        network.load_state_dict(torch.load(path, map_location=self.device, weights_only=True))
        return network.to(self.device)

    def examples(self):
        for number in range(self.count):
            image, target = drawn(
                *self.size, COUNTS[number % len(COUNTS)], 10**8 + number, self.device, **self.look
            )
            yield Example(image, **target)

    def seen(self):
        seeds = range(2 * 10**8, 2 * 10**8 + SEEN)
        return [drawn(*self.size, COUNTS[seed % len(COUNTS)], seed, **self.look)[0] for seed in seeds]


class Photographs:
    """Those of COCO, each scaled into the input as `tvm_passes.batch` does it, and its annotations with it.

    torchvision scales to a width of 1333 or a height of 800, whichever is smaller, so those upright are
    smaller here; all networks get the same.
    """

    size = 800, 1333
    text = (
        "The images are those of COCO's validation of 2017, scaled into 800x1333; weights are torchvision's."
    )

    def __init__(self, folder, count):
        self.folder, self.count = folder, count
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        with contextlib.redirect_stdout(io.StringIO()):
            self.coco = COCO(str(folder / "annotations" / "instances_val2017.json"))
        self.numbers = sorted(self.coco.getImgIds())
        if len(self.numbers) <= count:
            sys.exit(f"{folder} has {len(self.numbers)} images: --images must leave some to calibrate with")

    def network(self, name, _kept):
        build = getattr(torchvision.models.detection, NETWORKS[name])
        network = build(weights="DEFAULT", min_size=self.size[0], max_size=self.size[1])
        return network.eval().to(self.device)

    def examples(self):
        return map(self.example, self.numbers[: self.count])

    def seen(self):
        return [self._fitted(number)[0] for number in self.numbers[self.count :][:SEEN]]

    def example(self, number):
        image, placed = self._fitted(number)
        found = self.coco.loadAnns(self.coco.getAnnIds(imgIds=number))
        masks = torch.zeros(len(found), *self.size, dtype=torch.uint8)
        height, width = placed.resized
        for mask, each in zip(masks, found):
            whole = torch.from_numpy(self.coco.annToMask(each))[None, None]
            mask[:height, :width] = torch.nn.functional.interpolate(whole, placed.resized)[0, 0]
        boxes = torch.tensor([each["bbox"] for each in found], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        boxes /= torch.tensor(placed.factor * 2)
        labels = torch.tensor([each["category_id"] for each in found], dtype=torch.int64)
        return Example(image.to(self.device), boxes, labels, masks, tuple(each["iscrowd"] for each in found))

    def _fitted(self, number):
        path = self.folder / "val2017" / self.coco.loadImgs(number)[0]["file_name"]
        pixels = torchvision.io.read_image(str(path), torchvision.io.ImageReadMode.RGB)
        return fitted(pixels.permute(1, 2, 0), ImageInput(*self.size, 3, "CHW", "float32"), "RGB")


# --- what is found


def evaluated(name, task, kept, args, note):
    """A row for each precision: [network, precision, {kind: average precision}]."""
    network = task.network(name, kept)
    note(f"{name} is trained")
    finders = {EXACT: exactly(lambda image: network([image])[0])}
    if task.device == "cuda":
        finders[HALF] = autocast(lambda image: network([image])[0])
    if not (args.small or args.coco):
        first = average_precisions(task, {EXACT: finders[EXACT]}, most=100)[EXACT]["bbox"]
        note(f"{name} has a box AP of {first:.1f} in float32, on 100 images")
        if not TELLING[0] <= first <= TELLING[1]:
            sys.exit(f"{name} has {first:.1f}, which is not from {TELLING[0]} to {TELLING[1]}: see --help")
    mod = imported(network.cpu(), [torch.zeros(3, *task.size)])
    network.to(task.device)
    calibration = calibrated(mod, task.seen(), kept / f"{common.slug(name)}.json")
    note(f"{name} is calibrated")
    finders[OURS_HALF] = compiled(mod, "float16")[0]
    finders[OURS_INT8] = compiled(mod, "int8", calibration)[0]
    note(f"{name} is compiled")
    found = average_precisions(task, finders)
    note(f"{name} is evaluated: {found}")
    return [[name, who, of_it] for who, of_it in found.items()]


def exactly(find):
    def run(image):
        with common.float32_convolutions():
            return find(image)

    return run


def average_precisions(task, finders, most=None):
    """{finder: {kind: average precision, in percent}}"""
    truth, found = {"images": [], "annotations": [], "categories": []}, {who: [] for who in finders}
    labels = set()
    for number, example in enumerate(task.examples(), 1):
        height, width = task.size
        truth["images"].append({"id": number, "height": height, "width": width})
        truth["annotations"] += annotations(number, vars(example))
        labels.update(example.labels.tolist())
        with torch.no_grad():
            for who, find in finders.items():
                found[who] += annotations(number, find(example.image))
        if number == most:
            break
    for number, each in enumerate(truth["annotations"], 1):
        each["id"] = number
    truth["categories"] = [{"id": label, "name": f"{label}"} for label in sorted(labels)]
    return {who: by_pycocotools(truth, each) for who, each in found.items()}


def annotations(number, found):
    """What is found, or to be found, in an image, as pycocotools wants to be told it."""
    boxes = found["boxes"].double().cpu().numpy()
    columns = {name: found[name].tolist() for name in ("labels", "scores") if name in found}
    crowd = found.get("crowd") or (0,) * len(boxes)
    segments = encoded(found["masks"]) if "masks" in found else [None] * len(boxes)
    result = []
    for index, (left, top, right, bottom) in enumerate(boxes):
        each = {
            "image_id": number,
            "category_id": columns["labels"][index],
            "bbox": [left, top, right - left, bottom - top],
            "area": (right - left) * (bottom - top),
            "iscrowd": crowd[index],
        }
        if "scores" in columns:
            each["score"] = columns["scores"][index]
        if segments[index] is not None:
            each["segmentation"] = segments[index]
        result.append(each)
    return result


def encoded(masks):
    """Run lengths of masks (N, H, W), or probabilities (N, 1, H, W), of which more than 0.5 is inside.

    They are counted where the masks are: to copy these takes longer than to find them.
    """
    inside = masks[:, 0] > 0.5 if masks.dim() == 4 else masks > 0
    height, width = inside.shape[1:]
    down_columns = torch.nn.functional.pad(inside.transpose(1, 2).flatten(1), (1, 0))
    which, places = (down_columns[:, 1:] != down_columns[:, :-1]).nonzero().cpu().unbind(1)
    last = torch.tensor([height * width])
    runs = [
        {
            "size": [height, width],
            "counts": torch.diff(each, prepend=torch.tensor([0]), append=last).tolist(),
        }
        for each in places.split(torch.bincount(which, minlength=len(inside)).tolist())
    ]
    return run_lengths.frPyObjects(runs, height, width) if runs else []


def by_pycocotools(truth, found):
    """{kind: average precision}: of boxes, and of masks where there are some."""
    kinds = [kind for kind in KINDS if kind == "bbox" or any("segmentation" in each for each in found)]
    if not found:
        return dict.fromkeys(kinds, 0.0)
    with contextlib.redirect_stdout(io.StringIO()):
        of_truth = COCO()
        of_truth.dataset = truth
        of_truth.createIndex()
        of_found = of_truth.loadRes([dict(each) for each in found])
        result = {}
        for kind in kinds:
            evaluation = COCOeval(of_truth, of_found, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            result[kind] = 100 * float(evaluation.stats[0])
    return result


# --- the report


def table(rows):
    exact = {name: of_it for name, who, of_it in rows if who == EXACT}
    header = ["", "in", *KINDS.values(), *(f"{kind} lost" for kind in KINDS.values())]
    cells = []
    for name, who, of_it in rows:
        lost = [f"{exact[name][kind] - of_it[kind]:.2f}" if kind in of_it else "" for kind in KINDS]
        found = [f"{of_it[kind]:.2f}" if kind in of_it else "" for kind in KINDS]
        cells.append([name, who, *found, *lost])
    return common.markdown_table(header, cells)


def missed(rows):
    """What loses more than it may."""
    exact = {name: of_it for name, who, of_it in rows if who == EXACT}
    return [
        f"{name} in {who} loses {exact[name][kind] - value:.2f} of {KINDS[kind]}, not {MAY_LOSE[kind]}"
        for name, who, of_it in rows
        if who in (OURS_HALF, OURS_INT8)
        for kind, value in of_it.items()
        if exact[name][kind] - value > MAY_LOSE[kind]
    ]


if __name__ == "__main__":
    main()
