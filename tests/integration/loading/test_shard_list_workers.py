"""The shard list under torch's DataLoader, with webdataset's splitters and workers of every kind."""

import gc
from pathlib import Path

import pytest
import torch.utils.data
import webdataset as wds

from tars import by_tarfile
from wdsplit.loading.epoch_shard_list import EpochShardList

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

NUM_SHARDS, SHARD_SAMPLES = 12, 3


@pytest.fixture(scope="module", autouse=True)
def tars_that_webdataset_leaves_open():
    """Collect them before other tests run, in which they would be errors."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def tars(tmp_path_factory):
    """Return the pattern of small tars."""
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(NUM_SHARDS):
        members = [(f"{shard:03d}-{sample}.txt", b"x") for sample in range(SHARD_SAMPLES)]
        (folder / f"{shard:03d}.tar").write_bytes(by_tarfile(members))
    return f"{folder}/{{000..{NUM_SHARDS - 1:03d}}}.tar"


def pipeline_of(shards):
    """Return a pipeline as users write it: the shards, the split, the samples' URLs and keys."""
    split = (wds.split_by_node, wds.split_by_worker)
    return wds.DataPipeline(shards, *split, wds.tarfile_to_samples(), wds.to_tuple("__url__", "__key__"))


def loader_of(shards, **options):
    return torch.utils.data.DataLoader(pipeline_of(shards), batch_size=None, **options)


def assert_read(loader, order, rank, world_size, num_workers):
    """Check that the workers of a rank read the samples of their shards, each worker in the order of the epoch."""
    delivered = [tuple(sample) for sample in loader]
    urls = list(dict.fromkeys(url for url, _ in delivered))
    expected = [(url, f"{Path(url).stem}-{sample}") for url in urls for sample in range(SHARD_SAMPLES)]
    assert sorted(delivered) == sorted(expected)
    assert sorted(urls) == sorted(order[rank::world_size])
    for worker in range(num_workers):
        part = order[rank::world_size][worker::num_workers]
        assert [url for url in urls if url in part] == part


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_ranks_and_workers_read_each_shard_once_in_the_order_of_the_epoch_that_was_set(tars, monkeypatch, workers):
    shards = EpochShardList(tars, seed=1)
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        loader = loader_of(shards, **workers)
        for epoch in (0, 7, 8, 7):
            shards.set_epoch(epoch)
            assert_read(loader, shards.order(epoch), rank, 2, workers.get("num_workers", 1))
    assert len({tuple(shards.order(epoch)) for epoch in (0, 7, 8)}) == 3
