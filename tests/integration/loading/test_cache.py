"""Shards on a node's own disk: downloaded once, whole, never too many, never removed while they are in use."""

import fcntl
import itertools
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xxhash

from faults import Delay, Flip, Shorten
from made_datasets import sized_dataset
from tables import DEADLINE_S, wait_until
from wdsplit.errors import CorruptDataError, InputError, StorageError
from wdsplit.loading.reading import cache as cache_module
from wdsplit.loading.reading.cache import CachedFile, ShardCache
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.windows import read_window
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Shard, checksum_of
from wdsplit.storage.opening import open_storage

FORK = multiprocessing.get_context("fork")
NUM_SHARDS, SAMPLES = 6, 25
READ_BYTES = 8192
ROOM = 10**9
"""A size limit that nothing reaches: without one a disk that is nearly full caches nothing."""


class Origin:
    """A dataset to be cached.

    Attributes:
        storage: Where it is.
        shards: Its shards, all of one size.
        entry_bytes: What each takes in a cache.
    """

    def __init__(self, url):
        self.url = str(url)
        self.storage = open_storage(self.url)
        table = read_manifest(self.storage).shards
        self.shards = [table[number] for number in range(len(table))]
        self.entry_bytes = self.shards[0].num_bytes + 64 + 20 * self.shards[0].num_samples

    def path(self, cache, number):
        """Return where a cache keeps a shard."""
        digest = self.shards[number].checksum.removeprefix("xxh3_128:")
        return cache.folder / digest[:2] / f"{digest}-{self.shards[number].num_bytes}.shard"

    def kept(self, cache):
        """Return the numbers of the shards that a cache has."""
        return [number for number in range(NUM_SHARDS) if self.path(cache, number).exists()]

    def open(self, cache, number, is_wanted=lambda: True):
        return cache.open(self.storage, self.shards[number], ("cls",), is_wanted)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return sized_dataset(tmp_path_factory.mktemp("origin") / "train", [SAMPLES] * NUM_SHARDS, lanes=2, window=4)


@pytest.fixture
def origin(dataset, monkeypatch):
    """Return a dataset on the disk, which is read by small ranges."""
    monkeypatch.setattr(cache_module, "_READ_BYTES", READ_BYTES)
    return Origin(dataset)


@pytest.fixture
def remote(dataset, bucket, fault_proxy, monkeypatch):
    """Return the same dataset in a bucket behind the fault proxy."""
    monkeypatch.setattr(cache_module, "_READ_BYTES", READ_BYTES)
    return Origin(bucket.put(dataset))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "Größe 1" / "кэш"


def begun(work, *arguments):
    """Begin some work in a process; return this process, and the pipe by which its result comes."""
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sending.send(work(*arguments)), daemon=True)
    process.start()
    sending.close()
    return process, receiving


def read(cache, origin, order, num_threads=1):
    """Open shards in some order, in threads; return how many were right, and how many not cached."""

    def one(number):
        opened = origin.open(cache, number)
        return None if opened is None else is_right(opened, origin.shards[number])

    with ThreadPoolExecutor(num_threads) as threads:
        found = list(threads.map(one, order))
    assert False not in found
    return found.count(True), found.count(None)


def bytes_of(opened):
    return opened.file.read(0, opened.file.size)


def is_right(opened, shard):
    return checksum_of(xxhash.xxh3_128(bytes_of(opened))) == shard.checksum


def files_in(folder):
    return sorted(path.name for path in Path(folder).glob("shards/*/*"))


def bytes_in(folder):
    """Return what the files of a cache hold, at a moment at which nobody makes, names or evicts one."""
    lock = Path(folder) / "lock"
    if not lock.exists():
        return 0
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        return sum(path.stat().st_size for path in Path(folder).glob("*/*"))


