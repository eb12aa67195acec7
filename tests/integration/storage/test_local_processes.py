"""Local storage and processes that end before their time."""

import os
import signal
import subprocess
import sys

import pytest

from tables import files_below, start_script, wait_until
from wdsplit.errors import StorageError
from wdsplit.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path / "out"))


FULL_DISK = """
import resource, signal, sys
from wdsplit.errors import StorageError
from wdsplit.storage.local import LocalStorage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    with LocalStorage(sys.argv[1]).publish("a.tar") as file:
        file.write([b"x" * 6_000, b"y" * 6_000])
except StorageError as error:
    print(error)
    sys.exit(3)
"""


def test_a_file_that_the_system_cuts_short_is_an_error_by_name_and_leaves_nothing(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (3, "")
    assert "File too large" in run.stdout
    assert str(tmp_path / "a.tar") in run.stdout
    assert files_below(tmp_path) == []


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
