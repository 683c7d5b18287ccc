"""Functions that are operators of torch, so that its compilers and exporters keep each call whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from ._call import results_without_data, run

Function = TypeVar("Function", bound=Callable[..., Any])

# Before 2.4, torch compiles around the functions.
_library = torch.library.Library("topi_ext", "DEF") if hasattr(torch.library, "register_fake") else None


def operator(*schemas: str, lengths: Mapping[str, int] | None = None) -> Callable[[Function], Function]:
    """Make a function that returns a `Call` one that runs it, and the operator `topi_ext::name` of torch.

    The schemas, of which each but the first names an overload, have the function's own arguments. A call goes
    through torch's dispatcher only if something is at work that wants to see operators, since that takes
    longer than the rest of the call. `lengths` has the options that are lists and may be given as one
    number, which is repeated.
    """

    def decorate(function: Function) -> Function:
        def run_now(*args: Any, **kwargs: Any) -> Any:
            return run(function(*args, **kwargs))

        if _library is None:
            return cast(Function, wraps(function)(run_now))

        def without_data(*args: Any, **kwargs: Any) -> Any:
            return results_without_data(function(*args, **kwargs))

        # Kernels take contiguous tensors: a compiler must not choose other strides for them.
        strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
        for schema in schemas:
            _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, strides))
            name = schema.partition("(")[0]
            for device in ("CPU", "CUDA"):
                _library.impl(name, run_now, device)
            torch.library.register_fake(f"topi_ext::{name}", without_data, lib=_library)
        as_operator = getattr(torch.ops.topi_ext, function.__name__)

        @wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or _is_watched():
                # torch would repeat a number, but neither the symbol of one nor an int for a float.
                for name, length in (lengths or {}).items():
                    if name in kwargs and not isinstance(kwargs[name], (list, tuple)):
                        kwargs[name] = [kwargs[name]] * length
                return as_operator(*args, **kwargs)
            return run(function(*args, **kwargs))

        return cast(Function, public)

    return decorate


def _is_watched() -> bool:
    """Whether a tracer, a mode such as that of fake tensors, or a transform such as vmap is at work."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or torch._C._functorch.peek_interpreter_stack()
    )
