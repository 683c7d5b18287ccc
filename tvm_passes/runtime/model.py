"""Call a compiled module: convert the inputs, run, convert the outputs."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm
from tvm.runtime import Device

from . import cuda, tensors
from .arrays import Array, empty, is_cuda, ordinal_of, place_of, synchronize, type_of
from .libraries import Library, executor_of, module_of
from .memory import overlaps
from .replay import Replay
from .tensor_type import TensorType
from .tensors import KINDS, NUMPY, TORCH, Kind, Tensor, kind_of, torch_name

OPTIONS = "cut", "copy_outputs", "copy_weights", "cuda_graph"  # that those who make a `Model` pass on to it

_models: weakref.WeakSet[Model] = weakref.WeakSet()


class Model:
    """A compiled module that takes and returns tensors of torch, NumPy or TVM.

    The attribute `lib` is the compiled module, which has `export_library`; `inputs` has the types it takes.

    Parameters
    ----------
    lib : module
        The result of `relay.build` or `relay.vm.compile`, in Relax of `tvm.compile`, or
        `tvm.runtime.load_module` of its exported file.
    device : str or tvm.runtime.Device
        Where it runs: "cpu", "cuda", "cuda:1".
    output_names : sequence of str, optional
        By default "output0", "output1" and so on.
    input_types : dict of str to TVM's TensorType, optional
        The types of the inputs, for a virtual machine, which does not know them. Without them, inputs are
        checked only by TVM's kernels, which raise errors of their own.
    cut : bool or sequence
        For static detectors, as `MakeDetectionStatic("padded")` makes them: return the detections without
        padding, and without their number, the last output, which is read for this. True: all outputs have the
        detections along the first axis. Otherwise, for each output, its axis of detections and the index of
        the number that counts them, or nothing, as in the function's attribute `padded_rows`.
    copy_outputs : bool
        Whether outputs stay valid after the next call. False saves the copy: the next call overwrites outputs
        of the graph executor and of a CUDA graph, and outputs may share memory with inputs or weights. NumPy
        arrays are always copies. On CUDA, a call on another stream waits for the last call, but not for what
        reads its outputs: let that stream wait for it before, also where the outputs of a virtual machine are
        deleted, since their memory is used again.
    copy_weights : bool
        Whether the graph executor has its own copy of weights. False saves the copy of those that `lib` has
        on this device already, where they must not be changed.
    cuda_graph : "auto", True or False
        Whether the first call on CUDA captures the launches of the graph executor, or of a virtual machine of
        Relax whose shapes are all known, which later calls replay.
        Where that is not possible, "auto" warns and runs without, True raises. Work on TVM's stream is
        captured, which includes all that TVM compiles; a packed function of your own must launch on that
        stream too, and do nothing on the host that every call needs. Branches of the network run at the same
        time, so its calls must not share memory either.

    Convention
    ----------
    - Inputs are given by position or by name. If any is a torch tensor, outputs are torch tensors; else if
      any is an NDArray, they are NDArrays; else they are NumPy arrays, of float32 for bfloat16. A single
      output is returned bare, several in a dict.
    - Tensors must be on the model's device; NumPy arrays are copied there. An input is read in place if it is
      contiguous and its address a multiple of 64, else from a copy. Torch tensors that are not views are
      aligned so, NumPy arrays often are not. With a CUDA graph, an input is copied on the device, unless
      it is a torch tensor that only kernels of TVM read, one for each step, as those that preprocess images.
    - Given arrays of TVM on a GPU, the work goes on TVM's stream, else on torch's current one. A call waits
      for it only to return NumPy arrays or to cut. A call on another stream than the previous one waits for
      that one on the device. Calls from several threads run one after the other.
    """

    def __init__(
        self,
        lib: Library,
        device: str | tvm.runtime.Device = "cpu",
        *,
        output_names: Iterable[str] | None = None,
        input_types: Mapping[str, Any] | None = None,
        cut: bool | Sequence[Sequence[int]] = False,
        copy_outputs: bool = True,
        copy_weights: bool = True,
        cuda_graph: bool | str = "auto",
    ) -> None:
        self.lib = module_of(lib)
        if not isinstance(self.lib, tvm.runtime.Module):
            raise TypeError(f"Model: {lib!r} is not a module; of a file, give tvm.runtime.load_module(file)")
        self.device = device_here(device, "Model")
        with cuda.on_device(self.device):
            self._executor = executor_of(self.lib, self.device, copy_weights)
        types = {**self._executor.inputs, **(input_types or {})}
        self.inputs = {name: type_of(types[name]) for name in self._executor.inputs}
        self.output_names = None if output_names is None else list(map(str, output_names))
        self.cut: Any = cut
        self._copy_outputs = copy_outputs
        outputs = self._executor.outputs
        self._outputs_are_known = outputs is not None
        if outputs is not None:
            self._check_outputs([type_of(type_) for type_ in outputs])
        self._buffers: dict[str, Array] = {}  # of inputs that are copied
        self._lock = threading.Lock()
        _models.add(self)
        self._is_cuda = is_cuda(self.device)
        self._turns: cuda.Turns | cuda.NoTurns = cuda.NoTurns()
        if self._is_cuda:
            self._turns = cuda.Turns(self.device, self._executor.only_on_default_stream)
        why_not = self._executor.why_no_cuda_graph if self._is_cuda else "the device is not CUDA"
        if why_not and cuda_graph is True:
            raise ValueError(
                f"Model: there is no CUDA graph here, since {why_not}: leave out cuda_graph=True"
            )
        self._cuda_graph = cuda_graph
        self._captured: cuda.CapturedRun | None = None
        self._replay: Replay | None = None
        self._is_to_capture = bool(cuda_graph) and not why_not

    def __repr__(self) -> str:
        graph = ", as a CUDA graph" if self._captured else ""
        inputs = ", ".join(f"{name}: {type_ or '?'}" for name, type_ in self.inputs.items())
        outputs = ", ".join((self.output_names or ["?"])[: -1 if self.cut else None])
        return f"<Model, {self._executor.name} on {self.device}{graph}: ({inputs}) -> {outputs}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "Model: it can be neither copied nor pickled: give runtime.save's folder to the other process, "
            "and call runtime.load there"
        )

    def __call__(self, *args: Tensor, **named: Tensor) -> Any:
        values = self._arguments(args, named)
        if self._replay is not None:
            given = [*values.values()]
            kind = self._replay.kind_of(given)
            if kind is not None:
                stream = self._stream(TORCH)
                with self._lock, self._turns.turn(stream, own_workspaces=True):
                    return self._named(self._replay.run(given, kind, stream))
        kinds = [self._check_input(name, value) for name, value in values.items()]
        kind = next((kind for kind in KINDS if kind in kinds), NUMPY)
        stream = self._stream(kind)
        with self._lock, self._turns.turn(stream, own_workspaces=self._captured is not None):
            arrays = [self._placed(*item, of, stream) for item, of in zip(values.items(), kinds)]
            outputs = self._run(arrays, stream)
            if kind is NUMPY and self._is_cuda:
                synchronize(self.device, stream)
            if not self._outputs_are_known:
                self._check_outputs([TensorType(output.shape, output.dtype) for output in outputs])
            if self.cut:
                outputs = self._detections(outputs, stream)
            results = [kind.result(output, self._copy_outputs, stream) for output in outputs]
            if self._captured is not None and self._replay is None and kind is not tensors.TVM:
                self._replay = self._replay_of(self._captured)
        return self._named(results)

    # --- inputs

    def _arguments(self, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> dict[str, Tensor]:
        """All inputs by name, in the order of the model."""
        known = f"Model: the inputs are {', '.join(self.inputs) or 'none'}"
        if len(args) > len(self.inputs):
            raise TypeError(f"{known}; {len(args)} were given")
        values = dict(zip(self.inputs, args))
        for name, value in named.items():
            if name not in self.inputs or name in values:
                raise TypeError(
                    f"{known}; {name} " + ("is given twice" if name in values else "is not one of them")
                )
            values[name] = value
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise TypeError(f"{known}; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        return {name: values[name] for name in self.inputs}

    def _check_input(self, name: str, value: Tensor) -> Kind:
        """The kind of a value; an error says what to give instead."""
        kind = kind_of(value)
        if kind is None:
            names = ", ".join(kind.name for kind in KINDS)
            raise TypeError(f"Model: {name} is of type {type(value).__name__}; give one of {names}")
        refusal = kind.refusal(name, value)
        if refusal:
            raise TypeError(f"Model: {name} {refusal}")
        found, device = TensorType(*kind.type_of(value)), kind.device_of(value)
        wanted = self.inputs[name]
        if wanted is not None and found.dtype != wanted.dtype:
            raise TypeError(
                f"Model: {name} must be {wanted}, not {found}: give {name}{kind.converted(wanted.dtype)}"
            )
        if wanted is not None and not wanted.takes(found):
            raise ValueError(f"Model: {name} must be {wanted}, not {found}")
        if kind is not NUMPY and device != self.device:
            there = torch_name(self.device)
            move = f'{name}.to("{there}")' if kind is TORCH else f"{name}.copyto(model.device)"
            raise ValueError(f"Model: {name} is on {device}, and the model on {there}: give {move}")
        return kind

    def _placed(self, name: str, value: Tensor, kind: Kind, stream: int) -> Array:
        """An input as an array that the model can read."""
        array = kind.shared(value, self.device)
        if array is not None and self._reads(array):
            return array
        shape, dtype = kind.type_of(value)
        buffer = self._buffers.get(name)
        if buffer is None or (buffer.shape, buffer.dtype) != (shape, dtype):
            buffer = self._buffers[name] = empty(shape, dtype, self.device)
        kind.copy(value, buffer, stream) if array is None else tensors.copy(array, buffer, stream)
        return buffer

    def _reads(self, array: Array) -> bool:
        """Whether a run can read an array where it is: not a captured one, and not where it writes itself."""
        if self._is_to_capture or self._captured is not None:
            return False
        return self._copy_outputs or not overlaps(place_of(array), self._executor.written)

    # --- the run

    def _stream(self, kind: Kind) -> int:
        if not self._is_cuda:
            return 0
        if kind is TORCH:
            import torch

            return torch._C._cuda_getCurrentRawStream(ordinal_of(self.device))
        return cuda.current_stream(self.device)

    def _run(self, arrays: list[Array], stream: int) -> list[Array]:
        executor = self._executor
        if self._captured is None:
            executor.bind(arrays)
        if self._is_to_capture:
            self._capture(stream, arrays)
        if self._captured is not None:
            self._captured.launch(stream)
        else:
            with self._turns.running(stream):
                executor.run()
        return executor.results()

    def _replay_of(self, captured: cuda.CapturedRun) -> Replay | None:
        """None where torch is not in use, or has no CUDA."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return None
        inputs = [self._buffers[name] for name in self.inputs]
        outputs, cut = self._executor.results(), self.cut or ()
        return Replay(captured.launch, inputs, outputs, cut, self._copy_outputs, captured.movable)

    def _capture(self, stream: int, inputs: list[Array]) -> None:
        try:
            self._captured = cuda.CapturedRun(self.device, self._executor.launches(), stream, inputs)
            for name, array in zip(self.inputs, inputs):  # it reads these, and what is of another type not
                self.inputs[name] = self.inputs[name] or TensorType(array.shape, array.dtype)
        except cuda.CannotCapture as reason:
            if self._cuda_graph is True:
                raise
            warnings.warn(
                f"the model runs without a CUDA graph: {reason}; cuda_graph=False does not try", stacklevel=4
            )
        self._is_to_capture = False

    # --- outputs

    def _check_outputs(self, types: list[Any]) -> None:
        """Check outputs; the types of a virtual machine's are known only after a run."""
        number = len(types)
        if self.output_names is None:
            self.output_names = [f"output{index}" for index in range(number)]
        if len(set(self.output_names)) != number or len(self.output_names) != number:
            raise ValueError(f"Model: {number} outputs cannot have the names {', '.join(self.output_names)}")
        if self.cut:
            self.cut = _cuts(self.cut, types)
        self._outputs_are_known = True

    def _named(self, results: list[Tensor]) -> Any:
        return results[0] if len(results) == 1 else dict(zip(self.output_names or (), results))

    def _detections(self, outputs: list[Array], stream: int) -> list[Array]:
        """The outputs without padding. Reading the number of detections is the only wait for the device."""
        *outputs, number = outputs
        if number.device != tvm.cpu():
            on_host = empty(number.shape, number.dtype, tvm.cpu())
            tensors.copy(number, on_host, stream)
            synchronize(self.device, stream)
            number = on_host
        numbers = number.numpy().reshape(-1)
        return [
            tensors.first(output, rows[0], numbers[rows[1]]) if rows else output
            for output, rows in zip(outputs, self.cut)
        ]


