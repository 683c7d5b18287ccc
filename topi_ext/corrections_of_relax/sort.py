"""Sorting as `sort.of_any_type` does, and on CPUs `topk` as `sort.on_cpus` does."""

from __future__ import annotations

from tvm import topi

from ..sort import of_any_type, on_cpus

topi.sort, topi.argsort, topi.topk = of_any_type.sort, of_any_type.argsort, on_cpus.topk
_on_cuda = of_any_type.Sorts(topi.gpu)
topi.gpu.sort, topi.gpu.argsort, topi.gpu.topk = _on_cuda.sort, _on_cuda.argsort, _on_cuda.topk
