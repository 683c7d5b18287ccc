"""One interface for the two executors of Relay: arrays in, arrays out.

`inputs` has types by name, and `outputs` a list of them, None where they are not known.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Union

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.relay.backend.executor_factory import GraphExecutorFactoryModule
from tvm.runtime.vm import Executable, VirtualMachine

from . import concurrency
from .arrays import place_of
from .cuda import Launch
from .memory import Place
from .tensors import TVM
from .virtual_machine import VirtualMachineExecutor

Library = Union[tvm.runtime.Module, Executable, GraphExecutorFactoryModule]


def executor_of(
    lib: tvm.runtime.Module, device: tvm.runtime.Device, copy_weights: bool = True
) -> GraphExecutor | VirtualMachineExecutor:
    """The executor for a result of `relay.build` or `relay.vm.compile`, loaded from a file or not.

    The virtual machine never copies weights that are on its device.
    """
    if lib.implements_function("vm_load_executable"):
        executable = Executable(lib)
        machine = VirtualMachine(executable, device)
        return VirtualMachineExecutor(machine, machine.run, executable.get_function_params("main"))
    if lib.implements_function("get_graph_json"):
        return GraphExecutor(lib, device, copy_weights)
    raise TypeError(
        f"Model: a module of type {lib.type_key} is a result of neither relay.build nor relay.vm.compile"
    )


class GraphExecutor:
    """Runs static modules with fixed buffers: each call overwrites the same outputs."""

    name = "graph executor"
    only_on_default_stream = False

    def __init__(
        self, lib: tvm.runtime.Module, device: tvm.runtime.Device, copy_weights: bool = True
    ) -> None:
        graph, weights = json.loads(lib["get_graph_json"]()), lib["get_graph_params"]()
        # Only TVM's debugger can run the steps one by one.
        self._is_planned = concurrency.is_planned(graph)
        if copy_weights:
            new = lib["debug_create"]("default", device) if self._is_planned else lib["default"](device)
        else:
            new = _sharing(weights, lib, graph, device, self._is_planned)
        self._module, self._graph = graph_executor.GraphModule(new), graph
        attrs = {name: values for name, (_, values) in graph["attrs"].items()}
        names = [node["name"] for node in graph["nodes"]]

        def type_of(node: int, index: int = 0) -> relay.TensorType:
            entry = graph["node_row_ptr"][node] + index
            return relay.TensorType(attrs["shape"][entry], attrs["dltype"][entry])

        _check_names([names[node] for node in graph["arg_nodes"]])
        given_nodes = [node for node in graph["arg_nodes"] if names[node] not in weights]
        self.inputs = {names[node]: type_of(node) for node in given_nodes}
        self._input_entries = [graph["node_row_ptr"][node] for node in given_nodes]
        self.outputs = [type_of(node, index) for node, index, _ in graph["heads"]]
        given = {name: place for place, name in enumerate(self.inputs)}
        heads = [node for node, _, _ in graph["heads"]]
        self._returned = [given.get(names[_source_of(graph, node)]) for node in heads]  # inputs
        self.why_no_cuda_graph = None
        if len(set(attrs.get("device_index", []))) > 1:
            self.why_no_cuda_graph = "a part of the module runs on another device"

    def bind(self, arrays: list[tvm.nd.NDArray]) -> None:
        """Read inputs from these arrays, without a copy, from now on."""
        for name, array in zip(self.inputs, arrays):
            self._module.set_input_zero_copy(name, array)
        self._given = {place: arrays[place] for place in self._returned if place is not None}

    def run(self) -> None:
        self._module.run()

    def launches(self) -> list[Launch]:
        """What a run does, in order, as parts that may run at the same time, where that is known."""
        steps = concurrency.steps_of(self._graph) if self._is_planned else []
        if len(steps) < 2:  # the debugger runs no step twice in a row
            return [Launch(self.run)]
        waits = concurrency.waits_of(self._graph)
        lanes = concurrency.lanes_of(steps, waits)
        execute = self._module.module["execute_node"]
        inputs = self._only_read(steps)
        return [
            Launch(partial(execute, step.node), lanes[place], waits[place], inputs[place])
            for place, step in enumerate(steps)
        ]

    def _only_read(self, steps: list[concurrency.Step]) -> list[frozenset[int]]:
        """Of each step, the inputs that it reads, if all that happens to these is that steps read them."""
        storage, rows = self._graph["attrs"]["storage_id"][1], self._graph["node_row_ptr"]
        given = [storage[rows[node]] for node in self._graph["arg_nodes"]]
        others = {storage[rows[node] + index] for node, index, *_ in self._graph["heads"]}
        others |= {storage[entry] for step in steps for entry in step.writes}
        places = {
            storage[entry]: place
            for place, entry in enumerate(self._input_entries)
            if given.count(storage[entry]) == 1 and storage[entry] not in others
        }
        return [
            frozenset(places[storage[entry]] for entry in step.reads if storage[entry] in places)
            for step in steps
        ]

    def results(self) -> list[tvm.nd.NDArray]:
        """The outputs; an output that is an input, perhaps of another shape, is in the array given for that.

        TVM's own does not keep that array in memory.
        """
        return [
            self._module.get_output(index) if place is None else _in_shape(self._given[place], type_)
            for index, (place, type_) in enumerate(zip(self._returned, self.outputs))
        ]

    @cached_property
    def written(self) -> list[Place]:
        """Where each run writes results."""
        own = [self._module.get_output(at) for at, place in enumerate(self._returned) if place is None]
        return [*map(place_of, own)]


def _check_names(names: list[str]) -> None:
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(
                f"Model: TVM named a weight {name}, as an input is: give the input another name, or "
                "compile by runtime.build_library"
            )


def _source_of(graph: concurrency.Graph, node: int) -> int:
    """Where a node's memory comes from: behind reshapes, which move nothing."""
    while graph["nodes"][node].get("attrs", {}).get("func_name") == "__nop":
        node = graph["nodes"][node]["inputs"][0][0]
    return node


def _in_shape(array: tvm.nd.NDArray, type_: relay.TensorType) -> tvm.nd.NDArray:
    shape = tuple(map(int, type_.shape))
    return array if array.shape == shape else array._create_view(shape)


def _sharing(
    weights: Mapping[str, tvm.nd.NDArray],
    lib: tvm.runtime.Module,
    graph: concurrency.Graph,
    device: tvm.runtime.Device,
    is_planned: bool,
) -> tvm.runtime.Module:
    """TVM's graph executor, which reads weights where they are and copies only those that it cannot read."""
    rows, storage = graph["node_row_ptr"], graph["attrs"]["storage_id"][1]
    is_alone = len(set(graph["attrs"].get("device_index", ["", []])[1])) < 2
    memory: dict[int, tvm.nd.NDArray] = {}
    copied = {}
    for node in graph["arg_nodes"]:
        name, number = graph["nodes"][node]["name"], storage[rows[node]]
        array = weights.get(name)
        if array is None:
            continue
        if is_alone and array.device == device and TVM.shared(array, device) is not None:
            memory[number] = array
        else:
            copied[name] = array
    # TVM asks for the memory of weights that are a part of a library, and allocates the rest.
    create = "tvm.graph_executor_debug.create" if is_planned else "tvm.graph_executor.create"
    new = tvm.get_global_func(create)(
        lib["get_graph_json"](),
        lib.imported_modules[0],
        lambda _module, number, _template, _device: memory.get(number),
        device.device_type,
        device.device_id,
    )
    for name, array in copied.items():
        new["set_input"](name, array)
    return new
