"""The shard list under torch's DataLoader, with webdataset's splitters, ranks and workers."""

import gc
import random
from collections import Counter
from pathlib import Path

import pytest
import torch.utils.data
import webdataset as wds
from torchdata.stateful_dataloader import StatefulDataLoader

from tars import by_tarfile
from wdsplit.loading.epoch_shard_list import EpochShardList

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

NUM_SHARDS, SHARD_SAMPLES = 8, 3


@pytest.fixture(scope="module", autouse=True)
def tars_that_webdataset_leaves_open():
    """Collect them before other tests run, in which they would be errors."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Return the pattern of small tars."""
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(NUM_SHARDS):
        members = [(f"{shard}-{sample}.txt", b"x") for sample in range(SHARD_SAMPLES)]
        (folder / f"{shard}.tar").write_bytes(by_tarfile(members))
    return f"{folder}/{{0..{NUM_SHARDS - 1}}}.tar"


def pipeline_of(shards):
    """Return a pipeline as users write it: the shards, the split, the samples' URLs and keys."""
    split = (wds.split_by_node, wds.split_by_worker)
    return wds.DataPipeline(shards, *split, wds.tarfile_to_samples(), wds.to_tuple("__url__", "__key__"))


def test_two_ranks_with_two_workers_read_each_shard_once_in_the_order_of_the_epoch_that_was_set(tars, monkeypatch):
    shards, read = EpochShardList(tars, seed=1), Counter()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loader = torch.utils.data.DataLoader(
            pipeline_of(shards), batch_size=None, num_workers=2, persistent_workers=True
        )
        for epoch in (0, 7):
            shards.set_epoch(epoch)
            delivered = [tuple(sample) for sample in loader]
            urls = list(dict.fromkeys(url for url, _ in delivered))
            for worker in range(2):
                part = shards.order(epoch)[rank::2][worker::2]
                assert [url for url in urls if url in part] == part
            read.update((epoch, key) for _, key in delivered)
    keys = [f"{Path(url).stem}-{sample}" for url in shards.urls for sample in range(SHARD_SAMPLES)]
    assert read == Counter((epoch, key) for epoch in (0, 7) for key in keys)


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
def test_a_stateful_loader_resumes_a_pipeline_in_the_middle_of_an_epoch_by_reading_again(tars):
    def loader():
        shards = EpochShardList(tars)
        shards.set_epoch(2)
        pipeline = pipeline_of(shards).compose(wds.shuffle(5, rng=random.Random(0)))
        return StatefulDataLoader(pipeline, batch_size=None, num_workers=2)

    begun = loader()
    samples = iter(begun)
    for _ in range(7):
        next(samples)
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    rest = list(samples)
    assert list(resumed) == rest
    assert len(rest) == NUM_SHARDS * SHARD_SAMPLES - 7
