"""What test_cache.py runs in processes of its own: `cache_worker.py MODE JOB`, the job as JSON.

Each says "ready" when its libraries are loaded, waits for a line, does its work, and prints a result as JSON.
"""

import fcntl
import itertools
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

import wdsplit.loading.reading.cache
from wdsplit.loading.reading.cache import CachedFile, ShardCache
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import checksum_of
from wdsplit.storage.opening import open_storage

NAMES = ("cls",)
"""The fields of the datasets."""
CALLS = [
    (os, "open"),
    (os, "ftruncate"),
    (os, "posix_fallocate"),
    (os, "pwrite"),
    (os, "fsync"),
    (os, "replace"),
    (os, "unlink"),
    (os, "utime"),
    (fcntl, "flock"),
]
"""What a cache asks of the system that others can see."""


def is_right(opened, shard):
    return checksum_of(xxhash.xxh3_128(opened.file.read(0, opened.file.size))) == shard.checksum


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
    whole = list(cache.folder.glob("*/*.shard"))
    others = {str(path).rpartition(".")[0] for path in cache.folder.glob(f"*/{'?' * 32}-*.shard.*")} - set(
        map(str, whole)
    )
    num_downloads = sum(os.path.exists(f"{path}.part") and is_locked(f"{path}.part") for path in others)
    return [len(whole), sum(map(is_locked, whole)), num_downloads, len(others) - num_downloads]


def clear(cache):
    """Remove all shards of a cache, which nobody has open."""
    assert usage(cache)[1:3] == [0, 0]
    for path in cache.folder.glob("*/*"):
        path.unlink()


def is_sound(path, shards):
    """Tell whether a cached one of some shards has the tar of its name, and the places of this tar."""
    file = CachedFile(str(path))
    shard = next(each for each in shards if each.checksum.endswith(file.checksum))
    places = file.places(shard.num_samples, NAMES)
    return xxhash.xxh3_128(file.read(0, file.size)).hexdigest() == places.checksum


def read(cache, storage, shards, job):
    """Open the shards in the order of the job, in threads; return how many were right, and how many not cached."""

    def one(number):
        opened = cache.open(storage, shards[number], NAMES)
        return None if opened is None else is_right(opened, shards[number])

    with ThreadPoolExecutor(job.get("threads", 1)) as threads:
        found = list(threads.map(one, job["order"]))
    assert False not in found
    return [found.count(True), found.count(None)]


def together(cache, storage, shards, job):
    """Let processes read at once, one for each order of the job; return what each has found."""
    import botocore.session  # noqa: F401 (once, not in each process)

    pipes = []
    for order in job["orders"]:
        reading, writing = os.pipe()
        if not os.fork():
            os.write(writing, json.dumps(read(cache, storage, shards, job | {"order": order})).encode())
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
    found = [os.read(pipe, 1000).decode() for pipe in pipes]
    for _ in pipes:
        os.wait()
    return [json.loads(each or "null") for each in found]


def killed_at(moment, work):
    """Do some work in a process that kills itself at its n-th call of the system; tell whether it came to that."""
    pid = os.fork()
    if not pid:
        numbers = itertools.count()

        def dying(call):
            def called(*arguments, **keywords):
                if next(numbers) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **keywords)

            return called

        for module, name in CALLS:
            setattr(module, name, dying(getattr(module, name)))
        work()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def kills(cache, storage, shards, job):
    """Kill who downloads a shard, for which two others are evicted, at each of its moments; then do the same work.

    Returns how many moments there were, and at how many of them a part of a shard was left.
    """
    num_parts = moment = 0
    fill(cache, storage, shards)
    while killed_at(moment, lambda: cache.open(storage, shards[2], NAMES)):
        moment += 1
        assert all(is_sound(path, shards) for path in cache.folder.glob("*/*.shard"))
        assert bytes_in(cache.folder) <= job["max_bytes"]
        num_in_use, num_downloads, num_leftovers = usage(cache)[1:]
        assert (num_in_use, num_downloads) == (0, 0)
        num_parts += num_leftovers
        opened = cache.open(storage, shards[2], NAMES)
        assert is_right(opened, shards[2])
        assert usage(cache)[1:] == [1, 0, 0]
        del opened
        clear(cache)
        fill(cache, storage, shards)
    return [moment, num_parts]


def fill(cache, storage, shards):
    for number in (0, 1):
        assert is_right(cache.open(storage, shards[number], NAMES), shards[number])


def forks(cache, storage, shards, job):
    """Fork while room is made for a shard, and while it is downloaded; the children live on, and must keep no lock."""
    children, parent = [], os.getpid()

    def fork():
        children.append(os.fork())
        if not children[-1]:
            while os.getppid() == parent:
                time.sleep(0.05)
            os._exit(0)
        return True

    statvfs, asked = os.statvfs, itertools.count()
    os.statvfs = lambda path: fork() and statvfs(path)
    opened = cache.open(storage, shards[0], NAMES, lambda: next(asked) != 2 or fork())
    assert is_right(opened, shards[0])
    del opened
    num_shards, num_in_use, num_downloads, _ = usage(cache)
    for child in children:
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [len(children), num_in_use, num_downloads, num_shards]


def main():
    mode, job = sys.argv[1], json.loads(sys.argv[2])
    wdsplit.loading.reading.cache._READ_BYTES = job.get("read_bytes", wdsplit.loading.reading.cache._READ_BYTES)
    storage = open_storage(job["url"])
    cache = ShardCache(job["folder"], job["max_bytes"])
    print("ready", flush=True)
    sys.stdin.readline()
    shards = read_manifest(storage).shards
    listed = [shards[number] for number in range(len(shards))]
    modes = {"read": read, "together": together, "kills": kills, "forks": forks}
    print(json.dumps(modes[mode](cache, storage, listed, job)))


if __name__ == "__main__":
    main()