def is_locked(path):
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def usage(cache):
    """Return the numbers of shards, of those in use, of downloads and of leftovers."""
    whole = set(cache.folder.glob("*/*.shard"))
    others = {path.with_suffix("") for path in cache.folder.glob(f"*/{'?' * 32}-*.shard.*")} - whole
    parts = [Path(f"{path}.part") for path in others]
    num_downloads = sum(part.exists() and is_locked(part) for part in parts)
    return [len(whole), sum(map(is_locked, whole)), num_downloads, len(others) - num_downloads]


def clear(cache):
    """Remove all shards of a cache, which nobody has open."""
    assert usage(cache)[1:3] == [0, 0]
    for path in cache.folder.glob("*/*"):
        path.unlink()


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "wdsplit.loading.reading.cache"]


# Opening


def test_a_cached_shard_is_the_one_of_the_dataset_with_a_file_on_the_disk(origin, folder):
    cache = pickle.loads(pickle.dumps(ShardCache(folder, ROOM)))
    assert not folder.exists()
    plain = open_shard(origin.storage, origin.shards[2], ("cls",))
    for _ in range(2):
        opened = origin.open(cache, 2)
        assert isinstance(opened.file, CachedFile) and not opened.file.is_remote
        assert opened.file.path == str(origin.path(cache, 2))
        assert (opened.url, opened.places.offsets().tolist()) == (plain.url, plain.places.offsets().tolist())
        assert bytes_of(opened) == bytes_of(plain)
        window, expected = (read_window(each, np.arange(3, 7)) for each in (opened, plain))
        assert (list(window.keys), list(window.fields)) == (list(expected.keys), list(expected.fields))
    assert files_in(folder) == [origin.path(cache, 2).name]


@pytest.mark.slow
def test_each_range_is_asked_for_once_by_processes_that_all_want_it(remote, fault_proxy, folder):
    fault_proxy.plan = lambda request: Delay(0.02) if request.path.partition("?")[0].endswith(".tar") else None
    order = list(range(NUM_SHARDS))
    readers = [begun(read, ShardCache(folder, ROOM), remote, order[n:] + order[:n], 2) for n in (0, 0, 1, 3)]
    assert [result.recv() for _, result in readers] == [(NUM_SHARDS, 0)] * 4
    asked = Counter(
        (exchange.request.path.partition("?")[0], exchange.request.range)
        for exchange in fault_proxy.exchanges
        if ".tar" in exchange.request.path
    )
    ranges = -(-remote.shards[0].num_bytes // READ_BYTES)
    assert set(asked.values()) == {1}
    assert len(asked) == NUM_SHARDS * (ranges + 1)


def test_shards_are_told_apart_by_their_bytes_and_not_by_their_names(origin, folder, tmp_path):
    other = Origin(sized_dataset(tmp_path / "other" / "train", [SAMPLES + 1, SAMPLES], lanes=1, window=4))
    copy, cache = Origin(shutil.copytree(origin.url, tmp_path / "copy")), ShardCache(folder, ROOM)
    assert origin.shards[0].path == other.shards[0].path
    for _ in range(2):
        assert is_right(origin.open(cache, 0), origin.shards[0])
        assert is_right(other.open(cache, 0), other.shards[0])
    (tmp_path / "copy" / "000000.tar").unlink()
    opened = copy.open(cache, 0)
    assert is_right(opened, origin.shards[0])
    assert opened.url == f"{copy.url}/000000.tar"


def test_a_shard_without_a_known_checksum_is_not_cached(origin, folder, caplog):
    cache, known = ShardCache(folder, ROOM), origin.shards[0]
    for checksum in ("", "md5:00", f"xxh3_128:{'../' * 10}aa", known.checksum.upper(), f"{known.checksum}\n"):
        origin.shards[0] = Shard(known.path, 1, 0, known.num_bytes, checksum)
        assert origin.open(cache, 0) is None
    assert len(warnings_in(caplog)) == 1
    assert not folder.exists()


def test_who_does_not_want_it_any_more_neither_downloads_nor_waits(origin, folder):
    cache = ShardCache(folder, ROOM)
    assert origin.open(cache, 0, lambda: False) is None
    answers = iter([True, True, False])
    assert origin.open(cache, 0, lambda: next(answers)) is None
    assert files_in(folder) == []
    entered, leave = threading.Event(), threading.Event()

    def waiting():
        entered.set()
        return leave.wait(DEADLINE_S)

    first = iter([True])
    thread = threading.Thread(target=origin.open, args=(cache, 0, lambda: next(first, False) or waiting()))
    thread.start()
    assert entered.wait(DEADLINE_S)
    answers = iter([True, True, True, False])
    assert origin.open(cache, 0, lambda: next(answers)) is None
    assert next(answers, "all asked") == "all asked"
    leave.set()
    thread.join()
    assert is_right(origin.open(cache, 0, iter([True]).__next__), origin.shards[0])


# What is damaged


@pytest.mark.parametrize(("fault", "times"), [(Flip(17), 1), (Shorten(1000), 2), (Flip(17), 99)])
def test_a_shard_that_was_damaged_on_its_way_is_downloaded_again_once(
    remote, folder, fault_proxy, caplog, fault, times
):
    cache, given = ShardCache(folder, ROOM), []

    def plan(request):
        if request.range and request.range[0] == READ_BYTES and len(given) < times:
            given.append(request)
            return fault
        return None

    fault_proxy.plan = plan
    if times == 99:
        with pytest.raises(CorruptDataError, match="a shard was changed") as caught:
            remote.open(cache, 0)
        assert caught.value.url == f"{remote.url}/000000.tar"
        assert caught.value.expected == remote.shards[0].checksum
        assert files_in(folder) == []
        fault_proxy.plan = lambda request: None
    assert is_right(remote.open(cache, 0), remote.shards[0])
    assert given
    assert ["again" in text for text in warnings_in(caplog)] == [True] * isinstance(fault, Flip)


@pytest.mark.parametrize("more", [-1, 512, None])
def test_an_entry_of_another_size_is_downloaded_again(origin, folder, caplog, more):
    cache = ShardCache(folder, ROOM)
    before = origin.open(cache, 0)
    path = origin.path(cache, 0)
    if more is None:
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size + more)
    opened = origin.open(cache, 0)
    assert is_right(opened, origin.shards[0])
    cache.discard(before.file)
    assert files_in(folder) == [path.name], "one that came after is kept"
    assert [f"{path}: a cached shard is damaged" in text for text in warnings_in(caplog)] == [True] * (more is not None)
    cache.discard(opened.file)
    assert files_in(folder) == []


