"""The service as a user starts it, `tvm-passes serve`, and the processes that it starts."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

SECONDS = 60  # to end
ROOT = Path(__file__).resolve().parents[2]


class Process:
    """`url` is where the service is."""

    def __init__(self, folder, *options):
        command = [
            sys.executable,
            "-m",
            "tvm_passes",
            "serve",
            str(folder),
            "--port",
            "0",
            *map(str, options),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "250"}
        # A group of its own, as that of a command in a terminal, which Ctrl-C is sent to.
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        self.pid = self._process.pid
        self.said = []
        for line in self._process.stderr:
            self.said.append(line)
            found = re.search(r"Serving .* at (http://[\d.:]+/)", line)
            if found:
                self.url = found.group(1)
                return
        raise AssertionError(f"it ended: {''.join(self.said)}")

    def replicas(self):
        """The processes that compute."""
        return [pid for pid in descendants(self.pid) if "ServeReplica" in command_of(pid)]

    def interrupt(self):
        """Ctrl-C; the exit status."""
        os.killpg(self.pid, signal.SIGINT)
        self.said += self._process.communicate(timeout=SECONDS)[1].splitlines(keepends=True)
        return self._process.returncode


@contextlib.contextmanager
def served(folder, *options):
    process = Process(folder, *options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.interrupt()


def descendants(pid):
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, last = set(), {pid}
    while last:
        last = {child for child, parent in parents.items() if parent in last} - found
        found |= last
    return found


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
