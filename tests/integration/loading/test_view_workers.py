"""Views in worker processes, and in torch's own loaders."""

import gc
import multiprocessing
import shutil

import pytest
import torch.utils.data

from made_datasets import all_deliveries, deliveries, delivering, real_rows
from made_views import store_view
from tables import wait_until
from wdsplit.errors import InputError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

EASY, HARD = range(0, 101, 3), range(40, 90)
ALL = range(101)


@pytest.fixture(scope="module")
def path(numbers, tmp_path_factory):
    """Return a dataset of 101 rows with two views."""
    path = str(tmp_path_factory.mktemp("viewed") / "out")
    shutil.copytree(numbers, path)
    store_view(path, "easy", EASY)
    store_view(path, "hard", HARD)
    return path


def opened(path, **options):
    return delivering(Dataset(path, **{"rank": 0, "world_size": 1} | options))


def test_persistent_workers_that_have_an_old_view_end(path):
    loader = Loader(opened(path), 12, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    before = set(multiprocessing.active_children())
    list(loader)
    old = set(multiprocessing.active_children()) - before
    assert len(old) == 2
    list(loader)
    assert set(multiprocessing.active_children()) - before == old
    loader.dataset.set_view("easy")
    list(loader)
    gc.collect()
    wait_until(lambda: not any(process.is_alive() for process in old), "the old workers have ended")
    assert len(set(multiprocessing.active_children()) - before) == 2


# torch's own loaders


def plain_loader(dataset, num_workers, **options):
    return torch.utils.data.DataLoader(dataset, batch_size=5, num_workers=num_workers, **options)


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_set_view_reaches_the_next_workers_of_a_plain_dataloader(path, num_workers, context):
    loader = plain_loader(opened(path), num_workers, multiprocessing_context=context if num_workers else None)
    iteration = iter(loader)
    begun = deliveries(next(iteration))
    loader.dataset.set_view("easy")
    assert real_rows(begun + all_deliveries(iteration)) == list(ALL)
    assert real_rows(all_deliveries(loader)) == list(EASY)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_persistent_workers_of_a_plain_dataloader_refuse_a_view_that_they_do_not_have(path, context):
    dataset = opened(path)
    dataset.set_view("hard")
    loader = plain_loader(dataset, 2, persistent_workers=True, multiprocessing_context=context)
    assert real_rows(all_deliveries(loader)) == list(HARD)
    dataset.set_view("easy")
    with pytest.raises(InputError, match="set_view does not reach the persistent workers"):
        list(loader)
    del loader
    assert real_rows(all_deliveries(plain_loader(dataset, 2, persistent_workers=True))) == list(EASY)
