"""The runner of benchmarks, and its report, which is that of the committed results."""

import io
import json
import re
import sys
import time
from decimal import ROUND_HALF_UP, Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from pycocotools import mask as run_lengths

from tests.benchmarks import (
    _common,
    _int8_report,
    _models_on_cpu,
    _peers,
    _quotes,
    _report,
    bench_average_precision,
    bench_batch,
    bench_conv2d_nhwc,
    bench_gpu_tests,
    bench_int8,
    run,
)
from tests.benchmarks.timing import CLOCKS
from tests.helpers import ops
from tests.helpers import run as run_module
from tests.models.super_resolution import super_resolution_model
from tests.ops.convolutions import Case, options

import tvm

ROOT = _report.RESULTS.parents[2]
NAMES = [path.stem.removeprefix("bench_") for path in (ROOT / "tests/benchmarks").glob("bench_*.py")]


def test_the_report_is_that_of_the_results():
    text = _report.compose(_report.results())
    assert _report.REPORT.read_text() == text, "run `python -m tests.benchmarks.run --compose`"
    assert _report.IMAGE.exists()


@pytest.mark.parametrize("result", _report.results(), ids=lambda result: result.path.stem)
def test_a_result_names_its_commit_and_command(result):
    assert re.fullmatch("[0-9a-f]{7,}(-dirty)?", result.facts["Commit"])
    module = re.match("`python -m tests[.]([a-z0-9_.]+)( .*)?`$", result.facts["Command"])
    assert module and module[1] in {
        "batch.endure",
        "batch.match",
        *(f"benchmarks.bench_{name}" for name in NAMES),
    }


