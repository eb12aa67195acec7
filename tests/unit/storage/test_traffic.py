import contextvars
import threading

import numpy as np
import pytest

from wdsplit.storage.reopened_file import ReopenedFile
from wdsplit.storage.retry import Failure, FailureKind, Retries, RetryOptions, attempt
from wdsplit.storage.traffic import Traffic, count


def counter():
    cells = np.zeros(2, np.int64)
    return cells, Traffic(cells)


def reading(*sizes):
    """Give numbers of bytes, each read when it is asked for."""
    for size in sizes:
        count(num_bytes=size)
        yield size


def test_what_is_read_to_make_items_is_counted_and_nothing_else():
    cells, traffic = counter()
    count(num_bytes=1000)
    for size in traffic.counting(reading(1, 20, 300)):
        count(num_bytes=1000, retries=1)
        assert cells.tolist() == [{1: 1, 20: 21, 300: 321}[size], 0]
    count(num_bytes=1000)
    assert cells.tolist() == [321, 0]


def test_two_readers_that_take_turns_count_for_themselves():
    (mine, traffic), (others, other) = counter(), counter()
    list(zip(traffic.counting(reading(1, 2, 3)), other.counting(reading(10, 20, 30)), strict=True))
    assert (mine.tolist(), others.tolist()) == ([6, 0], [60, 0])


def test_after_an_error_nothing_is_counted():
    def failing():
        count(num_bytes=5)
        yield from ()
        raise OSError

    cells, traffic = counter()
    with pytest.raises(OSError):
        list(traffic.counting(failing()))
    count(num_bytes=1000)
    assert cells.tolist() == [5, 0]


def test_threads_that_have_a_copy_of_the_context_count_too():
    cells, traffic = counter()

    def many():
        for _ in range(2000):
            count(num_bytes=3, retries=1)

    def with_threads():
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(many,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield

    list(traffic.counting(with_threads()))
    assert cells.tolist() == [4 * 2000 * 3, 4 * 2000]


def retrying(failures):
    """Do something that fails a few times; give its result, if there is one."""
    left = iter(range(failures))

    def action(retries):
        if next(left, None) is not None:
            raise OSError

    def classify(error, place, url):
        return Failure(FailureKind.TRANSIENT, "OSError")

    options = RetryOptions(deadline_s=100.0)
    yield attempt(action, classify, Retries(options, "url", sleep=lambda seconds: None))


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_each_further_attempt_is_a_retry(failures):
    cells, traffic = counter()
    list(traffic.counting(retrying(failures)))
    assert cells.tolist() == [0, failures]


def test_files_of_network_file_systems_count_what_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))

    def read():
        file = ReopenedFile(path, is_remote=True)
        file.read(0, 10)
        file.read_into(memoryview(bytearray(25)), 50)
        yield

    cells, traffic = counter()
    list(traffic.counting(read()))
    assert cells.tolist() == [35, 0]
