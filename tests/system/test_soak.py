"""Two ranks of a real job stream an epoch through a thousand faults, a fault that never ends, and a dead server."""

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from faults import Cut, Flip, SeededPlan, expired_token, internal_error, reading_faults, slow_down
from made_datasets import expected_batches, real_rows, sized_dataset
from s3server import KEY_ID, SECRET
from tables import wait_until
from torchruns import delivered, torchrun, woven
from wdsplit.shards.manifest import shard_path

NUM_FAULTS = 1000
NUM_EXPIRED = 10
WINDOW = 4
COUNTS = [200] * 28
"""Enough lanes, a shard each, that few windows which are read together lie side by side, where one request gets all."""
GLOBAL_BATCH = 100
NUM_STEPS = sum(COUNTS) // GLOBAL_BATCH
FAILING_STEP = 30
READ_AHEAD_BYTES = 65_536
"""So few that not all is read before it is wanted, and that few requests are for more than a window."""
SAMPLE_BYTES, HEADER_BYTES = 1024, 512
FAST = {"first_delay_s": 0.01, "max_delay_s": 0.05, "timeout_s": 1, "deadline_s": 300}
"""Times that do not keep the tests waiting. A machine that does much else needs longer than a stall should last."""
DEADLINE_S = 15


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Return a dataset on the disk."""
    return sized_dataset(tmp_path_factory.mktemp("local"), COUNTS, lanes=len(COUNTS), window=WINDOW)


@pytest.fixture
def remote(local, bucket):
    """Return the same dataset in a bucket."""
    return bucket.put(local)


@pytest.fixture(scope="module")
def expected(local):
    """Return the global batches of an epoch as one reader of the disk is given them."""
    batches = expected_batches(local, NUM_STEPS, GLOBAL_BATCH)
    assert real_rows(delivered(batches)) == list(range(sum(COUNTS)))
    return batches


def run(out, remote, *, num_workers=0, log_level="WARNING", storage_options=None, **options):
    """Let two ranks stream an epoch (soak_worker.py); return how they have ended."""
    options["storage_options"] = FAST | (storage_options or {})
    return torchrun(
        2, "soak_worker.py", out, remote, GLOBAL_BATCH, num_workers, log_level, json.dumps(options), out=out
    )


def notes_of(out, num_steps=None):
    """Return what each rank has noted so far: the batches of the first steps."""
    paths = [path for path in (out / "0.jsonl", out / "1.jsonl") if path.exists()]
    return [[*map(json.loads, path.read_text().splitlines())][:num_steps] for path in paths]


class Soak(SeededPlan):
    """Gives most ranges a fault, of all kinds in turn.

    A byte that has the other bits is noticed in a header, not in a payload, and asked for once more only; so it is a
    header's, and no window has two. Looking for credentials again takes a tenth of a second, so few have expired.
    """

    def __init__(self, seed, folder):
        super().__init__(seed, 0.6, reading_faults(folder))
        self._flipped = set()

    def __call__(self, request):
        fault = super().__call__(request)
        if fault == expired_token() and self.num_given > NUM_EXPIRED * len(self._makers):
            return internal_error()
        return self._in_header(request, fault) if isinstance(fault, Flip) else fault

    def _in_header(self, request, fault):
        first, last = request.range
        window = request.path, (first + fault.at) // (SAMPLE_BYTES * WINDOW)
        begin = first + fault.at - (first + fault.at) % SAMPLE_BYTES
        at = begin + random.Random(request.number).randrange(HEADER_BYTES) - first
        is_sample = begin < COUNTS[0] * SAMPLE_BYTES  # not the block behind the last window, which is read with it
        if window in self._flipped or not is_sample or not 0 <= at <= last - first:
            return Cut(0)
        self._flipped.add(window)
        return replace(fault, at=at)


def test_two_ranks_get_the_right_samples_in_the_right_order_through_a_thousand_faults(
    remote, expected, fault_proxy, s3_server, tmp_path
):
    plan = fault_proxy.plan = Soak(1, s3_server.folder)
    ended = run(tmp_path / "job", remote, read_ahead_bytes=8 * READ_AHEAD_BYTES, connections=8)
    assert ended.returncode == 0, ended.output
    assert woven(notes_of(tmp_path / "job")) == expected
    assert plan.num_given >= NUM_FAULTS
    kinds = Counter(type(exchange.fault).__name__ for exchange in fault_proxy.exchanges)
    assert all(kinds[type(maker(random.Random(0), 1000)).__name__] > 10 for maker in reading_faults(s3_server.folder))


def test_a_fault_that_never_ends_ends_the_job_with_one_clear_error(remote, expected, fault_proxy, tmp_path):
    """One rank is told, by its worker; the other does not wait half an hour for it. What was committed is right."""

    shard, sample = divmod(expected[FAILING_STEP][0][1], COUNTS[0])
    tar, byte = shard_path(shard), sample * SAMPLE_BYTES

    def plan(request):
        is_read = request.range and f"/{tar}?" in f"{request.path}?" and request.range[0] <= byte <= request.range[1]
        return slow_down() if is_read else None

    fault_proxy.plan = plan
    options = {"storage_options": {"deadline_s": DEADLINE_S}, "read_ahead_bytes": READ_AHEAD_BYTES}
    ended, out = run(tmp_path / "job", remote, num_workers=1, **options), tmp_path / "job"
    assert ended.returncode != 0
    assert ended.output.count("wdsplit.errors.UnansweredError") == 1
    assert ended.output.count("the store does not answer as expected") == 1
    assert f"place: {remote}/{tar}" in ended.output and "SlowDown" in ended.output
    num_steps = json.loads((out / "checkpoint.json").read_text())["position"] // GLOBAL_BATCH
    assert 0 < num_steps <= FAILING_STEP
    assert woven(notes_of(out, num_steps)) == expected[:num_steps]


def test_a_server_that_is_killed_and_comes_back_is_waited_for_by_all_ranks(
    remote, expected, fault_proxy, s3_server, tmp_path
):
    out = tmp_path / "job"
    with ThreadPoolExecutor() as pool:
        job = pool.submit(run, out, remote, read_ahead_bytes=READ_AHEAD_BYTES)
        wait_until(lambda: job.done() or [len(each) >= 3 for each in notes_of(out)] == [True] * 2, "both have begun")
        s3_server.stop()
        before = len(fault_proxy.exchanges)
        wait_until(lambda: len(fault_proxy.exchanges) > before + 10, "the ranks ask again")
        refused = [exchange.status for exchange in fault_proxy.exchanges[before:]]
        s3_server.start()
        ended = job.result()
    assert set(refused) == {None}
    assert ended.returncode == 0, ended.output
    assert woven(notes_of(out)) == expected


# Credentials


def test_a_job_tells_no_credentials_whatever_it_logs(remote, bucket, fault_proxy, tmp_path, monkeypatch):
    """Whoever asks for botocore's own debug log is shown signatures by it; the secret is in nobody's log."""
    token = "fake+session+token+that+nobody+may+see"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    secrets = {"key": KEY_ID, "secret": SECRET, "token": token}
    fault_proxy.plan = SeededPlan(2, 0.2, [lambda chance, num_bytes: Cut(0)])
    for level in ("WARNING", "DEBUG"):
        out = tmp_path / level
        ended = run(out, remote, num_workers=1, log_level=level, storage_options=secrets)
        assert ended.returncode == 0, ended.output
        kept = [out / "checkpoint.json", bucket.folder / "train" / "wdsplit.json", out / "0.json", out / "1.json"]
        own = [line for line in ended.output.splitlines() if line.split()[1:2] and "wdsplit" in line.split()[1]]
        for text in [*(path.read_text() for path in kept), *own, *([] if level == "DEBUG" else [ended.output])]:
            assert not any(value in text for value in secrets.values()), text[:1000]
        assert SECRET not in ended.output
        assert ("botocore" in ended.output) == (level == "DEBUG")
        assert bool(own) == (level == "DEBUG")
