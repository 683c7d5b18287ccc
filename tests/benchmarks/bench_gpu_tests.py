"""Run all tests that need a GPU, and keep what came of them: `python -m tests.benchmarks.bench_gpu_tests`.

CI has no GPU and skips these tests; this is the log that they pass on one. It is written only if they do.
"""

import argparse
import collections
import importlib.util
import sys

import pytest

from tests.benchmarks import _common as common
from topi_ext.bootstrap import tvm_in_use

TESTS = common.RESULTS.parents[1]
OUTCOMES = ("passed", "skipped", "failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1, help="run so many at once, by pytest-xdist")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a test may take")
    options = parser.parse_args()
    common.require_gpu()
    arguments = ["-m", "gpu", "--timeout", f"{options.timeout:g}", "--disable-warnings"]
    if options.processes > 1:
        if importlib.util.find_spec("xdist") is None:
            parser.error("--processes needs pytest-xdist: pip install pytest-xdist")
        arguments += ["--numprocesses", f"{options.processes}"]
    log = Log()
    status = pytest.main([*arguments, *files()], plugins=[log])
    if status:
        sys.exit(f"the tests ended with status {int(status)}: no result was written")
    text = [common.environment(common.copy_bandwidth(), times=None), "", log.as_text()]
    common.publish("gpu_tests", "Tests on a GPU", "\n".join(text))


def files():
    """The files with such tests for the TVM in use: to collect all others takes a minute and more packages.

    `collect_ignore` of tests/conftest.py does not hold for files that are named.
    """
    return sorted(
        str(path)
        for path in TESTS.rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text()
        and (path.relative_to(TESTS).parts[0] != "relax") == tvm_in_use.has_relay
    )


class Log:
    """A pytest plugin that counts outcomes, time and reasons of tests by the file they are in."""

    def __init__(self):
        self.counts = collections.defaultdict(collections.Counter)
        self.seconds = collections.Counter()
        self.reasons = collections.Counter()

    def pytest_runtest_logreport(self, report):
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        if report.when == "call" or not report.passed:  # a test may also be skipped or fail in its set-up
            self.counts[file][report.outcome] += 1
        if report.skipped:
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def as_text(self):
        """A table of files, and why tests were skipped."""
        rows = [self._row(file, self.counts[file], self.seconds[file]) for file in sorted(self.counts)]
        rows.append(
            self._row("all", sum(self.counts.values(), collections.Counter()), sum(self.seconds.values()))
        )
        skipped = [f"- {count} skipped: {reason}" for reason, count in sorted(self.reasons.items())]
        return "\n".join([common.markdown_table(["", *OUTCOMES, "seconds"], rows), "", *skipped])

    @staticmethod
    def _row(name, counts, seconds):
        return [name, *(f"{counts[outcome]}" for outcome in OUTCOMES), f"{seconds:.1f}"]


if __name__ == "__main__":
    main()
