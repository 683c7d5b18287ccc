"""The process of `bench_relax` that has TVM 0.27: answers a line of JSON for each line of its input.

A line is a command and its arguments, in JSON: "facts"; "check", which compares all with the peers;
"ours" or "stock" and a case, which is timed on the device; or "network", which is timed by the host's clock.
"""

import json
import sys

import torch

from tests.benchmarks._common import median_ms, median_wall_ms
from tests.benchmarks._relax_cases import CASES, IMAGE, check, first_of, tensors_of
from tests.models.zoo import random_image
from topi_ext import bootstrap
from tvm_passes import runtime

import tvm
from tvm.runtime.vm import VirtualMachine


def serve(folder):
    served = Served(folder)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        with torch.no_grad():
            answer = getattr(served, command)(*arguments)
        print(json.dumps(answer), flush=True)


class Served:
    def __init__(self, folder):
        self.folder, self.network_of = folder, None
        self.machines = {}

    def facts(self):
        in_use = bootstrap.tvm_in_use
        return {"version": in_use.version, "runtime alone": not in_use.compiles}

    def ours(self, name):
        return median_ms(self._call("kernels.so", name))

    def stock(self, name):
        return median_ms(self._call("stock.so", name))

    def check(self):
        for name in CASES:
            found = first_of(self._call("kernels.so", name)())
            check(name, torch.from_dlpack(found), tensors_of(name))

    def network(self, repeats):
        call, image = self._network()
        return median_wall_ms(lambda: call(image), repeats)

    def found(self, path):
        """What the network finds, into a file, without masks."""
        call, image = self._network()
        torch.save({name: each.cpu() for name, each in call(image).items() if name != "masks"}, path)

    def _network(self):
        if self.network_of is None:
            image = random_image(*IMAGE).cuda()
            self.network_of = runtime.load(self.folder / "network", cut=True, copy_outputs=False), image
        return self.network_of

    def _call(self, library, name):
        if library not in self.machines:
            module = tvm.runtime.load_module(str(self.folder / library))
            self.machines[library] = VirtualMachine(module, tvm.cuda())
        function = self.machines[library][f"case{[*CASES].index(name)}"]
        arrays = [tvm.runtime.from_dlpack(each) for each in tensors_of(name)]
        return lambda: function(*arrays)
