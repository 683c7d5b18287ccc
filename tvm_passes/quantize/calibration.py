"""What calibration found out about each convolution of a network, as a file that people can read and edit."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..engine.report import table_as_text

FORMAT = 1
MIN_SNR = 20.0  # dB


class CalibrationError(ValueError):
    """One sentence that says why a calibration cannot be used, and what to do about it."""


@dataclass(frozen=True)
class Observed:
    """One convolution: bounds of the magnitudes that it reads and writes, and what int8 costs it."""

    data: float
    result: float
    residual: float | None = None  # None where none is added
    snr: float | None = None  # of the result in int8, in dB, where that was measured
    in_float: bool = False  # whether it stays in floating point
    filters: tuple[int, ...] = ()  # the shape of the weights, for the reader
    where: str = ""  # in the source model, for the reader


@dataclass(frozen=True)
class Calibration:
    """The bounds of all tensors that a network's convolutions read and write; `calibrate` makes it.

    The names of convolutions are digests of their weights, with a number where several have the same
    weights, so a calibration serves the same network imported again or for another batch size. `save` writes
    one line for each; set `in_float` there to true to keep a convolution in floating point.
    """

    convolutions: dict[str, Observed]
    method: str = "mse"
    batches: int = 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that `Calibration.read` reads."""
        lines = (
            f"  {json.dumps(name)}: {json.dumps(_written(each))}" for name, each in self.convolutions.items()
        )
        head = {"format": FORMAT, "method": self.method, "batches": self.batches}
        text = ",\n".join([f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()])
        body = ",\n".join(lines)
        Path(path).write_text(f'{{\n{text},\n "convolutions": {{\n{body}\n }}\n}}\n', encoding="utf-8")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Calibration:
        """Read what `save` wrote; raises CalibrationError, which says what is wrong with the file."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CalibrationError(f"there is no file {path}: make it by calibrate") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CalibrationError(f"{path} cannot be read ({error}): calibrate again") from error
        if not isinstance(found, dict) or "format" not in found:
            raise CalibrationError(f"{path} is not a calibration: give a file that calibrate wrote")
        if found["format"] != FORMAT:
            raise CalibrationError(
                f"{path} has the format {found['format']}, and this version reads {FORMAT}: calibrate again"
            )
        try:
            named = {str(name): _read(each) for name, each in found["convolutions"].items()}
            return Calibration(named, str(found["method"]), int(found["batches"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CalibrationError(f"{path} is damaged ({error}): calibrate again") from error

    def __rich__(self) -> Table:
        count = sum(not each.in_float for each in self.convolutions.values())
        table = Table(
            caption=f"{count} of {len(self.convolutions)} convolutions in int8; bounds by {self.method}, of "
            f"{self.batches} batches"
        )
        for title in ("convolution", "where", "filters"):
            table.add_column(title, overflow="fold")
        for title in ("data", "residual", "result", "SNR, dB"):
            table.add_column(title, justify="right")
        table.add_column("computed in")
        for name, each in self.convolutions.items():
            numbers = (each.data, each.residual, each.result)
            table.add_row(
                name,
                escape(each.where),
                "x".join(map(str, each.filters)),
                *("" if number is None else f"{number:.4g}" for number in numbers),
                "" if each.snr is None else f"{each.snr:.1f}",
                "float" if each.in_float else "int8",
            )
        return table

    def __str__(self) -> str:
        return table_as_text(self.__rich__())


def _written(each: Observed) -> dict[str, Any]:
    numbers = {"data": each.data, "residual": each.residual, "result": each.result, "snr": each.snr}
    rounded = {name: None if value is None else float(f"{value:.6g}") for name, value in numbers.items()}
    return {**rounded, "in_float": each.in_float, "filters": list(each.filters), "where": each.where}


def _read(fields: dict[str, Any]) -> Observed:
    names = {field.name for field in dataclasses.fields(Observed)}
    unknown = fields.keys() - names
    if unknown:
        raise ValueError(f"it has {', '.join(sorted(unknown))}, which is not known")
    for name in ("data", "residual", "result", "snr"):
        value = fields.get(name)
        if value is None and name in ("residual", "snr"):
            continue
        if not isinstance(value, (int, float)) or not math.isfinite(value) or (value < 0 and name != "snr"):
            raise ValueError(f"{name} is {value!r}, not a number of at least 0")
    if not isinstance(fields.get("in_float", False), bool):
        raise ValueError(f"in_float is {fields['in_float']!r}, not true or false")
    return Observed(**{**fields, "filters": tuple(fields.get("filters", ()))})
