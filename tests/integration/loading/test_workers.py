"""What workers leave behind, and how they fail: real processes and threads, from end to end."""

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from alike import alike
from loader_kinds import KINDS, every_kind
from made_datasets import converted, deliveries, delivering, expected_batches, real_rows
from tables import DEADLINE_S, start_process, wait_until
from wdsplit.errors import PipelineError
from wdsplit.loading import process_workers
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*epoch 0 begins again:UserWarning"),
]

workers_only = pytest.mark.parametrize("options", list(KINDS.values())[1:], ids=list(KINDS)[1:])

PAYLOAD_BYTES = 2000
SOON_S, LONG_S = 100, 200
"""How long may take what is done at once, where much else is done; and how long is waited for others in vain."""


@pytest.fixture(scope="session")
def payloads(tmp_path_factory):
    """Return a dataset of 240 samples, each of a number and 2,000 bytes of it."""
    rows = range(240)
    table = pa.table({"cls": rows, "bin": pa.array([bytes([row]) * PAYLOAD_BYTES for row in rows], pa.binary())})
    return converted(tmp_path_factory.mktemp("payloads"), table, shards=8, lanes=4, window=10)


def open_files():
    """Return the files, pipes and sockets that this process has open, as the system names them, and how often."""
    found = Counter()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found[os.readlink(f"/proc/self/fd/{descriptor}")] += 1
    return found


def shared_memory():
    """Return the pieces of memory, of torch's and of ours, that this process shares with others."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Counter(line[line.index("/") :] for line in lines if "/torch_" in line or "/memfd:" in line)


def left():
    """Return what this process holds of files, shared memory, processes and threads."""
    gc.collect()
    names = [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name]
    return (
        sum(map(Counter, (names, multiprocessing.active_children(), threading.enumerate())), open_files())
        + shared_memory()
    )


@pytest.fixture(scope="module")
def kept_for_good(payloads):
    """Let torch make what it keeps for good."""
    list(Loader(Dataset(payloads), 50, num_workers=1))


@pytest.fixture
def nothing_left(kept_for_good):
    """Check that a test leaves nothing behind; what earlier tests left may go meanwhile."""
    before = left()
    yield
    wait_until(lambda: not left() - before, "nothing is left")


@pytest.fixture
def long_waits(monkeypatch):
    """Let who waits for a worker that does not end, or for a word of it, do so for long: nobody may have to."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", LONG_S)
    monkeypatch.setattr("torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL", LONG_S)
    monkeypatch.setattr("wdsplit.loading.transport.thread_workers._PATIENCE_S", LONG_S)


# Nothing is left, and nothing waits


@every_kind
def test_nothing_is_left_after_a_break_and_it_takes_no_time(payloads, nothing_left, long_waits, options):
    begun = time.monotonic()
    for steps, prefetch_bytes in ((1, 1), (2, 10**9), (None, 1)):
        loader = Loader(Dataset(payloads), 8, prefetch_bytes=prefetch_bytes, **options)
        for _ in range(2):
            for _ in itertools.islice(loader, steps):
                pass
        del loader
        gc.collect()
    assert time.monotonic() - begun < SOON_S


@workers_only
def test_after_a_break_the_next_epoch_is_whole_however_little_is_prefetched(numbers, options):
    loader = Loader(delivering(Dataset(numbers)), 12, prefetch_bytes=1, prefetch_factor=1, **options)
    for epoch, steps in enumerate((1, 4, 9)):
        loader.set_epoch(epoch)
        seen = [deliveries(batch) for batch in itertools.islice(loader, steps)]
        assert seen == expected_batches(numbers, 9, epoch=epoch)[:steps]
    loader.set_epoch(7)
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9, epoch=7)


# Memory that is used again


