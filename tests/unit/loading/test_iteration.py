import shutil

import pytest
import webdataset

from made_datasets import converted, numbers_dataset, numbers_table
from wdsplit.errors import InputError
from wdsplit.loading.dataset import Dataset


def dropped_warnings(caplog):
    return [record.getMessage() for record in caplog.records if "may drop samples" in record.getMessage()]


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (lambda dataset: dataset.select(bool), "select"),
        (lambda dataset: dataset.rsample(1.0), "rsample"),
        (lambda dataset: dataset.map(dict, handler=webdataset.ignore_and_continue), "map"),
    ],
)
def test_ranks_are_warned_once_of_a_stage_that_may_drop_samples(tmp_path, caplog, stage, name):
    """And not if there is one rank, or they are uneven; not by another than the first; not where all is kept."""
    path = converted(tmp_path, numbers_table(8), shards=2, lanes=2)
    list(stage(Dataset(path, rank=0, world_size=1)))
    list(stage(Dataset(path, rank=0, world_size=2, tail="uneven")))
    list(stage(Dataset(path, rank=1, world_size=2)))
    list(Dataset(path, rank=0, world_size=2).decode().map(dict).batched(4))
    assert not dropped_warnings(caplog)
    for _ in range(2):
        assert len(list(stage(Dataset(path, rank=0, world_size=2)))) == 4
    (message,) = dropped_warnings(caplog)
    assert message.startswith(f"{path}: {name} may drop samples")


def test_a_dataset_that_repeats_is_refused_before_it_is_read(tmp_path):
    path = numbers_dataset(tmp_path, 8, shards=2)
    dataset = Dataset(path).repeat(2)
    shutil.rmtree(path)
    with pytest.raises(InputError, match="repeat and with_epoch"):
        iter(dataset)
