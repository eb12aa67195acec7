"""Memory and integers that are shared with processes of any start method, with and without memfd_create."""

import copy
import gc
import multiprocessing
import os

import pytest

from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.loading.transport.shared_integers import SharedIntegers


@pytest.fixture(params=["memfd", "memfd is refused"])
def kind(request, monkeypatch):
    """Have memory of the system's, or on a system that gives none."""

    def refused(name):
        raise PermissionError(name)

    if request.param == "memfd is refused":
        monkeypatch.setattr(os, "memfd_create", refused)


def write(memory, places, text):
    begin = memory.allocate(100_000)
    memory.view(begin, len(text))[:] = text
    places.put(begin)
    memory.allocate(1)
    grown = memory.allocate(10_000_000)
    memory.view(grown, len(text))[:] = text[::-1]
    places.put(grown)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_what_a_process_writes_into_memory_that_it_lets_grow_is_read_by_the_one_that_started_it(kind, method):
    memory, context = SharedMemory(), multiprocessing.get_context(method)
    places = context.SimpleQueue()
    process = context.Process(target=write, args=(memory, places, b"abc"))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [bytes(memory.view(places.get(), 3)) for _ in range(2)] == [b"abc", b"cba"]


def num_open():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_left_open_and_views_stay_valid(kind, closed):
    gc.collect()
    before = num_open()
    memory = SharedMemory()
    begins = [memory.allocate(5000) for _ in range(20)]
    for number, begin in enumerate(begins):
        memory.view(begin, 5000)[:] = bytes([number]) * 5000
    views = [memory.view(begin, 5000) for begin in begins]
    if closed:
        memory.close()
        memory.close()
    del memory
    assert [set(view) for view in views] == [{number} for number in range(20)]
    del views
    gc.collect()
    assert num_open() == before


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memory files")
def test_freed_bytes_go_back_to_the_system_and_others_stay():
    memory = SharedMemory()
    freed, kept = memory.allocate(2**20), memory.allocate(2**20)
    for begin in (freed, kept):
        memory.view(begin, 2**20)[:] = b"x" * 2**20
    memory.free(freed, 2**20)
    assert set(memory.view(kept, 2**20)) == set(b"x")
    assert not any(memory.view(freed, 2**20))


# Integers


def add(shared, row, value):
    shared.array[row] += value


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_process_that_is_started_shares_them(method):
    shared = SharedIntegers(2, 3)
    view = shared.array
    process = multiprocessing.get_context(method).Process(target=add, args=(shared, 1, 2**62))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert view.tolist() == [[0] * 3, [2**62] * 3]


def test_a_copy_has_its_own_as_they_are():
    shared = SharedIntegers(3)
    shared.array[:] = 1, 2, 3
    other = copy.deepcopy(shared)
    other.array[0] = 7
    assert shared.array.tolist() == [1, 2, 3]
    assert other.array.tolist() == [7, 2, 3]
