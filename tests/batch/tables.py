"""What tests read of tables."""

import pyarrow.parquet as parquet


def rows(table):
    """{image id: row}; fails for an image that is there twice."""
    found = parquet.read_table(table).to_pylist()
    by_id = {row["image_id"]: row for row in found}
    assert len(by_id) == len(found)
    return by_id


def reasons(table):
    return {name: row["reason"] for name, row in rows(table).items()}