# Room


def test_what_was_not_used_for_longest_is_evicted(origin, folder, monkeypatch):
    times = itertools.count(10**9)
    monkeypatch.setattr(cache_module, "time", SimpleNamespace(time_ns=lambda: next(times)))
    cache, chance, used = ShardCache(folder, 3 * origin.entry_bytes), random.Random(1), []
    for _ in range(60):
        number = chance.randrange(NUM_SHARDS)
        used = [*(each for each in used if each != number), number][-3:]
        origin.open(cache, number)
        assert origin.kept(cache) == sorted(used)
    assert bytes_in(folder / "shards") == 3 * origin.entry_bytes
    for number in used[:2]:
        os.utime(origin.path(cache, number), ns=(5, 5))
    origin.open(cache, next(number for number in range(NUM_SHARDS) if number not in used))
    first = min(used[:2], key=lambda number: origin.path(cache, number))
    assert [number for number in used if not origin.path(cache, number).exists()] == [first]


def test_what_is_open_is_kept_until_nobody_refers_to_it(origin, folder, caplog):
    cache = ShardCache(folder, origin.entry_bytes)
    opened = origin.open(cache, 0)
    assert origin.open(cache, 1) is None
    again = origin.open(cache, 0)
    del opened
    assert origin.open(cache, 1) is None
    assert ["in use" in text for text in warnings_in(caplog)] == [True]
    del again
    assert origin.open(cache, 1) is not None


