"""The shard list under torch's DataLoader, with webdataset's splitters and workers of every kind."""

import gc
import io
import itertools
import random
import tarfile
import traceback
from pathlib import Path

import pytest
import torch.utils.data
import webdataset as wds
from torchdata.stateful_dataloader import StatefulDataLoader

from wdsplit.loading.epoch_shard_list import EpochShardList

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

NUM_SHARDS, SHARD_SAMPLES = 12, 3

LOADERS = {
    "in process": {},
    "forked": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forked, persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
}


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
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for sample in range(SHARD_SAMPLES):
                member = tarfile.TarInfo(f"{shard:03d}-{sample}.txt")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"x"))
    return f"{folder}/{{000..{NUM_SHARDS - 1:03d}}}.tar"


def pipeline_of(*first):
    """Return a pipeline as users write it: what comes first, the split, the samples' URLs and keys."""
    split = (wds.split_by_node, wds.split_by_worker)
    return wds.DataPipeline(*first, *split, wds.tarfile_to_samples(), wds.to_tuple("__url__", "__key__"))


def loader_of(*first, **options):
    return torch.utils.data.DataLoader(pipeline_of(*first), batch_size=None, **options)


def be_rank(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def read(loader):
    """Return the URLs of an epoch in the order in which they began, having seen all samples of each."""
    delivered = [tuple(sample) for sample in loader]
    urls = list(dict.fromkeys(url for url, _ in delivered))
    assert sorted(delivered) == sorted(
        (url, f"{Path(url).stem}-{sample}") for url in urls for sample in range(SHARD_SAMPLES)
    )
    return urls


def dealt(order, rank, world_size, num_workers):
    """Return the URLs of each worker of a rank."""
    return [order[rank::world_size][worker::num_workers] for worker in range(num_workers)]


def assert_parts(urls, parts):
    """Check that workers have read their parts, each in its order."""
    assert sorted(urls) == sorted(itertools.chain(*parts))
    for part in parts:
        assert [url for url in urls if url in part] == part


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_ranks_and_workers_read_each_shard_once_in_the_order_of_the_epoch_that_was_set(tars, monkeypatch, options):
    shards = EpochShardList(tars, seed=1)
    for rank in range(2):
        be_rank(monkeypatch, rank, 2)
        loader = loader_of(shards, **options)
        for epoch in (0, 7, 8, 7):
            shards.set_epoch(epoch)
            parts = dealt(shards.order(epoch), rank, 2, options.get("num_workers", 1))
            assert_parts(read(loader), parts)
    assert len({tuple(shards.order(epoch)) for epoch in (0, 7, 8)}) == 3


def trap_of(kind, urls):
    """Return the first stages of a pipeline that looks right."""
    return {
        "fixed seed": (wds.SimpleShardList(urls, seed=0),),
        "detshuffle": (wds.SimpleShardList(urls), wds.detshuffle(seed=0)),
        "unseeded": (wds.SimpleShardList(urls), wds.shuffle(100)),
        "ours": (EpochShardList(urls, seed=0),),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "is_exact", "is_new"),
    [("fixed seed", True, False), ("detshuffle", True, False), ("unseeded", False, True), ("ours", True, True)],
)
def test_shuffles_of_webdataset_repeat_an_order_or_lose_shards_and_ours_does_neither(tars, kind, is_exact, is_new):
    loader = loader_of(*trap_of(kind, tars), num_workers=2)
    random.seed(0)
    epochs = []
    for epoch in range(2):
        if kind == "ours":
            loader.dataset.pipeline[0].set_epoch(epoch)
        epochs.append([url for url, _ in loader])
    exact = [sorted(urls) == sorted(wds.shardlists.expand_urls(tars) * SHARD_SAMPLES) for urls in epochs]
    assert all(exact) == is_exact
    assert (epochs[0] != epochs[1]) == is_new


def test_workers_of_a_loader_warn_once_in_all_their_epochs(tars):
    """A warning is an error here, in forked workers too."""
    shards = EpochShardList(wds.shardlists.expand_urls(tars)[:3])
    loader = loader_of(shards, num_workers=2)
    with pytest.raises(UserWarning, match="3 shards cannot be divided by 1 rank x 2 workers") as caught:
        read(loader)
    traceback.clear_frames(caught.tb)
    shards.set_epoch(1)
    assert_parts(read(loader), dealt(shards.order(1), 0, 1, 2))


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
