import contextvars
import errno
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from wdsplit.storage.reopened_file import ReopenedFile
from wdsplit.storage.traffic import Traffic, count


def counter():
    cells = np.zeros(2, np.int64)
    return cells, Traffic(cells)


def reading(*sizes):
    """Give numbers of bytes, each read when it is asked for; fail at the end."""
    for size in sizes:
        count(num_bytes=size)
        yield size
    raise OSError


def test_what_is_read_to_make_items_is_counted_by_each_of_two_readers_until_they_fail_and_nothing_else():
    (mine, traffic), (others, other) = counter(), counter()
    count(num_bytes=1000)
    own, others_own = traffic.counting(reading(1, 20, 300)), other.counting(reading(10, 200))
    for size, total, others_total in ((1, 1, 10), (20, 21, 210)):
        assert next(own) == size
        next(others_own)
        count(num_bytes=1000, retries=1)
        assert (mine.tolist(), others.tolist()) == ([total, 0], [others_total, 0])
    assert next(own) == 300
    with pytest.raises(OSError):
        next(own)
    count(num_bytes=1000)
    assert mine.tolist() == [321, 0]


def test_threads_that_have_a_copy_of_the_context_count_too():
    cells, traffic = counter()

    def many(context):
        context.run(lambda: [count(num_bytes=3, retries=1) for _ in range(2000)])

    def with_threads():
        with ThreadPoolExecutor(4) as pool:
            yield list(pool.map(many, [contextvars.copy_context() for _ in range(4)]))

    list(traffic.counting(with_threads()))
    assert cells.tolist() == [4 * 2000 * 3, 4 * 2000]


def test_retries_and_reads_of_network_file_systems_are_counted(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    left, preadv = [OSError(errno.EIO, "failed")] * 2, os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: (_ for _ in ()).throw(left.pop()) if left else preadv(*given))

    def read():
        file = ReopenedFile(path, is_remote=True)
        file.read(0, 10)
        file.read_into(memoryview(bytearray(25)), 50)
        yield

    cells, traffic = counter()
    list(traffic.counting(read()))
    assert cells.tolist() == [35, 2]