def test_a_smaller_size_counts_when_a_cache_is_opened(origin, folder):
    cache = ShardCache(folder, ROOM)
    for number in range(4):
        origin.open(cache, number)
    smaller = ShardCache(folder, 2 * origin.entry_bytes)
    assert is_right(origin.open(smaller, 3), origin.shards[3])
    assert origin.kept(cache) == [2, 3]
    assert origin.open(ShardCache(folder, 1), 0) is None
    assert files_in(folder) == []


def test_threads_that_reserve_at_once_do_not_exceed_the_size(origin, folder):
    cache = ShardCache(folder, 3 * origin.entry_bytes - 1)
    together, found, most = threading.Barrier(NUM_SHARDS), [], []

    def slowly():
        most.append(bytes_in(folder / "shards"))
        time.sleep(0.05)
        return True

    def work(number):
        together.wait()
        found.append(origin.open(cache, number, slowly))
        most.append(bytes_in(folder / "shards"))

    with ThreadPoolExecutor(NUM_SHARDS) as threads:
        list(threads.map(work, range(NUM_SHARDS)))
    assert len(found) - found.count(None) == 2
    assert max(most) == 2 * origin.entry_bytes


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a disk of its own of 200 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a disk of its own takes the right to mount: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_tenth_of_the_disk_is_left_free_where_no_size_is_given(origin, small_disk):
    cache = ShardCache(small_disk / "cache")
    for number in range(NUM_SHARDS):
        assert is_right(origin.open(cache, number), origin.shards[number])
        disk = os.statvfs(small_disk)
        assert disk.f_bavail >= disk.f_blocks // 10
    assert 2 <= usage(cache)[0] < NUM_SHARDS


def test_a_disk_that_fills_up_keeps_the_room_of_a_download_and_then_there_is_one_warning(origin, small_disk, caplog):
    cache = ShardCache(small_disk / "cache", 10**9)
    answers = []

    def fill_the_disk():
        answers.append(True)
        if len(answers) == 3:
            with suppress(OSError), open(small_disk / "other", "wb", buffering=0) as other:
                while True:
                    other.write(bytes(4096))
        return True

    assert is_right(origin.open(cache, 0, fill_the_disk), origin.shards[0])
    assert len(answers) > 3
    clear(cache)
    (small_disk / "more").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
    assert [origin.open(cache, 1), origin.open(cache, 2)] == [None, None]
    assert files_in(small_disk / "cache") == []
    assert ["disk is full" in text for text in warnings_in(caplog)] == [True]
    (small_disk / "other").unlink()
    assert is_right(origin.open(cache, 1), origin.shards[1])


# Processes that are killed, and that fork


CALLS = [
    *((os, name) for name in ("open", "ftruncate", "posix_fallocate", "pwrite", "fsync", "replace", "unlink", "utime")),
    (fcntl, "flock"),
]
"""What a cache asks of the system that others can see."""


def killed_at(moment, work):
    """Do some work in a process that kills itself at its n-th call of the system; tell whether it came to that."""

    def dying():
        numbers = itertools.count()

        def called(call, *arguments, **keywords):
            if next(numbers) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        for module, name in CALLS:
            setattr(module, name, partial(called, getattr(module, name)))
        work()
        os._exit(0)

    process = FORK.Process(target=dying)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def is_sound(path, origin):
    """Tell whether a cached shard has the tar of its name, and the places of this tar."""
    file = CachedFile(str(path))
    shard = next(each for each in origin.shards if each.checksum.endswith(file.checksum))
    places = file.places(shard.num_samples, ("cls",))
    return xxhash.xxh3_128(file.read(0, file.size)).hexdigest() == places.checksum


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_nothing_that_is_not_right_or_not_cleared_away(origin, folder):
    """Killed before each of the calls that others can see, while it evicts two shards and downloads a third."""
    cache, num_parts = ShardCache(folder, 2 * origin.entry_bytes), 0
    for moment in itertools.count():
        read(cache, origin, [0, 1])
        if not killed_at(moment, lambda: origin.open(cache, 2)):
            break
        assert all(is_sound(path, origin) for path in cache.folder.glob("*/*.shard"))
        assert bytes_in(cache.folder) <= 2 * origin.entry_bytes
        num_in_use, num_downloads, num_leftovers = usage(cache)[1:]
        assert (num_in_use, num_downloads) == (0, 0)
        num_parts += num_leftovers
        opened = origin.open(cache, 2)
        assert is_right(opened, origin.shards[2])
        assert usage(cache)[1:] == [1, 0, 0]
        del opened
        clear(cache)
    assert moment > 20
    assert num_parts > 5


