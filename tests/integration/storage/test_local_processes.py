from tables import start_script, wait_until
from wdsplit.errors import StorageError
from wdsplit.storage.local import LocalStorage

WRITES = """
import sys, time
from wdsplit.storage.local import LocalStorage
storage = LocalStorage(sys.argv[1])
with storage.lock("run/lock"), storage.publish("000000.tar") as file:
    file.write([b"half"])
    print("writing", flush=True)
    time.sleep(600)
"""


def is_locked(storage):
    try:
        with storage.lock("run/lock"):
            return False
    except StorageError:
        return True


def test_a_killed_process_leaves_no_lock_and_no_shard_but_a_temporary_file(tmp_path):
    storage = LocalStorage(str(tmp_path / "out"))
    script = start_script(WRITES, storage.url)
    assert script.stdout.readline() == "writing\n"
    assert is_locked(storage)
    script.kill()
    script.communicate()
    wait_until(lambda: not is_locked(storage), "the lock is free")
    (name,) = storage.sizes()
    assert name != "000000.tar"
    storage.remove_temporary()
    assert storage.sizes() == {}
