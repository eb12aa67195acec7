"""Ranks that read an epoch from one S3 server: what they ask for is what a report predicts."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import wdsplit
from made_datasets import converted, payloads_table
from wdsplit.reporting.cluster import Cluster, Topology
from wdsplit.reporting.subject import Subject
from wdsplit.reporting.topologies import loads

RANKS, NUM_ROWS, PAYLOAD_BYTES = 64, 3840, 3000

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rank_traffic")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a dataset of 128 shards of 3 windows each."""
    table = payloads_table(NUM_ROWS, PAYLOAD_BYTES)
    return converted(tmp_path_factory.mktemp("ranks"), table, shards=128, lanes=64, window=10)


@pytest.mark.parametrize(("lanes", "readers"), [(64, 1), (16, 4)])
def test_64_ranks_ask_for_what_a_report_predicts(made, bucket, fault_proxy, lanes, readers):
    url = bucket.put(made)

    def keys(rank):
        return [sample["__key__"] for sample in wdsplit.Dataset(url, lanes=lanes, rank=rank, world_size=RANKS)]

    with ThreadPoolExecutor(8) as pool:
        found = [key for rank_keys in pool.map(keys, range(RANKS)) for key in rank_keys]
    assert len(found) == len(set(found)) == NUM_ROWS
    exchanges = fault_proxy.exchanges
    kinds = [exchange.request.path.rpartition(".")[2] for exchange in exchanges]
    num_bytes = sum(exchange.bytes_sent for exchange, kind in zip(exchanges, kinds, strict=True) if kind == "tar")
    opened = 128 * readers
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "json": RANKS,
        "parquet": RANKS,
        "places": opened,
        "tar": opened,
    }
    subject = Subject(wdsplit.Dataset(url, lanes=lanes).source)
    facts = loads(subject, [Topology(RANKS)], 4, Cluster(), 0.1)[0]
    assert facts.requests + facts.start_requests == len(exchanges)
    assert 0.95 < num_bytes / facts.bytes_read <= 1  # less what fills up shards behind their last samples


@pytest.mark.parametrize(
    ("lanes", "ahead"), [(16, 300_000), (16, None), (12, 1_000_000)], ids=["little", "all", "a part of cut lanes"]
)
def test_requests_for_a_part_of_the_windows_at_a_time_are_those_that_a_report_predicts(
    made, bucket, fault_proxy, lanes, ahead
):
    url, options = bucket.put(made), {"lanes": lanes, "read_ahead_bytes": ahead}
    for rank in range(4):
        dataset = wdsplit.Dataset(url, **options, rank=rank, world_size=4)
        for _ in wdsplit.Loader(dataset, 8):
            pass
    # The report's own dataset is on a disk, where the same number is predicted as for a store.
    facts = loads(Subject(wdsplit.Dataset(made, **options).source), [Topology(4)], 8, Cluster(), 0.1)[0]
    assert len(fault_proxy.exchanges) == pytest.approx(facts.requests + facts.start_requests, rel=0.1)
