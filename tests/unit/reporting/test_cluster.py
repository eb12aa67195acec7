import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.errors import InputError
from wdsplit.reporting.cluster import Cluster, Load, Topology

LOAD = Load(
    topology=Topology(8, 4),
    cluster=Cluster(),
    steps=100,
    num_decoded=64,
    bytes_read=8e9,
    requests=16_000,
    start_requests=16,
    first_bytes=1e6,
    first_requests=96,
    sample_ms=1.0,
)


def changed(**values):
    return dataclasses.replace(LOAD, **values).estimate


def test_nobody_waits_where_training_is_slowest():
    found = changed(cluster=Cluster(link_gbits=100, step_ms=200))
    assert found.bound == "training"
    assert found.waiting == 0
    assert found.epoch_s == pytest.approx(found.first_batch_s + 100 * 0.2)


def test_a_link_that_is_too_slow_decides_how_long_a_step_takes():
    found = changed(first_bytes=0, cluster=Cluster(link_gbits=1, step_ms=200))
    # 10 MB a rank and step, through an eighth of 125 MB/s
    assert found.link_s == pytest.approx(0.64)
    assert found.bound == "link"
    assert found.waiting == pytest.approx(1 - 0.2 / 0.64)
    assert changed(first_bytes=0, cluster=Cluster(link_gbits=10, slow_link=10, step_ms=200)) == found


def test_a_link_carries_what_comes_before_the_first_batch_once():
    """In a short epoch of many lanes that is nearly all of it: here 900 of 1,000 MB, at 15.6 MB/s."""
    found = changed(first_bytes=900e6, cluster=Cluster(link_gbits=1, latency_ms=0, step_ms=1))
    assert found.epoch_s == pytest.approx(1000 / 15.625 + found.workers_s)


def test_requests_take_their_latency_as_many_at_a_time_as_there_are_connections_and_have_a_price():
    found = changed(cluster=Cluster(link_gbits=1000, latency_ms=320, step_ms=1))
    assert found.requests_s == pytest.approx(20 * 0.32 / 64)
    assert found.bound == "requests"
    found = changed(cluster=Cluster(price_per_1000_requests=0.5, price_per_gb=0.25))
    assert found.cost == pytest.approx(16 * 0.5 + 8 * 0.25)


def test_workers_share_a_batch_and_a_rank_without_them_decodes_between_steps():
    assert changed().workers_s == pytest.approx(64 * 0.001 / 4)
    assert changed(topology=Topology(8, 0)).waiting == pytest.approx(0.064 / 0.264)
    assert changed(sample_ms=100.0).bound == "decoding"


@given(st.floats(0.01, 1000), st.floats(0, 1000), st.floats(0.1, 10_000), st.integers(0, 64))
def test_estimates_are_in_their_bounds_and_more_of_anything_never_hurts(link, latency, step, workers):
    cluster, topology = Cluster(link_gbits=link, latency_ms=latency, step_ms=step), Topology(8, workers)
    found = changed(topology=topology, cluster=cluster)
    faster = dataclasses.replace(cluster, link_gbits=2 * link, latency_ms=latency / 2)
    better = changed(topology=topology, cluster=faster)
    assert 0 <= found.waiting < 1
    assert found.epoch_s >= LOAD.steps * step / 1000
    assert better.epoch_s <= found.epoch_s
    assert better.waiting <= found.waiting


def test_an_epoch_without_steps_takes_what_its_first_batch_takes():
    found = changed(steps=0)
    assert found.epoch_s == found.first_batch_s


def test_all_that_is_wrong_with_a_cluster_is_named_and_a_topology_is_parsed_as_people_write_it():
    wrong = {"link_gbits": 0, "latency_ms": -1, "step_ms": float("nan"), "sample_ms": -1, "connections": 0}
    with pytest.raises(InputError, match="invalid cluster") as caught:
        Cluster(**wrong, slow_link=0.5)
    assert all(name in caught.value.found for name in (*wrong, "slow_link"))
    assert Topology.parse("8x4") == Topology(8, 4)
    assert Topology.parse("1X0") == Topology(1)
    assert str(Topology(8, 4)) == "8 ranks x 4 workers"
    for text in ("8", "8x", "x4", "0x4", "8x-1", "8x4x2", "٣x1", "65537x1", ""):
        with pytest.raises(InputError, match="invalid topology"):
            Topology.parse(text)
