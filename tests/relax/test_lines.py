"""The table of docs/relax.md that says how much serves both TVMs."""

import re
from pathlib import Path

from tests.lines_of_tvms import TVMS, counts

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "relax.md"
CLOSE = 0.1  # of a figure: so much may change before the table has to


def test_the_table_is_of_this_code():
    guide = GUIDE.read_text(encoding="utf-8")
    for part, lines in counts().items():
        (row,) = re.findall(rf"^\| {part} \| ([\d,| ]+) \|$", guide, re.MULTILINE)
        written = dict(zip(TVMS, (int(each.replace(",", "")) for each in row.split(" | ")), strict=True))
        for tvm, count in lines.items():
            assert abs(written[tvm] - count) <= max(CLOSE * count, 100), (
                f"{part}: python -m tests.lines_of_tvms"
            )
    assert counts()["operators and their kernels"]["both"] > counts()["operators and their kernels"]["Relax"]
