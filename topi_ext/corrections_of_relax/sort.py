"""Sorting on CPUs, as `sort.of_any_type` does."""

from __future__ import annotations

from tvm import topi

from ..sort import of_any_type

topi.sort, topi.argsort, topi.topk = of_any_type.sort, of_any_type.argsort, of_any_type.topk
