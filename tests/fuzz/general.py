"""Networks of any operators, made by NNSmith."""

from __future__ import annotations

import logging
import pickle
import random
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import frontends

from tvm import relay

from .check import TO_MEND, Case, Result, check, gist
from .explain import plain
from .oracles import OnnxOracle, torch_oracle
from .shrink import shrink

if TYPE_CHECKING:
    from .campaign import Job

MAX_NODES = 12
PYTORCH_EACH = 4  # of so many models one is imported from PyTorch
ATTRIBUTES = 2.0**-23  # those of ONNX nodes are float32, where PyTorch has float64
MAX_WINDOW = 2048  # of a pool or convolution
MAX_ELEMENTS = 4096  # of a tensor; more costs time and finds nothing else


Network = tuple[Any, Any, dict[str, np.ndarray]]  # an ONNX model, the module it was exported from, inputs


class Generator:
    """Seeds to models. To be made once a process, or before it forks: NNSmith tries every operator first."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from nnsmith import narrow_spec
            from nnsmith.abstract.extension import activate_ext
            from nnsmith.logging import DTEST_LOG
            from nnsmith.materialize import Model

            DTEST_LOG.setLevel(logging.CRITICAL)
            self._model_type = Model.init("onnx", backend_target="cpu")
            self._model_type.add_seed_setter()
            with tempfile.TemporaryDirectory() as folder:
                # NNSmith's own folder remembers what another PyTorch could export.
                narrow_spec.NNSMITH_CACHE_DIR = folder
                self._operators = narrow_spec.auto_opset(self._model_type, None)
            for operator in self._operators:  # sets once, whose order differs from process to process
                operator.in_dtypes = sorted(operator.in_dtypes, key=str)
                operator.out_dtypes = sorted(operator.out_dtypes, key=str)
            activate_ext(opset=self._operators, factory=None)

    def __call__(self, seed: int) -> Network:
        import z3
        from nnsmith.graph_gen import model_gen
        from nnsmith.util import set_seed

        set_seed(seed)
        z3.z3._main_ctx = None  # what it has solved before changes what it finds
        made = model_gen(
            opset=self._operators,
            method="symbolic",
            seed=seed,
            max_nodes=random.Random(seed).randint(1, MAX_NODES),
            max_elem_per_tensor=MAX_ELEMENTS,
            timeout_ms=10_000,
        )
        set_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self._model_type.from_gir(made.make_concrete())
            module = model.torch_model.eval()
            inputs = _inputs(module)
            _check_work(model.native_model)
            return model.native_model, module, inputs

    def unpacked(self, packed: Any) -> Network:
        """What `_packed` packed."""
        import onnx

        model, ir, state, inputs = packed
        module = self._model_type.from_gir(pickle.loads(ir)).torch_model.eval()
        module.load_state_dict(state)
        return onnx.load_model_from_string(model), module, inputs


def _packed(network: Network) -> Any:
    model, module, inputs = network
    return model.SerializeToString(), pickle.dumps(module.ir), module.state_dict(), inputs


def _check_work(model: Any) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "kernel_shape" and np.prod(attribute.ints) > MAX_WINDOW:
                raise ValueError("a window of more elements than can be computed in time")


def _inputs(module: Any) -> dict[str, np.ndarray]:
    """Random ones, and of two tries those for which every intermediate result is finite."""
    module.check_intermediate_numeric = True
    for _ in range(2):
        inputs = module.get_random_inps()
        with torch.no_grad():
            module(**inputs)
        if not module.invalid_found_last:
            break
    module.check_intermediate_numeric = False
    return {name: tensor.numpy() for name, tensor in inputs.items()}


class GeneralSource:
    """Networks of NNSmith for a campaign.

    A seed gives another network in another process, since NNSmith goes through sets. So each network is
    written down before it is run, and what is made small, or must not be run again, is read from there.
    """

    def __init__(self, found: Path, target: str, frontend: str | None) -> None:
        self._generate = Generator()
        self._found, self._target, self._frontend = found, target, frontend
        self._stash = Path(tempfile.mkdtemp(prefix="fuzz-"))

    def check(self, job: Job) -> Result:
        try:
            network = self._generate(job.seed)
        except Exception as error:
            return Result("not made", gist(error))
        stash = self._stash / str(job.seed)
        stash.write_bytes(pickle.dumps(_packed(network)))
        result = check(self._case(job.seed, *network), self._target, job.with_stock)
        if result.kind not in TO_MEND:
            stash.unlink()
        return result

    def _stashed(self, seed: int) -> Network:
        return self._generate.unpacked(pickle.loads((self._stash / str(seed)).read_bytes()))

    def _case(self, seed: int, model: Any, module: Any, inputs: dict[str, np.ndarray]) -> Case:
        oracle = torch_oracle(module, list(inputs.values()))
        if self._is_pytorch(seed):
            tensors = tuple(map(torch.from_numpy, inputs.values()))
            return Case(lambda: frontends.from_pytorch(module, tensors), list(inputs.values()), [oracle])
        case = onnx_case(model, inputs)
        if not case.oracles:
            case.eps = ATTRIBUTES
        case.oracles.append(oracle)
        return case

    def _is_pytorch(self, seed: int) -> bool:
        return self._frontend == "pytorch" or (self._frontend is None and seed % PYTORCH_EACH == 0)

    def shrink(self, job: Job) -> str:
        model, module, inputs = self._stashed(job.seed)
        bad = check(self._case(job.seed, model, module, inputs), self._target)

        if self._is_pytorch(job.seed):
            return self._keep_module(job.seed, bad.kind)

        def still_fails(part: Any, given: dict[str, np.ndarray]) -> bool:
            result = check(onnx_case(part, given), self._target)
            return result.kind == bad.kind and (bad.kind != "error" or result.reason == bad.reason)

        return self._keep(*shrink(model, inputs, still_fails), f"{bad.kind}_{job.seed}")

    def keep(self, job: Job, kind: str) -> str:
        if self._is_pytorch(job.seed):
            return self._keep_module(job.seed, kind)
        model, _, inputs = self._stashed(job.seed)
        return self._keep(model, inputs, f"{kind}_{job.seed}")

    def _keep_module(self, seed: int, kind: str) -> str:
        """As it is: PyTorch's networks are not made small."""
        self._found.mkdir(parents=True, exist_ok=True)
        path = self._found / f"{kind}_{seed}.pkl"
        path.write_bytes((self._stash / str(seed)).read_bytes())
        return str(path)

    def _keep(self, model: Any, inputs: dict[str, np.ndarray], name: str) -> str:
        import onnx

        self._found.mkdir(parents=True, exist_ok=True)
        path = self._found / f"{name}.onnx"
        onnx.save(model, path)
        np.savez_compressed(path.with_suffix(".npz"), **inputs)
        return str(path)


def onnx_case(model: Any, inputs: dict[str, np.ndarray]) -> Case:
    """A model with ONNX's oracle, if that has all of its operators."""
    oracle = OnnxOracle(model, inputs)
    try:
        oracle(plain)
        oracles: list[Any] = [oracle]
    except Exception:
        oracles = []
    return Case(
        lambda: frontends.from_onnx(model),
        inputs,
        oracles,
        lambda: relay.frontend.from_onnx(model, freeze_params=True),
    )


def load(path: Path) -> Case:
    """A model that was kept."""
    import onnx

    return onnx_case(onnx.load(path), dict(np.load(path.with_suffix(".npz"))))
