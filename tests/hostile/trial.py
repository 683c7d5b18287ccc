"""What one file goes through, in a process of its own: import, the default pipeline, LLVM, a run."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from frontends import ImportFailure, from_onnx
from tests.conformance.isolated import leave_to_the_parent
from tvm_passes import default_pipeline, runtime

import tvm

SECONDS = 20.0  # of the processor, to import; a compilation and a run have as many each
PATIENCE = 6  # times as long by the clock, on a machine that does other things too
BYTES = 2 << 30  # more than the process had when it was forked
MAX_MESSAGE = 2002
BARE = re.compile(  # what Python and TVM say to those who work on them
    r"NoneType|has no attribute|Check failed|Traceback|unexpected keyword|positional argument|not subscr"
    r"|unsupported operand|InternalError|TVMError|AttributeError|TypeError|KeyError|IndexError|AssertionError"
    r"|UnboundLocalError|not iterable|out of range$|object is not|has no len|RecursionError|MemoryError"
    r"|cannot unpack|values to unpack|invalid literal|must be str|not in list|unhashable|empty sequence"
    r"|<class|truth value of|inhomogeneous|division by zero|could not convert|\.cc:\d+|0x[0-9a-f]{8}"
)


@dataclass
class Outcome:
    """How it ended: where and how far it came, and what was said."""

    kind: str  # imported, refused, unclear, error, crash, hang, memory
    stage: str = "import"  # import, compile, run
    message: str = ""
    seconds: float = 0.0
    digest: int = 0  # of what was imported

    @property
    def is_bad(self) -> bool:
        """Whether the importer or what it gave broke a promise."""
        if self.stage == "import":
            return self.kind not in ("imported", "refused")
        return self.kind == "crash"


def import_model(path: Path, as_proto: bool) -> tuple[Outcome, Any]:
    """The import of a file, or of the model that it is parsed to; with the module, if there is one."""
    model: Any = path
    if as_proto:
        try:
            model = onnx.load(str(path), load_external_data=False)
        except Exception:  # then there is no such model
            model = path
    start = time.process_time()
    mod = None
    try:
        mod, _ = from_onnx(model)
        outcome = Outcome("imported", digest=tvm.ir.structural_hash(mod))
    except ImportFailure as failure:
        outcome = Outcome("refused" if is_clear(str(failure)) else "unclear", message=str(failure))
    except Exception as error:
        said = "".join(traceback.format_exception_only(type(error), error)).strip()
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome("error", message=f"{said[-300:]} ({place.name}, {place.filename}:{place.lineno})")
    outcome.seconds = time.process_time() - start
    return outcome, mod


def is_clear(message: str) -> bool:
    """Whether a refusal is one line of words that users know."""
    return bool(message) and "\n" not in message and len(message) <= MAX_MESSAGE and not BARE.search(message)


def compile_and_run(mod: tvm.IRModule, report: Any) -> Outcome:
    """Whatever happens, short of a crash, is for others to judge: the model may be wrong in its numbers."""
    stage = "compile"
    try:
        mod = default_pipeline()(mod)
        lib = runtime.build_library(mod, "llvm")
        stage = "run"
        report(stage)
        model = runtime.Model(lib, "cpu")
        model(*[_numbers(param.checked_type) for param in mod["main"].params])
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        return Outcome("error", stage, said[-1][:300])
    return Outcome("imported", stage)


def _numbers(type_: Any) -> np.ndarray:
    values = np.random.default_rng(0)
    shape = tuple(int(size) if isinstance(size, tvm.tir.IntImm) else 2 for size in type_.shape)
    if np.prod(shape, dtype="float64") > 1 << 26:
        raise ValueError("the input is large")
    if type_.dtype.startswith(("float", "bfloat")):
        return values.normal(size=shape).astype("float32" if type_.dtype == "bfloat16" else type_.dtype)
    return values.integers(0, 2, shape).astype(type_.dtype)


def start(path: Path, as_proto: bool, seen: set[int], to_compile: bool) -> tuple[int, int]:
    """Fork a process that tries a file; its id, and a pipe on which it reports."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        os.set_blocking(ours, False)
        return child, ours
    try:
        os.close(ours)
        leave_to_the_parent()
        _be_silent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        def report(said: Any) -> None:
            os.write(theirs, json.dumps(said).encode() + b"\n")

        report("import")
        outcome, mod = import_model(path, as_proto)
        report(asdict(outcome))
        if mod is not None and to_compile and outcome.digest not in seen:
            report("compile")
            report(asdict(compile_and_run(mod, report)))
    finally:
        os._exit(0)


def _be_silent() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


class Trial:
    """A forked process under watch."""

    def __init__(self, path: Path, as_proto: bool, seen: set[int], to_compile: bool) -> None:
        self.path, self.outcomes, self._stage = path, [], "import"
        self._child, self.pipe = start(path, as_proto, seen, to_compile)
        self._inherited = self._resident()
        self._began, self._worked_before, self._said = time.monotonic(), 0.0, b""

    outcomes: list[Outcome]

    def poll(self) -> bool:
        """Look after the process; True when it has ended, and `outcomes` says how."""
        child, status = os.waitpid(self._child, os.WNOHANG)
        self._listen()
        if child:
            os.close(self.pipe)
            if os.WIFSIGNALED(status):
                self.outcomes.append(Outcome("crash", self._stage, signal.Signals(os.WTERMSIG(status)).name))
            elif not self.outcomes:
                self.outcomes.append(Outcome("crash", self._stage, "ended without a word"))
            return True
        seconds = time.monotonic() - self._began
        if self._worked() - self._worked_before > SECONDS or seconds > PATIENCE * SECONDS:
            return self._end("hang", f"more than {SECONDS:.0f} s")
        if self._resident() - self._inherited > BYTES:
            return self._end("memory", f"more than {BYTES >> 20} MiB")
        return False

    def _listen(self) -> None:
        try:
            while block := os.read(self.pipe, 65536):
                self._said += block
        except BlockingIOError:
            pass
        *lines, self._said = self._said.split(b"\n")
        for line in map(json.loads, lines):
            if isinstance(line, str):
                self._stage, self._began, self._worked_before = line, time.monotonic(), self._worked()
            else:
                self.outcomes.append(Outcome(**line))

    def _end(self, kind: str, message: str) -> bool:
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self.pipe)
        self.outcomes.append(Outcome(kind, self._stage, message, SECONDS))
        return True

    def _worked(self) -> float:
        try:
            times = Path(f"/proc/{self._child}/stat").read_text().rpartition(")")[2].split()[11:13]
            return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return 0.0

    def _resident(self) -> int:
        try:
            return int(Path(f"/proc/{self._child}/statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            return 0
