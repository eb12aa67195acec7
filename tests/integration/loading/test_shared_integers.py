import copy
import multiprocessing
import pickle

import pytest

from wdsplit.loading.transport.shared_integers import SharedIntegers


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda shared: pickle.loads(pickle.dumps(shared))])
def test_a_copy_has_its_own_as_they_are(copied):
    shared = SharedIntegers(3)
    shared.array[:] = 1, 2, 3
    other = copied(shared)
    other.array[0] = 7
    assert shared.array.tolist() == [1, 2, 3]
    assert other.array.tolist() == [7, 2, 3]
