"""A table that is sorted by class, as most are, is converted so that every batch of every rank has all classes."""

import numpy as np
import pytest

from tables import write_table
from wdsplit import ConvertOptions, convert
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

CLASSES, RANKS, BATCH = 10, 8, 128


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("in") / "a.parquet", {"label": np.repeat(np.arange(CLASSES), 5000)})


def mean_chi_squared(dataset):
    """Return the mean over all whole batches of an epoch, of each rank; 9 is ideal."""
    found = []
    for rank in range(RANKS):
        batches = Loader(Dataset(str(dataset), rank=rank, world_size=RANKS).decode().to_tuple("cls"), BATCH)
        for (labels,) in batches:
            counts = np.bincount(labels, minlength=CLASSES)
            found.append(((counts - BATCH / CLASSES) ** 2).sum() / (BATCH / CLASSES))
    return np.mean(found)


@pytest.mark.parametrize(("options", "low", "high"), [({}, 7.5, 10.5), ({"shuffle": False}, 100, 1000)], ids=str)
def test_classes_in_the_batches_of_a_rank_are_as_chance_has_them(path, tmp_path, options, low, high):
    convert(path, tmp_path / "out", ConvertOptions(**options))
    assert low < mean_chi_squared(tmp_path / "out") < high
