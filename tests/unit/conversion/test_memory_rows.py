"""Rows in memory are those of a table, whatever batches they are in and however they are copied."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.conversion.shuffle import in_memory
from wdsplit.conversion.shuffle.in_memory import MemoryRows


@pytest.mark.parametrize("large_run", [1, 300, 2**40])
@given(
    lengths=st.lists(st.integers(0, 5), max_size=5),
    wanted=st.lists(st.integers(-1, 40), max_size=12),
    places=st.lists(st.integers(-1, 40), max_size=12),
)
def test_rows_at_places_are_those_of_the_order(large_run, lengths, wanted, places):
    table = pa.table(
        {
            "number": pa.array([None if row % 4 == 0 else row for row in range(sum(lengths))], pa.int16()),
            "text": pa.array([f"{row}" * row for row in range(sum(lengths))], pa.large_string()),
            "flag": pa.array([bool(row % 3) for row in range(sum(lengths))], pa.bool_()),
        }
    )
    batches = [
        pa.record_batch(
            [column.slice(stop - length, length).combine_chunks() for column in table.columns], table.schema
        )
        for length, stop in zip(lengths, np.cumsum(lengths).tolist(), strict=True)
    ]
    order = np.array([row if row < len(table) else -1 for row in wanted], np.int64)
    places = np.array([place if place < len(order) else -1 for place in places], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_memory, "_LARGE_RUN_BYTES", large_run)
        found = MemoryRows(table.schema, batches, order).take(["text", "number", "flag"], places)
    rows = [order[place] if place >= 0 else -1 for place in places.tolist()]
    for name, column in zip(["text", "number", "flag"], found, strict=True):
        assert column.type == table.schema.field(name).type
        assert column.to_pylist() == [table[name][row].as_py() if row >= 0 else None for row in rows]
