"""The shard list over remote stores, in pipelines as webdataset's users write them."""

import io
import itertools
import pickle
import random

import pytest
import torch.utils.data
import webdataset as wds
from torchdata.stateful_dataloader import StatefulDataLoader
from webdataset.gopen import gopen
from webdataset.gopen import gopen_schemes as table

from faults import Shorten
from tars import by_tarfile
from wdsplit.loading import shard_streams
from wdsplit.loading.epoch_shard_list import EpochShardList

NUM_SHARDS, SHARD_SAMPLES = 4, 3
KEYS = sorted(f"{shard}-{sample}" for shard in range(NUM_SHARDS) for sample in range(SHARD_SAMPLES))


@pytest.fixture
def tars(bucket):
    """Return the URL of a folder of tars in a bucket."""
    (bucket.folder / "tars").mkdir()
    for shard in range(NUM_SHARDS):
        members = [(f"{shard}-{sample}.txt", bytes([shard]) * 5000) for sample in range(SHARD_SAMPLES)]
        (bucket.folder / "tars" / f"{shard}.tar").write_bytes(by_tarfile(members))
    return f"{bucket.url}/tars"


@pytest.fixture
def gopen_schemes(monkeypatch):
    """Return webdataset's table of openers, which is put back after the test."""
    for scheme in list(table):
        monkeypatch.setitem(table, scheme, table[scheme])
    monkeypatch.delitem(table, "s3", raising=False)
    yield table
    table.pop("s3", None)


def pipeline_of(shards):
    split = (wds.split_by_node, wds.split_by_worker)
    return wds.DataPipeline(shards, *split, wds.tarfile_to_samples(), wds.to_tuple("__url__", "__key__", "txt"))


def read(pipeline):
    """Return the keys of an epoch, sorted, and the URLs that they came from, in order; the payloads must be right."""
    samples = list(map(tuple, pipeline))
    assert all(data == bytes([int(key[0])]) * 5000 for _, key, data in samples)
    assert {type(url) for url, _, _ in samples} <= {str, shard_streams.ShardUrl}
    return sorted(key for _, key, _ in samples), list(dict.fromkeys(url for url, _, _ in samples))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("glob", {}),
        ("braces", {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}),
        ("list", {"num_workers": 1, "multiprocessing_context": "spawn"}),
    ],
)
def test_workers_of_every_kind_read_tars_of_a_bucket_named_in_any_way_and_see_the_epoch(tars, kind, options):
    urls = [f"{tars}/{shard}.tar" for shard in range(NUM_SHARDS)]
    shards = EpochShardList({"glob": f"{tars}/*.tar", "braces": f"{tars}/{{0..3}}.tar", "list": urls}[kind])
    assert shards.urls == urls
    loader = torch.utils.data.DataLoader(pipeline_of(shards), batch_size=None, **options)
    for epoch in (0, 5):
        shards.set_epoch(epoch)
        keys, order = read(loader)
        assert keys == KEYS
        for part in (shards.order(epoch)[worker :: options.get("num_workers", 1)] for worker in range(2)):
            assert [url for url in order if url in part] == part


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
def test_a_stateful_loader_resumes_a_pipeline_in_the_middle_of_an_epoch_by_reading_again(tars):
    def loader():
        shards = EpochShardList(f"{tars}/*.tar")
        shards.set_epoch(2)
        pipeline = pipeline_of(shards).compose(wds.shuffle(5, rng=random.Random(0)))
        return StatefulDataLoader(pipeline, batch_size=None, num_workers=2)

    begun, resumed = loader(), loader()
    samples = iter(begun)
    list(itertools.islice(samples, 7))
    resumed.load_state_dict(begun.state_dict())
    rest = list(samples)
    assert list(resumed) == rest
    assert len(rest) == NUM_SHARDS * SHARD_SAMPLES - 7


def test_a_short_answer_is_never_taken_for_a_whole_shard_even_at_the_end_of_a_member(tars, fault_proxy):
    """Webdataset takes a stream that ends between two members for a whole one."""
    shards = EpochShardList(f"{tars}/*.tar", storage_options={"first_delay_s": 0.01, "deadline_s": 0.5})
    fault_proxy.plan = lambda request: Shorten(5632) if request.range else None
    assert read(pipeline_of(shards))[0] == KEYS
    shards.set_epoch(1)
    fault_proxy.plan = lambda request: Shorten(5632 if request.range == (0, 20479) else 0) if request.range else None
    with pytest.raises(OSError, match=r"\.tar"):
        read(pipeline_of(shards))


def test_urls_that_are_not_of_the_list_are_opened_as_before(tars, gopen_schemes):
    before = dict(gopen_schemes)
    shards = EpochShardList(f"{tars}/*.tar")
    assert gopen_schemes == before
    (first, *_) = [item["url"] for item in shards]
    with gopen(first) as stream:
        assert len(stream.read()) == 20480
    with pytest.raises(ValueError, match="no gopen handler defined"):
        gopen(f"{tars}/0.tar")
    assert {scheme: gopen_schemes[scheme] for scheme in before} == before


def test_an_opener_that_the_user_has_registered_is_used(tars, bucket, gopen_schemes):
    opened = []

    def own(url, *_, **__):
        opened.append(url)
        return io.BytesIO((bucket.folder / "tars" / url[-5:]).read_bytes())

    gopen_schemes["s3"] = own
    shards = EpochShardList(f"{tars}/*.tar")
    assert sorted(key for _, key, _ in pipeline_of(shards)) == KEYS
    assert opened == shards.order(0)


def test_options_with_secrets_stay_in_the_process(tars):
    (item, *_) = EpochShardList(f"{tars}/*.tar", storage_options={"timeout_s": 77})
    assert item["url"].options == {"timeout_s": 77}
    copied = pickle.loads(pickle.dumps(item["url"]))
    assert (type(copied), copied) == (str, str(item["url"]))