def test_a_report_says_how_it_was_made(monkeypatch, tmp_path):
    monkeypatch.setattr(_common, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_sort", "--target", "llvm -mcpu=native"])
    monkeypatch.setenv("COMMIT", "0123abc")
    path = _common.publish("sort", "Sorting", "- CPU: one\n\ntext", machine="A CPU")
    assert path == tmp_path / "sort-a-cpu.md"
    said = path.read_text()
    assert said.startswith("# Sorting\n\n- Commit: 0123abc\n- Command: `python -m ")
    assert "--target 'llvm -mcpu=native'`\n- Date: " in said and said.endswith("- CPU: one\n\ntext\n")


def test_the_image_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(_report, "IMAGE", tmp_path / "image.png")
    _report.draw([result for result in _report.results() if result.is_timed])
    assert _report.IMAGE.read_bytes().startswith(b"\x89PNG")


def test_every_benchmark_is_run():
    # The first runs two that are run by themselves, the second needs TVM 0.27.
    others = {"image_ops", "relax"}
    assert {benchmark.name for benchmark in run.benchmarks("llvm")} == set(NAMES) - others


def test_a_first_convolution_is_timed_in_pairs():
    case = Case((6, 8), 3, 8, kernel=(7, 7), **options(padding=3, strides=2, activation="relu"))
    arrays = {name: array.astype(case.dtype) for name, array in case.arrays().items()}
    as_it_is, in_pairs = map(tvm.IRModule.from_expr, bench_conv2d_nhwc.stem_functions(case, arrays))
    four_channels = np.pad(arrays["data"], [(0, 0)] * 3 + [(0, 1)])
    (expected,), (found,) = run_module(as_it_is, arrays["data"]), run_module(in_pairs, four_channels)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
    assert ops(in_pairs) == ["reshape", "topi_ext.conv2d_nhwc"] and ops(as_it_is) == ops(in_pairs)[1:]


def test_the_log_of_tests_on_a_gpu():
    def report(file, outcome, when="call", seconds=1.0, reason=None):
        skipped = outcome == "skipped"
        return SimpleNamespace(
            nodeid=f"{file}::test",
            outcome=outcome,
            when=when,
            duration=seconds,
            passed=outcome == "passed",
            skipped=skipped,
            longrepr=("path", 1, f"Skipped: {reason}") if skipped else None,
        )

    log = bench_gpu_tests.Log()
    log.pytest_runtest_logreport(report("tests/a.py", "passed", "setup", 0.5))
    log.pytest_runtest_logreport(report("tests/a.py", "passed"))
    log.pytest_runtest_logreport(report("tests/b.py", "skipped", "setup", 0.25, "needs two GPUs"))
    log.pytest_runtest_logreport(report("tests/b.py", "failed", "teardown"))
    text = log.as_text()
    rows = [_quotes.split(line) for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["", "passed", "skipped", "failed", "seconds"]
    assert rows[2:] == [
        ["tests/a.py", "1", "0", "0", "1.5"],
        ["tests/b.py", "0", "1", "1", "1.2"],
        ["all", "1", "1", "1", "2.8"],
    ]
    assert text.endswith("- 1 skipped: needs two GPUs")


def test_what_a_result_says(tmp_path):
    path = tmp_path / "some.md"
    path.write_text(
        "# Some title\n\n- GPU: one\n- Times: ms\n\n| | n |\n|---|--:|\n| x | 1 |\n\nNote.\n\n"
        "| case | ours | peer / ours |\n|---|--:|--:|\n| a | 1.0 | 2.0 |\n| b | - | 0.5 |\n| c | - | - |\n"
    )
    result = _report.Result.read(path)
    assert (result.title, result.machine, result.peer) == ("Some title", "one", "peer")
    assert result.ratios == [2.0, 0.5]


def test_a_result_without_times_is_reported_too(tmp_path):
    path = tmp_path / "some.md"
    path.write_text("# What is found\n\n- GPU: one\n\n| | share |\n|---|--:|\n| x | 0.5 |\n")
    result = _report.Result.read(path)
    assert not result.is_timed and result.rows == [["x", "0.5"]]
    assert "| x |   0.5 |" in _report.compose([result])


@pytest.mark.parametrize(
    "code, outcome",
    [("", "done in"), ("exit(3)", "failed with status 3"), ("while True: pass", "more than 0.01")],
)
def test_outcomes(code, outcome):
    assert outcome in run.run([sys.executable, "-c", code], minutes=0.01)


def test_one_that_fails_does_not_stop_the_others(monkeypatch, capfd):
    class Fake(run.Benchmark):
        def command(self, _has_gpu):
            return [sys.executable, "-c", f"print('{self.name} runs'); exit({self.name == 'bad':d})"]

    fakes = [Fake("bad", on_cpu=()), Fake("good", on_cpu=()), Fake("odd", modules=("no_such_module",))]
    monkeypatch.setattr(run, "benchmarks", lambda _target: fakes)
    monkeypatch.setattr(_report, "write", lambda: "report")
    assert run.main([]) == 1
    said = capfd.readouterr().out
    assert "good runs" in said and "needs no_such_module" in said
    assert re.search(r"bad *│ failed with status 1", said) and re.search(r"good *│ done in", said)
    assert run.main(["--only", "good"]) == 0


# --- whole networks on a CPU


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    network = super_resolution_model("espcn", scale=2)
    pixels = torch.rand(1, 1, 8, 12, generator=torch.Generator().manual_seed(0))
    return _peers.Case(network, [pixels], "llvm", tmp_path_factory.mktemp("peers"), "subpixel")


def row_of(name="ESPCN x4, 180x320", ours=2.0, peer=3.0, **others):
    peak = dict.fromkeys(CLOCKS, 1e9)
    ms = {clock: {who: ms for who, ms in (("ours", ours), ("torch", peer)) if ms} for clock in CLOCKS}
    return _models_on_cpu.Row(name, 1, 0, 10**6, peak, ms, **others)


def test_peers_compute_the_same(case):
    row, names = row_of(), ["torch", "torch channels_last", "ONNX Runtime"]
    assert list(_models_on_cpu.ready(names, case, row, seconds=60)) == names
    assert list(row.off) == names and all(row.is_same.values())
    row.off["torch channels_last"] = 0.1
    assert [who for who, is_same in row.is_same.items() if not is_same] == ["torch channels_last"]


def test_operations_are_counted(case):
    pixels, channels = 8 * 12, 25 * 64 + 9 * 64 * 32 + 9 * 32 * 4
    assert _models_on_cpu.operations_of(case) == 2 * pixels * channels


def test_a_peer_that_fails_has_a_reason(case, monkeypatch):
    def absent(_case):
        import no_such_package  # noqa: F401

    def slow(_case):
        time.sleep(60)

    for who in (absent, slow):
        monkeypatch.setitem(_peers.RUNNERS, who.__name__, who)
    row = row_of()
    assert not _models_on_cpu.ready(["absent"], case, row, seconds=60)
    assert not _models_on_cpu.ready(["slow"], case, row, seconds=1)
    assert row.reasons == {
        "absent": "`pip install no_such_package` gets it",
        "slow": "TimeoutError: not ready in 1 s",
    }


def test_a_row_for_each_network():
    rows = [row_of(), row_of("YOLOv8n, 640x640", 2.0, 8.0), row_of("RT-DETR R50, 640x640", None)]
    rows[0].off, rows[0].reasons = {"ours": 0.1, "torch": 0.0}, {"OpenVINO": "none"}
    text = _models_on_cpu.report(rows, "float32")
    table = [_quotes.split(line) for line in text.splitlines() if line.startswith("|")]
    assert table[0] == ["", "ours", "torch", "OpenVINO", "best peer / ours", "floor"]
    assert [row[1:] for row in table[2:5]] == [
        ["2.0", "3.0", "-", "1.50", "1.0"],
        ["2.0", "8.0", "-", "4.00", "1.0"],
        ["-", "3.0", "-", "-", "1.0"],
    ]
    assert "mean of best peer / ours is 2.45. The floor is at 1 GFLOP/s." in text
    assert "- ESPCN x4, 180x320: OpenVINO is left out: none\n" in text
    assert "- ESPCN x4, 180x320: ours is off by 0.1," in text


# --- networks in int8


@pytest.mark.slow
def test_a_network_in_int8_is_timed_on_any_machine(tmp_path, monkeypatch):
    """From its training to the report, in which the layers are those of the network."""
    monkeypatch.setattr(bench_int8, "SECONDS", 0.1)
    (which,) = bench_int8.chosen(bench_int8.parser().parse_args(["--small", "--only", "Sub"]))
    name, batch = which.split(": ")
    options = ["--small", "--kept", str(tmp_path), "--to", str(tmp_path / "row.json"), "--modes", "eager"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    bench_int8.main([*options, "--one", which])
    row = json.loads((tmp_path / "row.json").read_text())
    assert {"int8", "float16", "torch, eager"} == set(row["figures"]) and int(batch) == row["batch"]
    assert row["reasons"] == ["it is the first convolution, which reads the image"]
    qualities = [row["figures"][dtype][_int8_report.QUALITY] for dtype in _int8_report.OURS]
    assert 15 < qualities[0] < qualities[1]
    text = _int8_report.report([{"name": name, **row}], bandwidth=1e10)
    cells = {line[0]: line for line in map(_quotes.split, text.splitlines()) if len(line) == 9}
    assert (
        cells["1x12x16x16, 16x3x3x16"][1:3] == ["4", "4"]
        and cells["all"][1] == f"{len(row['steps']['int8'])}"
    )
    assert cells["1x12x16x3, 16x3x3x3"][1:3] == ["1", "0"]


def row_in_int8(name, batch, int8, float16, **figures):
    found = {_int8_report.THROUGHPUT: int8, _int8_report.LATENCY: 2e3 / int8, **figures}
    return {
        "name": name,
        "batch": batch,
        "candidates": 4000,
        "figures": {
            "int8": found,
            "float16": {_int8_report.THROUGHPUT: float16, _int8_report.LATENCY: 2e3 / float16},
        },
    }


def test_bars_are_reached_or_missed():
    best = [row_in_int8(_int8_report.RETINANET, batch, 700 * batch, 400 * batch) for batch in (1, 2)]
    rows = [*best, row_in_int8(_int8_report.EDSR, 1, 300, 220, **{_int8_report.QUALITY: 46.0})]
    cells = [_quotes.split(line)[1:] for line in _int8_report.bars(rows).splitlines()[2:]]
    assert cells[:4] == [
        ["1,000", "1,924", "1,400.00", "bar"],
        ["600", "900", "800.00", "bar"],
        ["1.9", "1.5", "2.86", "no"],
        ["1,000", "1,400", "-", "-"],
    ]
    assert _int8_report.missed(rows) == [
        f"{_int8_report.RETINANET} has 2.86 p90, ms in int8, not 1.9",
        f"{_int8_report.EDSR} has 1.36 times float16 in int8, not 1.5",
    ]
    rows[0]["candidates"] = 12
    assert "gets 12 boxes, not 1000" in _int8_report.missed(rows)[-1]


# --- average precision


def found_in(example, **others):
    return {"boxes": example.boxes, "labels": example.labels, "masks": example.masks, **others}


def test_average_precision_is_that_of_pycocotools():
    """All are found, or the same with a wrong class for one half, or boxes that are too small, or nothing."""
    args = bench_average_precision.parser().parse_args(["--small", "--images", "4"])
    task, answers = bench_average_precision.Shapes(args), {"all": 1.0, "half": 1.0, "small": 0.7, "none": 1.0}

    def finder(name):
        examples = iter(list(task.examples()))

        def find(_image):
            example = next(examples)
            each = found_in(example, scores=torch.ones(len(example.boxes)))
            middles = (each["boxes"][:, :2] + each["boxes"][:, 2:]).repeat(1, 2) / 2
            each["boxes"] = middles.lerp(each["boxes"], answers[name])
            if name == "half":
                each["labels"] = each["labels"].where(torch.arange(len(each["labels"])) % 2 == 0, 0)
            return each if name != "none" else {key: value[:0] for key, value in each.items()}

        return find

    found = bench_average_precision.average_precisions(task, {name: finder(name) for name in answers})
    assert found["all"]["bbox"] == found["all"]["segm"] == found["small"]["segm"] == pytest.approx(100)
    assert 30 < found["half"]["segm"] < 70 and found["small"]["bbox"] < 20
    assert found["none"] == {"bbox": 0}


@pytest.mark.parametrize("count", [0, 1, 9])
def test_run_lengths_are_those_of_pycocotools(count):
    masks = torch.rand(count, 1, 5, 7, generator=torch.Generator().manual_seed(count)) ** 0.5
    masks[1:2], masks[2:3] = 0.0, 1.0
    inside = (masks[:, 0] > 0.5).to(torch.uint8)
    wanted = run_lengths.encode(np.asfortranarray(inside.permute(1, 2, 0))) if count else []
    assert bench_average_precision.encoded(masks) == bench_average_precision.encoded(inside) == wanted


def test_what_loses_too_much_is_missed():
    exact, half, rounded = (
        {"bbox": 50.0, "segm": 40.0},
        {"bbox": 49.7, "segm": 40.1},
        {"bbox": 49.5, "segm": 39.9},
    )
    who = bench_average_precision.EXACT, bench_average_precision.OURS_HALF, bench_average_precision.OURS_INT8
    rows = [["net", *each] for each in zip(who, (exact, half, rounded))]
    assert bench_average_precision.missed(rows) == ["net in ours, int8 loses 0.50 of box AP, not 0.4"]
    last = _quotes.split(bench_average_precision.table(rows).splitlines()[-1])
    assert last == ["net", "ours, int8", "49.50", "39.90", "0.50", "0.10"]


def test_annotations_of_coco_are_scaled_with_their_images(tmp_path):
    (tmp_path / "val2017").mkdir()
    (tmp_path / "annotations").mkdir()
    files = [{"id": number, "file_name": f"{number}.png", "height": 50, "width": 40} for number in (3, 4)]
    for each in files:
        pixels = torch.zeros(3, 50, 40, dtype=torch.uint8)
        pixels[:, 20:30, 10:30] = 255
        torchvision.io.write_png(pixels, str(tmp_path / "val2017" / each["file_name"]))
    corners = [[10, 20, 30, 20, 30, 30, 10, 30]]
    shape = {"bbox": [10, 20, 20, 10], "segmentation": corners, "area": 200, "iscrowd": 0, "category_id": 17}
    dataset = {
        "images": files,
        "annotations": [{"id": 1, "image_id": 3, **shape}],
        "categories": [{"id": 17}],
    }
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(dataset))
    task = bench_average_precision.Photographs(tmp_path, count=1)
    (example,) = task.examples()
    assert example.image.shape == (3, 800, 1333) and example.labels.tolist() == [17]
    assert example.boxes.tolist() == [[160, 320, 480, 480]]
    assert torchvision.ops.masks_to_boxes(example.masks).sub(example.boxes).abs().max() <= 16
    assert example.image[:, 330:470, 170:470].min() > 0.99 and len(task.seen()) == 1
    with pytest.raises(SystemExit, match="must leave some to calibrate with"):
        bench_average_precision.Photographs(tmp_path, count=2)


@pytest.mark.slow
def test_a_detector_is_evaluated_on_any_machine(tmp_path, capfd):
    options = ["--small", "--images", "3", "--training", "60", "--steps", "2", "--kept", str(tmp_path)]
    bench_average_precision.main([*options, "--only", "RetinaNet"])
    said = capfd.readouterr().out
    assert "trained for 2 steps" in said and len(list(tmp_path.glob("retinanet-tiny.*"))) == 4
    rows = [_quotes.split(line) for line in said.splitlines() if line.startswith("| RetinaNet")]
    who = [row[1] for row in rows if row[1] != "torch, autocast"]  # which only a GPU has
    assert who == ["torch, float32", "ours, float16", "ours, int8"]


# --- the README and the guides quote them

PAGES = [ROOT / "README.md", ROOT / "docs/relax.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
IN_PROSE = r"(?<![\w.])(?:\d+\.\d+(?![\w.])|\d[\d,]*(?= (?:ms|milliseconds|times)\b))"
IN_CELL = rf"^\W*\d[\d,]*(?:\.\d+)?(?![\w.])|{IN_PROSE}"
# "CUDA 12.8", "torch 2.1.2, 2.6 and 2.11"
VERSIONS = re.compile(
    r"\b(?:CUDA|Python|TVM|nvcc|onnx|torch|torchvision|OpenCV|version|from)"
    r" \d+(?:\.\d+)+(?:(?:,| and|, and| to) \d+(?:\.\d+)*)*"
)


def quotes_of(text):
    """[(line, its figures)] of a page: of a row of a table, behind its first cell, or of a paragraph.

    A figure is a number with a point, one of milliseconds or times, or one that a cell begins with.
    """
    found = []
    for paragraph in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n"):
        if paragraph.startswith("|"):
            for first, *rest in map(_quotes.split, paragraph.splitlines()[2:]):
                found.append((first, [each for cell in rest for each in re.findall(IN_CELL, _bare(cell))]))
        else:
            line = " ".join(paragraph.split())
            found.append((line, re.findall(IN_PROSE, _bare(line))))
    return [(line, figures) for line, figures in found if figures]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_figures_are_those_of_the_results(page):
    """Each is the value of its own cell, rounded to its digits, and no figure is without a source."""
    sources = dict(_quotes.QUOTES.get(str(page.relative_to(ROOT)), {}))
    for line, figures in quotes_of(page.read_text(encoding="utf-8")):
        names = [name for name in sources if name in line.split("|")[0]]
        # Of the names in a line the longest is meant: "H200" is in "[H200]" too.
        assert names, f"nothing says where {figures} is from: {line}"
        cells = sources.pop(max(names, key=len))
        if cells is None:
            continue
        assert len(figures) == len(cells), f"{line}: {figures} from {cells}"
        for figure, cell in zip(figures, cells):
            figure = re.sub(r"[^\d.]", "", figure)
            _, _, digits = figure.partition(".")
            assert figure == f"{_rounded(cell.value, len(digits))}", f"{line}: {cell}"
    assert not sources, "these are quoted nowhere"


def test_a_wrong_figure_is_found():
    value = _rounded(_quotes.POOLED[0].value, 3)
    wrong = f"{float(value) + 0.001:.3f}"
    assert quotes_of(f"| | here |\n|---|---|\n| regions | {wrong}, float16 |") == [("regions", [wrong])]
    assert wrong != f"{value}"
    line = "It takes 0.149 ms, or 3 times as long, with CUDA 12.8 and torch 2.4, 2.6 and 2.11."
    assert quotes_of(line) == [(line, ["0.149", "3"])]


def test_regions_are_compared_with_the_fastest_peer():
    """Of all layouts and types in which torchvision pools the same regions."""
    _, peer = _quotes.POOLED[:2]
    header, _, *rows = _quotes.tables(peer.file)[peer.table]
    same = [row for row in rows if row[0].startswith("1000 x 7x7")]
    assert peer.value == min(float(row[header.index(peer.column)]) for row in same)


def _bare(text):
    """Without code, the targets of links, and versions."""
    return VERSIONS.sub("", re.sub(r"`[^`]*`|\]\([^)]*\)", "", text))


def _rounded(value, digits):
    """Half away from zero: 25.796 is 25.80."""
    return Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


@pytest.mark.parametrize("engine", ["the engine", "Ray"])
def test_the_overhead_of_an_engine(engine, monkeypatch):
    if engine == "Ray":
        pytest.importorskip("ray")
    monkeypatch.setattr(bench_batch, "WAITS", 8)
    found = bench_batch.overhead_of_ray() if engine == "Ray" else bench_batch.overhead_of_engine(1)
    assert -1 < found < 1000  # how much, only a machine with nothing else to do can say
