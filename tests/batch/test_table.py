"""Parts of a table have as many rows as they may, whether rows come one by one or in tables."""

import numpy as np
import pyarrow.parquet as parquet

from tests.batch.tables import rows
from tvm_passes.batch.figures import Work, summed
from tvm_passes.batch.results import Failed, Rows, in_a_table, number_of
from tvm_passes.batch.table import BYTES, Table, detections_schema, parts, table_of


def row(name, masks=(b"a", b"bc")):
    number = len(masks)
    arrays = {"boxes": np.ones((number, 4), "float32"), "scores": np.ones(number, "float32")}
    about = {"image_id": name, "height": 3, "width": 4, "keypoints": None, "model": "m", "manifest": "f"}
    return {**about, **arrays, "labels": np.arange(number), "masks": list(masks)}


def table(*names):
    return table_of([row(name) for name in names], detections_schema())


def test_rows_and_tables_in_parts_of_the_same_size(tmp_path):
    written = Table(tmp_path, detections_schema(), rows=3)
    written.append(row("a"))
    written.append_all(table(*"bcdefgh"))
    written.append(row("i"))
    written.append_all(table())
    written.append(row("j"))
    written.flush()
    assert [parquet.read_metadata(part).num_rows for part in parts(tmp_path)] == [3, 3, 3, 1]
    found = rows(tmp_path)
    assert sorted(found) == [*"abcdefghij"]
    assert found["e"]["masks"] == [b"a", b"bc"] and found["e"]["labels"] == [0, 1]


def test_large_masks_end_a_part(tmp_path):
    written = Table(tmp_path, detections_schema())
    large = table_of([row("a", [bytes(BYTES)])], detections_schema())
    for each in (large, large.slice(0, 0), table("b")):
        written.append_all(each)
    assert len(parts(tmp_path)) == 1


def test_rows_go_together_and_failures_stay():
    results = [row("a"), Failed("b", "is empty"), row("c")]
    failed, together = in_a_table(results)
    assert failed == results[1] and isinstance(together, Rows)
    assert together.table.column("image_id").to_pylist() == ["a", "c"]
    assert [number_of(each) for each in (results[0], failed, together)] == [1, 1, 2]
    assert in_a_table([failed]) == [failed]


def test_works_are_summed_by_their_stage():
    works = [Work(stage, 1.0, 2.0, 3, 4, {"image": "a"}) for stage in ("decode", "run", "decode")]
    assert summed(works) == [Work("decode", 1.0, 4.0, 3, 4, {}), Work("run", 1.0, 2.0, 3, 4, {})]
