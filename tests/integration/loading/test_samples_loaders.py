"""Random access through torch's loaders and samplers, in worker processes and from a bucket."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import wdsplit
from faults import Hold
from made_datasets import converted, payloads_table
from tables import DEADLINE_S

NUM_ROWS, PAYLOAD_BYTES = 240, 20_000


@pytest.fixture(scope="module")
def payloads(tmp_path_factory):
    """Return a dataset of 240 samples of 20,000 bytes in 8 shards."""
    table = payloads_table(NUM_ROWS, PAYLOAD_BYTES).append_column("cls", pa.array(range(NUM_ROWS)))
    return converted(tmp_path_factory.mktemp("random"), table, shards=8, lanes=4, window=10)


@pytest.fixture
def remote(bucket, payloads):
    """Return the URL of the dataset in a bucket."""
    return bucket.put(payloads)


def number(sample):
    """Return the row that a payload says, which is that of its label."""
    row = int.from_bytes(sample["bin"][:2], "big")
    assert len(sample["bin"]) == PAYLOAD_BYTES
    assert sample["cls"] == row == sample["__position__"]
    return row


@pytest.mark.parametrize(
    "workers",
    [
        {},
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
    ],
    ids=["none", "fork", "spawn"],
)
def test_torch_loaders_give_what_their_samplers_choose(payloads, workers):
    samples = wdsplit.Samples(payloads).decode().map(number)
    assert samples[100:103].__getitems__([2, 0]) == [102, 100]  # a fork does not take over what is open
    loader = DataLoader(samples, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0), **workers)
    epochs = [[int(row) for batch in loader for row in batch] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(NUM_ROWS))
    assert epochs[0] != epochs[1]


def test_the_epoch_reaches_persistent_workers(payloads):
    samples = (
        wdsplit.Samples(payloads, fields=["cls"])
        .decode()
        .map_random(lambda row, generator: (row, float(generator.random())), field="cls")
        .to_tuple("cls")
    )
    loader = DataLoader(samples, batch_size=NUM_ROWS, num_workers=1, persistent_workers=True)
    drawn = []
    for epoch in (0, 1, 0):
        samples.set_epoch(epoch)
        ((batch,),) = loader
        drawn.append(batch[1].tolist())
    assert drawn[0] == drawn[2] != drawn[1]


# A bucket


def test_a_batch_from_a_bucket_fetches_what_it_needs_and_hardly_more(remote, fault_proxy, payloads):
    samples = wdsplit.Samples(remote).decode().map(number)
    assert samples.__getitems__([200, 31, 30, 32, 5, 29]) == [200, 31, 30, 32, 5, 29]
    num_requests, num_bytes = fault_proxy.fetched(".tar")
    assert num_requests == 4  # 30 to 32 lie side by side, and much between 5 and 29
    assert num_bytes < 1.2 * 6 * (PAYLOAD_BYTES + 3 * 1024)
    assert fault_proxy.fetched(".places")[0] == 3
    samples.__getitems__([201, 33])
    assert fault_proxy.fetched(".places")[0] == 3


def by_threads(samples, numbers):
    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(samples.__getitem__, numbers))


@pytest.mark.parametrize("read", [wdsplit.Samples.__getitems__, by_threads])
def test_requests_of_a_batch_or_of_threads_are_under_way_at_the_same_time(remote, fault_proxy, read):
    """Of one shard too: none is answered before all are there."""
    all_are_asked, asked = threading.Event(), []

    def plan(request):
        if not request.path.endswith("000000.tar"):
            return None
        asked.append(request)
        if len(asked) == 3:
            all_are_asked.set()
        return Hold(all_are_asked)

    fault_proxy.plan = plan
    times = {"timeout_s": DEADLINE_S, "deadline_s": DEADLINE_S}
    samples = wdsplit.Samples(remote, storage_options=times).decode().map(number)
    assert read(samples, [0, 29, 14]) == [0, 29, 14]