@pytest.mark.parametrize(
    ("options", "staged", "prefetch_factor"),
    [(KINDS["processes"], "samples", 2), (KINDS["persistent processes"], "columns", 1)],
)
def test_what_was_delivered_never_changes(payloads, options, prefetch_factor, staged):
    """Sizes that change from sub-batch to sub-batch make segments grow; all batches are kept."""
    dataset = Dataset(payloads, window=3)
    if staged == "samples":
        dataset = dataset.map(with_arrays)
    options = options | {"num_workers": 3, "prefetch_factor": prefetch_factor}
    loader, plain = Loader(dataset, 7, **options), Loader(dataset, 7)
    expected = [*plain, *plain]
    next(iter(loader))
    kept = [*loader, *loader]
    assert alike(kept, expected)
    assert len(kept) == len(expected) == 2 * 35


def with_arrays(sample):
    row = int(sample["cls"])
    return {
        "row": row,
        "array": np.full((3, 5), row, np.float32),
        "bytes": bytes([row]) * (row * 37 % 3000),
        "nested": {"row": [row, torch.full((2,), row)]},
    }


def test_a_worker_whose_fellow_has_failed_does_not_overwrite_what_was_not_taken(numbers):
    """Torch gives the tasks of a worker that has ended to the others, which then get further ahead."""
    loader = Loader(delivering(Dataset(numbers).map(fail_at_30)), 2, num_workers=2, prefetch_factor=6)
    seen = []
    with pytest.raises(KeyError):
        for batch in loader:
            seen.append(deliveries(batch))
            time.sleep(0.02)
    assert seen == expected_batches(numbers, 15, global_batch=2)


def fail_at_30(sample):
    if sample["__position__"] == 30:
        raise KeyError("30")
    return sample


# Bounds


@pytest.mark.parametrize(
    ("options", "max_ahead"), [(KINDS["processes"], 1), (KINDS["persistent processes"], 4), (KINDS["threads"], 4)]
)
def test_what_is_made_ahead_is_bounded_in_bytes(payloads, options, max_ahead):
    """Each of 2 workers may have so many sub-batches waiting, and one in its hands."""
    sub_batch_bytes = 5 * (PAYLOAD_BYTES + 200)
    loader = Loader(
        Dataset(payloads), 10, prefetch_factor=20, prefetch_bytes=2 * max_ahead * sub_batch_bytes, **options
    )
    batches = iter(loader)
    for delivered in range(1, 6):
        next(batches)
        ahead = settled(loader, 5 * 2 * (delivered + max_ahead)) // 5 - 2 * delivered
        assert 2 * max_ahead <= ahead <= 2 * (max_ahead + 1)
    assert len(list(batches)) == 24 - 5


@pytest.mark.parametrize("options", [KINDS["processes"], KINDS["threads"]])
def test_what_is_made_ahead_is_bounded_in_steps(payloads, options, monkeypatch):
    """The first parcel of each worker has one step, the others two."""
    monkeypatch.setattr("wdsplit.loading.worker._PARCEL_STEPS", 2)
    loader = Loader(Dataset(payloads), 10, prefetch_factor=3, **options)
    batches = iter(loader)
    for delivered in range(1, 4):
        next(batches)
        ahead = settled(loader, 5 * (2 * delivered + 10)) // 5 - 2 * delivered
        assert 10 <= ahead <= 18


def settled(loader, least):
    """Wait until so many samples are made; return how many there are when there was time for more."""
    wait_until(lambda: loader.statistics().samples_made >= least, f"{least} samples are made")
    time.sleep(0.1)
    return loader.statistics().samples_made


# Errors


