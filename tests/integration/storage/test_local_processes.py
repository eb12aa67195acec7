"""Local storage and processes that end before their time."""

import os
import signal

import pytest

from tables import start_script, wait_until
from wdsplit.errors import StorageError
from wdsplit.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path / "out"))


KILLED_WHILE_WRITING = """
import sys, time
from wdsplit.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).publish("000000.tar") as file:
    file.write([b"half"])
    print("writing", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_leaves_is_no_shard_and_is_removed_as_temporary(storage):
    script = start_script(KILLED_WHILE_WRITING, storage.url)
    assert script.stdout.readline() == "writing\n"
    script.kill()
    script.communicate()
    (name,) = storage.list()
    assert name != "000000.tar"
    storage.remove_temporary()
    assert storage.list() == []


HOLDS_LOCK = """
import sys, time
from wdsplit.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).lock("run/lock"):
    print("locked", flush=True)
    time.sleep(600)
"""


def is_locked(storage):
    try:
        with storage.lock("run/lock"):
            return False
    except StorageError:
        return True


def test_a_lock_excludes_another_process_and_goes_with_it_even_when_that_is_killed(storage):
    script = start_script(HOLDS_LOCK, storage.url)
    assert script.stdout.readline() == "locked\n"
    assert is_locked(storage)
    os.kill(script.pid, signal.SIGKILL)
    script.communicate()
    wait_until(lambda: not is_locked(storage), "the lock is free")
