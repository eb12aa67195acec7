import gc
import weakref

import pyarrow as pa
import pytest

from made_datasets import numbers_table
from tables import converted, write_table
from wdsplit.conversion.shuffle import in_memory
from wdsplit.engines.private_memory import PrivateMemory
from wdsplit.engines.shared_memory import SharedMemory


def test_what_was_written_is_viewed_where_it_was_allocated():
    memory = PrivateMemory()
    begins = [memory.allocate(size) for size in (5_000_000, 0, 7, 4096)]
    for begin, data in zip(begins, (b"abc", b"", b"seven77", b"x" * 4096), strict=True):
        memory.write(begin, data)
    memory.write(begins[0] + 4_999_990, memoryview(b"0123456789"))
    assert bytes(memory.view(begins[0], 4)) == b"abc\0"
    assert bytes(memory.view(begins[0] + 4_999_988, 12)) == b"\0\x000123456789"
    assert bytes(memory.view(begins[2], 7)) == b"seven77"
    assert bytes(memory.view(begins[3], 4096)) == b"x" * 4096


def test_memory_is_kept_by_its_views_and_goes_with_the_last():
    memory = PrivateMemory()
    begin = memory.allocate(10)
    kept = weakref.ref(memory._pieces[0])
    memory.write(begin, b"0123456789")
    view = memory.view(begin, 10)
    del memory
    gc.collect()
    assert bytes(view) == b"0123456789" and kept() is not None
    del view
    assert kept() is None


@pytest.mark.parametrize(
    ("jobs", "score", "expected"),
    [(1, 0.5, PrivateMemory), (2, "x", PrivateMemory), (2, 0.5, SharedMemory), (5, "x", SharedMemory)],
)
def test_rows_go_into_shared_memory_only_if_processes_may_write_shards(tmp_path, monkeypatch, jobs, score, expected):
    """As they do where there is JSON to encode, or are more jobs than threads are worth."""
    kinds, load_table = [], in_memory.load_table

    def load(*arguments):
        loaded = load_table(*arguments)
        kinds.append(type(loaded.memory))
        return loaded

    monkeypatch.setattr("wdsplit.conversion.driver.load_table", load)
    path = write_table(tmp_path / "table.parquet", numbers_table(40).append_column("score", pa.array([score] * 40)))
    converted(path, tmp_path / "out", shards=4, shuffle=True, jobs=jobs)
    assert kinds == [expected]