class TwoArgumentsError(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


class UnpicklableError(Exception):
    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


def of_a_local_class(*bases):
    return type("LocalError", bases, {"__module__": "of.nowhere"})("of a local class")


FAILURES = {
    "KeyError": (lambda: KeyError("bad key"), KeyError, "bad key"),
    "two arguments": (lambda: TwoArgumentsError("one", 2), TwoArgumentsError, "TwoArgumentsError|one"),
    "one that holds a lock": (UnpicklableError, UnpicklableError, "lock"),
    "of a local class": (lambda: of_a_local_class(Exception), None, "of a local class"),
    "of a local class of ours": (lambda: of_a_local_class(PipelineError), PipelineError, "of a local class"),
    "StopIteration": (StopIteration, RuntimeError, "StopIteration"),
    "one of ours": (lambda: PipelineError("mine", remedy="a remedy"), PipelineError, "a remedy"),
}


@pytest.mark.parametrize(
    ("kind_of_workers", "failure"),
    [
        *(("processes", name) for name in FAILURES),
        *(("threads", name) for name in ("KeyError", "one of ours")),
        ("none", "StopIteration"),
    ],
)
def test_an_error_of_a_stage_names_the_sample_and_its_shard(
    numbers, nothing_left, long_waits, kind_of_workers, failure
):
    make, kind, text = FAILURES[failure]
    key, url = next((s["__key__"], s["__url__"]) for s in Dataset(numbers) if s["__position__"] == 31)

    def fail(sample):
        if sample["__position__"] == 31:
            raise make()
        return sample

    loader = Loader(delivering(Dataset(numbers).map(fail)), 12, **KINDS[kind_of_workers])
    seen, begun = [], time.monotonic()
    with pytest.raises(Exception) as raised:
        seen.extend(deliveries(batch) for batch in loader)
    told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert key in told and url in told
    assert kind is not KeyError or "which has " in told
    assert any(part in told for part in text.split("|"))
    if kind in (KeyError, PipelineError) or (kind and kind_of_workers != "processes"):
        assert isinstance(raised.value, kind)
    assert seen == expected_batches(numbers, 2)
    assert time.monotonic() - begun < SOON_S
    traceback.clear_frames(raised.tb)


def test_a_worker_that_is_killed_is_an_error_soon(payloads, nothing_left):
    loader = Loader(Dataset(payloads).map(lambda sample: time.sleep(0.01) or sample), 8, num_workers=2)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"killed|exited"):
        for number, _ in enumerate(loader):
            if number == 1:
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    assert time.monotonic() - begun < SOON_S


def die_in_torchs_event(sample):
    """Be killed while looking, as each worker does before each parcel, at the event by which torch ends workers."""
    seen = itertools.count(1)

    def trace(frame, event, argument):
        if frame.f_code.co_name == "is_set" and next(seen) == 3:  # after the call and its first line
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    frame = sys._getframe()
    while "done_event" not in frame.f_locals:
        frame = frame.f_back
    sys.settrace(trace)
    frame.f_locals["done_event"].is_set()


def test_a_worker_that_is_killed_in_torchs_event_is_an_error_too(payloads, nothing_left):
    with pytest.raises(RuntimeError, match=r"killed|exited"):
        list(Loader(Dataset(payloads).map(die_in_torchs_event), 8, num_workers=2, persistent_workers=True))


@pytest.fixture
def stuck_forks():
    """A list; a process waits forever inside `fork` whose parent then finds something to pop from it."""
    os.register_at_fork(before=lambda: is_stuck.append(bool(waiting) and waiting.pop()))
    os.register_at_fork(after_in_child=lambda: is_stuck[-1] and time.sleep(1000))
    waiting, is_stuck = [], []
    yield waiting
    waiting.clear()


def test_a_worker_that_waits_forever_inside_fork_is_forked_again(numbers, stuck_forks, nothing_left, monkeypatch):
    monkeypatch.setattr(process_workers, "_PATIENCE_S", 0.05)
    stuck_forks += [True, True, False, True]
    batches = list(Loader(delivering(Dataset(numbers)), 12, num_workers=2))
    assert not stuck_forks
    assert real_rows([each for batch in batches for each in deliveries(batch)]) == list(range(101))


def test_a_worker_whose_end_was_noticed_elsewhere_is_not_taken_for_alive():
    process = process_workers.worker_context("fork").Process(target=time.sleep, args=(1000,))
    process.start()
    process.kill()
    os.waitpid(process.pid, 0)
    process.join()
    assert not process.is_alive()
    assert process not in multiprocessing.active_children()


