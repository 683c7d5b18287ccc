"""The command, run in this process."""

from typing import NamedTuple

import pytest

from tvm_passes_cli.main import main


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def error(self):
        """The one line that says what went wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("tvm-passes")]
        assert len(lines) == 1 and self.err.rstrip().endswith(lines[0]), self.err
        return lines[0]


@pytest.fixture
def tvm_passes_command(capfd, monkeypatch):
    """A function that runs `tvm-passes` with its arguments; lines are long enough not to be wrapped."""
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        return Answer(status, *capfd.readouterr())

    return run
