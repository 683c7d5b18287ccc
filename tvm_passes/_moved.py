"""Moved and renamed modules: for one release the old names still work, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FOLDERS = {
    "analysis": ("limits", "shape_values"),
    "cleanup": ("canonicalize", "combine_transposes", "limit_fusion"),
    "convolution": (
        *("convert_to_nhwc", "dense_as_convolution", "fuse_conv2d_nhwc", "images_as_one", "pool_by_means"),
        "split_concatenate",
    ),
    "detection": (
        *("fold_post_nms_topk", "fold_pre_nms_filter", "fold_preprocessing", "lower_class_aware_nms"),
        *("make_detection_static", "restore_batched_nms", "restore_multiscale_roi_align", "return_raw_masks"),
    ),
    "subpixel": (
        *("fold_space_to_depth", "move_depth_to_space", "reorder_depth_to_space", "restore_depth_to_space"),
        *("sink_depth_to_space", "upsample_by_shuffle"),
    ),
}
MOVED = {
    **{
        f"tvm_passes.{name}": f"tvm_passes.{folder}.{name}"
        for folder, names in FOLDERS.items()
        for name in names
    },
    "tvm_passes.canonicalize.limits": "tvm_passes.analysis.limits",
    "tvm_passes.canonicalize.shape_values": "tvm_passes.analysis.shape_values",
    "tvm_passes.pictures_as_one": "tvm_passes.convolution.images_as_one",
    "tvm_passes.mixed_precision": "tvm_passes.convolution.in_mixed_precision",
}
RENAMED = {"PicturesAsOne": "ImagesAsOne"}  # of `tvm_passes`


def new_name(name: str) -> str | None:
    """Where a module is now, or None for one that did not move."""
    if name in MOVED:
        return MOVED[name]
    parent, _, last = name.rpartition(".")
    return f"{MOVED[parent]}.{last}" if parent in MOVED else None


class _OldNames(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_moved = new_name(fullname) is not None
        return ModuleSpec(fullname, self, is_package=True) if is_moved else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Make the old module forward its attributes to the new one."""
        name = new_name(module.__name__) or ""
        warnings.warn(f"{module.__name__} is now {name}", DeprecationWarning, stacklevel=2)
        moved = importlib.import_module(name)
        module.__getattr__ = lambda attribute: getattr(moved, attribute)  # type: ignore[method-assign]


def renamed(name: str) -> Any:
    """The attribute of `tvm_passes` that had this name, with a warning: its `__getattr__`."""
    if name not in RENAMED:
        raise AttributeError(f"module 'tvm_passes' has no attribute {name!r}")
    warnings.warn(f"tvm_passes.{name} is now tvm_passes.{RENAMED[name]}", DeprecationWarning, stacklevel=2)
    return getattr(sys.modules["tvm_passes"], RENAMED[name])


def keep_old_names() -> None:
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())  # last, since no other finder still knows them