def _unlock() -> None:
    """In a forked process, in which the threads are gone whose calls were running."""
    for model in _models:
        model._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _cuts(cut: Any, types: list[Any]) -> list[tuple[int, ...]]:
    """For each output but the last, its axis of detections and the index of their number, or nothing."""
    *others, number = types
    if number.dtype != "int32" or len(number.shape) > 1:
        in_relay = 'apply MakeDetectionStatic("padded")'
        advice = in_relay if tvm_in_use.has_relay else "import the detector by frontends.relax"
        raise ValueError(
            "Model: to cut, the last output must be the number of detections, int32, and it is "
            f"{number}: {advice}"
        )
    if cut is True:
        if number.shape or any(not shape or shape[:1] != others[0].shape[:1] for shape, _ in others):
            raise ValueError(
                "Model: cut=True is for one number, and outputs that have as many rows each; these are "
                f"{', '.join(map(str, types))}: give the function's attribute padded_rows as cut"
            )
        return [(0, 0)] * len(others)
    cuts = [tuple(map(int, rows)) for rows in cut]
    if len(cuts) != len(others):
        raise ValueError(
            f"Model: cut has entries for {len(cuts)} outputs, but there are {len(others)} besides the number"
        )
    for rows, (shape, dtype) in zip(cuts, others):
        if rows and any(length != 1 for length in shape[: rows[0]]):
            raise ValueError(
                f"Model: detections along axis {rows[0]} of {TensorType(shape, dtype)} are not contiguous: "
                "leave this output's entry of cut empty, and cut it yourself"
            )
    return cuts


def check_options(options: Mapping[str, Any], caller: str) -> None:
    """Raise TypeError where one is none of `OPTIONS`, before anything that takes time."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"{caller}: there is no option {name}: give some of {', '.join(OPTIONS)}")


def device_of(device: str | tvm.runtime.Device) -> tvm.runtime.Device:
    """The device of a name, which may be that of a target's kind."""
    if isinstance(device, Device):
        return device
    kind, _, index = str(device).partition(":")
    try:
        return tvm.device("cpu" if kind == "llvm" else kind, int(index or 0))
    except ValueError as error:
        raise ValueError(f"{device!r} is no device: give such as cpu, cuda or cuda:1") from error


def device_here(device: str | tvm.runtime.Device, caller: str) -> tvm.runtime.Device:
    """The device of a name, if this machine has it."""
    found = device_of(device)
    if not found.exist:
        raise ValueError(
            f"{caller}: there is no {device} here: give device=, or compile by runtime.build_library and run "
            "it elsewhere"
        )
    return found
