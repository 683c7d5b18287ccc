"""Figures of a job that also tell which processes have worked."""

from tvm_passes.batch.figures import Figures


class Seen(Figures):
    def __init__(self):
        super().__init__()
        self.processes = set()

    def add(self, work):
        super().add(work)
        self.processes.add(work.process)