def test_a_collate_fn_that_raises_stop_iteration_does_not_end_the_epoch(numbers):
    def stop(samples):
        raise StopIteration

    with pytest.raises(PipelineError, match="StopIteration"):
        list(Loader(Dataset(numbers), 12, collate_fn=stop))


def test_values_that_cannot_be_pickled_are_refused_by_processes_and_go_through_threads(numbers, nothing_left):
    dataset = Dataset(numbers).map(lambda sample: {"call": lambda: sample["__position__"]})
    with pytest.raises(PipelineError, match="cannot be sent"):
        list(Loader(dataset, 12, num_workers=1))
    batch = next(iter(Loader(dataset, 12, num_workers=2, workers="thread")))
    assert [call() for call in batch["call"]] == list(range(12))


# Interrupts

PROGRAM = f"""
import multiprocessing, sys, time
import torch.utils.data
import wdsplit

def pausing(sample):
    if sample["__position__"] >= 24:
        time.sleep({LONG_S})
    return sample

if __name__ == "__main__":
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = {LONG_S}
    path, place, kind = sys.argv[1:]
    dataset = wdsplit.Dataset(path)
    if place == "stage":
        dataset = dataset.map(pausing)
    options = {{"prefetch_bytes": 1 if place == "consumer with full queues" else 20_000}}
    loader = wdsplit.Loader(dataset, 6, num_workers=2, workers=kind, **options)
    for number, batch in enumerate(loader):
        if number == 1:
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        if number == 1 and place != "stage":
            time.sleep({LONG_S})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "place", "how"),
    [
        ("process", "stage", "terminal"),
        ("process", "stage", "alone"),
        ("process", "consumer", "terminal"),
        ("process", "consumer with full queues", "alone"),
        ("process", "consumer with full queues", "killed"),
        ("thread", "stage", "alone"),
        ("thread", "consumer with full queues", "terminal"),
    ],
)
def test_an_interrupt_ends_the_program_at_once_and_leaves_nothing(numbers, tmp_path, kind, place, how):
    """As from a terminal, where workers are interrupted too, or sent to the loader's process alone.

    Nor do workers outlive a program that was killed.
    """
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    program = start_process([sys.executable, "-c", PROGRAM, numbers, place, kind], env=environ)
    children = [int(pid) for pid in program.stdout.readline().split()]
    time.sleep(0.5)
    begun = time.monotonic()
    (os.killpg if how == "terminal" else os.kill)(program.pid, signal.SIGKILL if how == "killed" else signal.SIGINT)
    _, errors = program.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - begun < SOON_S
    assert how == "killed" or ("KeyboardInterrupt" in errors and program.returncode in (-signal.SIGINT, 130, 1))
    assert len(children) == (2 if kind == "process" else 0)
    wait_until(lambda: not any(map(is_alive, children)), "the workers have ended")
    assert not [name for name in os.listdir("/dev/shm") if f"_{program.pid}_" in name]
    assert os.listdir(tmp_path) == []


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Memory


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("options", [KINDS["processes"], KINDS["threads"]])
def test_memory_does_not_grow_from_epoch_to_epoch(payloads, options):
    """A leak of what an epoch holds (480 kB) shows in any ten epochs; what the allocator takes for good, in few."""
    loader = Loader(Dataset(payloads), 40, **options)

    def growth():
        before = resident_bytes()
        for _ in range(10):
            list(loader)
        return resident_bytes() - before

    assert any(growth() < 3_000_000 for _ in range(5))


# Pinned memory


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: only there is memory pinned")
@every_kind
def test_pinned_batches_are_the_same_batches(numbers, options):
    loader = Loader(delivering(Dataset(numbers)), 12, pin_memory=True, **options)
    batches = list(loader)
    assert all(column.is_pinned() for batch in batches for column in batch)
    assert [deliveries(batch) for batch in batches] == expected_batches(numbers, 9)
