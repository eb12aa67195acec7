"""What a loader counts while it trains, in its workers too, and how that is logged."""

import itertools
import logging
import shutil
from types import SimpleNamespace

import pytest

import wdsplit
from faults import EveryOther, internal_error
from loader_kinds import every_kind

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SOON = {"first_delay_s": 0.01}
"""Storage options with which requests are repeated soon."""


@pytest.fixture
def remote(bucket, whole_lanes):
    """Return the URL of a dataset in a bucket."""
    shutil.copytree(whole_lanes, bucket.folder / "train")
    return f"{bucket.url}/train"


def sent(proxy, num_before):
    """Return how many bytes the server has sent after its first exchanges, those of errors left out."""
    return sum(exchange.bytes_sent for exchange in proxy.exchanges[num_before:] if exchange.status < 300)


# Remote storage


@every_kind
def test_bytes_and_retries_of_all_workers_are_counted(remote, fault_proxy, options):
    dataset = wdsplit.Dataset(remote, storage_options=SOON)
    loader = wdsplit.Loader(dataset, 12, **options)
    num_opening = len(fault_proxy.exchanges)
    list(loader)
    assert loader.statistics().retries == 0
    assert loader.statistics().fetched_bytes == sent(fault_proxy, num_opening) > 0
    plan = fault_proxy.plan = EveryOther([internal_error()], 1)
    list(loader)
    assert loader.statistics().retries == plan.num_given > 0
    assert loader.statistics().fetched_bytes == sent(fault_proxy, num_opening)


def test_retries_are_counted_before_the_batch_comes(remote, fault_proxy):
    """A store that is away for long shows as retries at once."""
    loader = wdsplit.Loader(wdsplit.Dataset(remote, storage_options=SOON), 12, num_workers=1, workers="thread")

    def plan(request):
        is_early = loader.statistics().retries < 5 and len(fault_proxy.exchanges) < 100
        if request.path.endswith(".tar") and is_early:
            return internal_error()
        return None

    fault_proxy.plan = plan
    next(iter(loader))
    assert loader.statistics().retries >= 5


# Scalars


def test_a_monitor_gives_what_happened_since_it_was_called_last(numbers):
    loader = wdsplit.Loader(wdsplit.Dataset(numbers), 12)
    next(iter(loader))
    monitor, known = wdsplit.Monitor(loader), [loader.statistics()]
    names = {f"wdsplit/{name}" for name in known[0].scalars()}
    for _ in loader:
        known.append(loader.statistics())
        found = monitor.scalars()
        assert found == {f"wdsplit/{name}": value for name, value in known[-1].scalars(known[-2]).items()}
        assert found["wdsplit/samples_per_s"] > 0
        assert found.keys() == names
    assert monitor.scalars()["wdsplit/samples_per_s"] == 0


# The log


def lines_of(caplog):
    return [record.getMessage() for record in caplog.records if "samples/s" in record.getMessage()]


@every_kind
def test_a_line_is_logged_when_it_is_due(numbers, options, caplog):
    """With no seconds between them, there is one for each batch."""
    caplog.set_level(logging.INFO, "wdsplit")
    loader = wdsplit.Loader(wdsplit.Dataset(numbers, rank=1, world_size=2), 12, log_every_s=0, **options)
    list(loader)
    lines = lines_of(caplog)
    assert len(lines) == len(loader) == 5
    assert lines[1].startswith(f"{numbers}: rank 1 of 2, epoch 0, step 2 of 5: ")
    assert all(line.endswith(" of the time") for line in lines)


def test_a_line_is_of_the_time_since_the_one_before(numbers, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "wdsplit")
    moments = iter([0.0, 30.0, 60.0, 70.0, 119.0, 121.0, 130.0, 131.0, 132.0])
    monkeypatch.setattr("wdsplit.loading.loader.time", SimpleNamespace(monotonic=lambda: next(moments)))
    loader = wdsplit.Loader(wdsplit.Dataset(numbers), 12, log_every_s=60)
    known = [loader.statistics()]
    for number, _ in enumerate(loader, 1):
        if number in (3, 6):
            known.append(loader.statistics())
    expected = [later.summary(earlier) for earlier, later in itertools.pairwise(known)]
    assert [line.rpartition("9: ")[2] for line in lines_of(caplog)] == expected