@pytest.mark.slow
def test_a_download_that_was_killed_is_taken_over_by_those_who_wait(remote, fault_proxy, folder):
    def is_third(request):
        return request.range and request.range[0] == 2 * READ_BYTES

    fault_proxy.plan = lambda request: Delay(60) if is_third(request) else None
    cache = ShardCache(folder, ROOM)
    first, _ = begun(read, cache, remote, [0])
    wait_until(lambda: any(is_third(each.request) for each in fault_proxy.exchanges), "the download is under way")
    others = [begun(read, cache, remote, [0]) for _ in range(2)]
    time.sleep(0.3)
    assert all(process.is_alive() for process, _ in others)
    assert usage(cache) == [0, 0, 1, 0]
    fault_proxy.plan = lambda request: None
    first.kill()
    assert [result.recv() for _, result in others] == [(1, 0)] * 2
    assert len(files_in(folder)) == 1


def test_a_process_that_was_forked_meanwhile_keeps_no_lock(origin, folder, monkeypatch):
    """While room is made for a shard, and while it is downloaded; the children live on."""
    cache, children, statvfs, asked = ShardCache(folder, ROOM), [], os.statvfs, itertools.count()

    def fork():
        children.append(FORK.Process(target=time.sleep, args=(1000,), daemon=True))
        children[-1].start()
        return True

    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: fork() and statvfs(path))
        assert is_right(origin.open(cache, 0, lambda: next(asked) != 2 or fork()), origin.shards[0])
    assert (len(children), usage(cache)) == (2, [1, 0, 0, 0])
    for child in children:
        assert child.is_alive()
        child.kill()
        child.join()


# Whose files they are


def test_a_folder_in_a_bucket_or_below_a_file_is_no_cache(origin, tmp_path):
    file = tmp_path / "thesis.tex"
    file.write_text("x")
    with pytest.raises(StorageError, match="refused") as caught:
        origin.open(ShardCache(file / "cache"), 0)
    assert str(file) in caught.value.place
    with pytest.raises(InputError):
        ShardCache("s3://bucket/cache")


@pytest.mark.parametrize("inside", ["train", "link/cache"])
def test_a_cache_in_its_dataset_is_refused(origin, tmp_path, inside):
    copy = Origin(shutil.copytree(origin.url, tmp_path / "train"))
    (tmp_path / "link").symlink_to("train")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="inside the dataset"):
        copy.open(ShardCache(tmp_path / inside), 0)
    assert sorted(tmp_path.rglob("*")) == before


def test_only_files_of_its_own_names_are_ever_removed(origin, folder):
    cache = ShardCache(folder, origin.entry_bytes)
    origin.open(cache, 0)
    digest = "0" * 32
    strangers = [
        "00/notes.txt",
        f"00/{digest}.shard",
        f"00/{digest}-10.tar",
        f"11/{digest}-10.shard",
        "00/x-1.shard.part",
    ]
    leftovers = [f"00/{digest}-10.shard.part", f"00/{digest}-11.shard.part"]
    for name in [*strangers, *leftovers, "README"]:
        (cache.folder / name).parent.mkdir(exist_ok=True)
        (cache.folder / name).write_bytes(b"x")
    assert usage(cache)[3] == len(leftovers)
    origin.open(cache, 1)
    assert [name for name in leftovers if (cache.folder / name).exists()] == []
    assert [name for name in [*strangers, "README"] if not (cache.folder / name).exists()] == []
    assert len(files_in(folder)) == len(strangers) + 1
