"""The runner of benchmarks, and its report, which is that of the committed results."""

import re
import sys

import pytest

from tests.benchmarks import _report, run

ROOT = _report.RESULTS.parents[2]
NAMES = [path.stem.removeprefix("bench_") for path in (ROOT / "tests/benchmarks").glob("bench_*.py")]


def test_the_report_is_that_of_the_results():
    text = _report.compose(_report.results())
    assert _report.REPORT.read_text() == text, "run `python -m tests.benchmarks.run --compose`"
    assert _report.PICTURE.exists()


def test_the_picture_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(_report, "PICTURE", tmp_path / "picture.png")
    _report.draw([result for result in _report.results() if result.is_timed])
    assert _report.PICTURE.read_bytes().startswith(b"\x89PNG")


def test_every_benchmark_is_run():
    both = {"image_ops"}  # which runs two that are run by themselves
    assert {benchmark.name for benchmark in run.benchmarks("llvm")} == set(NAMES) - both


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


# --- the README quotes them


def numbers(text):
    """The numbers with a decimal point."""
    return re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text.replace(",", ""))


def test_the_readme_quotes_the_results():
    """Where a section of the README links to results, its figures are there, perhaps with more digits."""
    quoted = 0
    for section in re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        linked = set(re.findall(r"tests/benchmarks/results/[\w-]+\.md", section))
        results = "".join((ROOT / path).read_text() for path in linked)
        found = {float(number) for number in numbers(results)}
        prose = re.sub(r"```.*?```|`[^`]*`|CUDA [\d.]+", "", section, flags=re.DOTALL)  # code, and versions
        for number in numbers(prose) if linked else ():
            digits = len(number.split(".")[1])
            assert any(round(each, digits) == float(number) for each in found), f"{number}, in {linked}"
            quoted += 1
    assert quoted > 20
