import contextlib
import errno
import os
import resource
import signal

import pytest

from tables import files_below, files_of
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError
from wdsplit.storage import local, local_file
from wdsplit.storage.local import LocalStorage, is_network_mount, local_path, write_whole
from wdsplit.storage.opening import open_storage
from wdsplit.storage.reopened_file import ReopenedFile


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path / "out"))


def put(storage, path, *pieces):
    with storage.publish(path) as file:
        file.write(pieces)


# Publishing


def test_a_rename_that_fails_although_it_was_done_counts(storage, monkeypatch):
    """NFS says so when the server's answer was lost and the request was sent again."""
    replace = os.replace

    def fails_when_done(source, target):
        replace(source, target)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    put(storage, "a", b"former")
    monkeypatch.setattr(os, "replace", fails_when_done)
    put(storage, "a", b"new")
    assert storage.read("a") == b"new"
    assert files_below(storage.root) == ["a"]


def test_a_file_that_was_removed_before_its_rename_is_an_error(storage):
    put(storage, "a", b"former")
    with pytest.raises(StorageError, match="No such file"), storage.publish("a") as file:
        file.write([b"new"])
        storage.remove_temporary()
    assert storage.read("a") == b"former"


@pytest.mark.parametrize("former", [None, b"former"])
@pytest.mark.parametrize(
    "write", [write_whole, lambda path, data: put(LocalStorage(str(path.parent)), path.name, data)]
)
def test_a_file_for_which_there_is_no_room_is_not_left_in_part(tmp_path, write, former):
    path, limits = tmp_path / "report.html", resource.getrlimit(resource.RLIMIT_FSIZE)
    if former is not None:
        write(path, former)
    refusing = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StorageError, match="File too large") as caught:
            write(path, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, refusing)
    assert str(path) in caught.value.place
    assert files_of(tmp_path) == ({} if former is None else {"report.html": former})


@pytest.mark.parametrize("most", [701, 2**31])
def test_pieces_are_written_whole_however_few_bytes_the_system_takes_at_a_time(storage, monkeypatch, most):
    """A signal ends a write to a full pipe early, and of very many pieces the system takes none."""
    writev = os.writev

    def few_bytes(fd, pieces):
        assert len(pieces) <= os.sysconf("SC_IOV_MAX")
        return os.write(fd, b"".join(pieces)[:most]) if most < 2**31 else writev(fd, pieces)

    monkeypatch.setattr(os, "writev", few_bytes)
    pieces = [bytes([i % 256]) * (i % 3) for i in range(5000)] + [b"x" * 100_000, b"", b"y" * 30_000]
    put(storage, "a", *pieces)
    assert storage.read("a") == b"".join(pieces)


# Where the system refuses


@pytest.mark.parametrize("root", ["file/out", "file"])
def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path, root):
    (tmp_path / "file").write_bytes(b"")
    storage = LocalStorage(str(tmp_path / root))
    with pytest.raises(StorageError) as caught:
        put(storage, "a.tar", b"x")
    assert str(tmp_path / root) in caught.value.place
    assert caught.value.remedy
    with pytest.raises(StorageError), storage.lock("lock"):
        pass


def test_a_folder_is_no_file_and_is_named(storage):
    put(storage, "folder/a", b"")
    for read in (storage.read, storage.open):
        with pytest.raises(StorageError) as caught:
            read("folder")
        assert caught.value.place == str(storage.root / "folder")


# Removing


def test_what_a_link_points_to_is_not_removed(storage, tmp_path):
    put(LocalStorage(str(tmp_path / "elsewhere")), "a", b"x")
    put(storage, "sub/b")
    (storage.root / "link").symlink_to(tmp_path / "elsewhere")
    (storage.root / "sub" / "link").symlink_to(tmp_path / "elsewhere")
    storage.remove("link")
    storage.remove("sub")
    assert storage.list() == []
    put(storage, "b")
    storage.remove("")
    assert files_below(tmp_path) == ["elsewhere/a"]


def test_only_temporary_files_of_ours_are_removed_as_such(storage):
    stay = [".a.tmp", "a.tmp", ".000000.tar.12.tmp", ".hidden", "000000.tar", ".000000.tar.1-2.tmp.keep"]
    for name in stay:
        put(storage, name)
    for name in (".000000.tar.123-0.tmp", ".000000.tar.idx.9-77.tmp"):
        put(storage, name)
        put(storage, f"sub/{name}")
    storage.remove_temporary()
    assert [name for name in storage.list() if name != "sub"] == sorted(stay)
    assert len(storage.list("sub")) == 2
    storage.remove_temporary("sub")
    assert storage.list("sub") == []


def test_paths_and_file_urls_are_local_and_remote_urls_are_not(tmp_path):
    assert local_path("/a b/é") == local_path("file:///a b/é") == local_path("FILE:///a b/é") == "/a b/é"
    assert local_path("a:b/c") == "a:b/c"
    assert open_storage(f"file://{tmp_path}").url == str(tmp_path)
    for url in ("s3://bucket/train", "https://user:secret@host/a?token=secret"):
        with pytest.raises(InputError) as caught:
            local_path(url)
        assert "secret" not in str(caught.value)


def test_what_is_there_tells_a_file_from_an_empty_folder_and_from_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for number in range(7):
        (tmp_path / f"{number}.txt").write_bytes(b"")
    told = {name: LocalStorage(str(tmp_path / name)).describe_contents() for name in ("", "empty", "file", "nothing")}
    assert told == {
        "": "0.txt, 1.txt, 2.txt, 3.txt, 4.txt",
        "empty": "an empty folder",
        "file": "a file",
        "nothing": "no such folder",
    }


# Mounts


NETWORK, LOCAL = ("nfs4", "fuse.rclone", "lustre"), ("ext4", "fuseblk", "fuse.fuse-overlayfs", "overlay")


@pytest.mark.parametrize("kind", [*NETWORK, *LOCAL])
def test_a_file_system_is_known_by_the_kind_of_its_mount(tmp_path, monkeypatch, kind):
    device = os.stat(tmp_path).st_dev
    mine = f"{os.major(device)}:{os.minor(device)}"
    table = tmp_path / "mountinfo"
    table.write_text(
        f"22 27 0:9999 / /other rw - nfs4 server:/x rw\n23 27 {mine} / /my\\040data rw shared:1 - {kind} a rw\n"
    )
    monkeypatch.setattr(local, "_MOUNTS", table)
    assert is_network_mount(tmp_path) is (kind in NETWORK)
    assert not is_network_mount(tmp_path / "nothing")
    table.unlink()  # the system tells nothing
    assert not is_network_mount(tmp_path)


# Files that are open


def test_a_file_that_outlives_the_modules_of_a_program_is_no_error(path, monkeypatch):
    file = local_file.LocalFile(path)
    monkeypatch.setattr(local_file, "suppress", None)  # as modules are when Python exits
    file.__del__(lambda: True)
    assert file.read(2, 3) == b"234"
    monkeypatch.undo()
    file.__del__()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0, 1)
    del file._fd


# Files that are opened again


def open_files(path):
    """Return which files of a folder this process has open; others come and go meanwhile."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(link.removesuffix(" (deleted)") for link in links if link.startswith(f"{path.parent}/"))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(0, 1))
    return path


@pytest.fixture
def failing(monkeypatch):
    """Return the errors of the next reads."""
    errors = []

    def fail_first(real):
        def read(*given):
            if errors:
                raise errors.pop()
            return real(*given)

        return read

    for name in ("pread", "preadv"):
        monkeypatch.setattr(os, name, fail_first(getattr(os, name)))
    return errors


@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "gone"])
def test_a_file_of_a_network_file_system_is_opened_again_after_an_error(path, failing, is_gone):
    file = ReopenedFile(path, is_remote=True)
    if is_gone:
        path.unlink()
    failing += [OSError(errno.EIO, "failed")] * 2
    assert file.read(2, 3) == b"234"
    assert failing == [] and open_files(path) == [str(path)]


@pytest.mark.parametrize("data", [b"abcdefghij", b"0123456789abc"], ids=["as long", "longer"])
def test_a_file_that_was_replaced_is_not_read_on(path, failing, data):
    file = ReopenedFile(path, is_remote=True)
    path.with_name("b").write_bytes(data)
    os.replace(path.with_name("b"), path)
    failing.append(OSError(errno.ESTALE, "failed"))
    with pytest.raises(CorruptDataError, match="replaced while it was read") as caught:
        file.read(0, 10)
    assert caught.value.url == str(path)
    assert caught.value.expected == "10 bytes, written 1970-01-01T00:00:00.000000001 UTC"
    assert file.read(0, 10) == b"0123456789"


@pytest.fixture(params=[False, True], ids=["disk", "network"])
def reopened(path, monkeypatch, request):
    """Return a file that was opened by a process which may have no more files open."""
    monkeypatch.setattr("wdsplit.storage.local_file._OTHER_FILES", 2**30)
    monkeypatch.setattr("wdsplit.storage.local.is_network_mount", lambda root: request.param)
    file = LocalStorage(str(path.parent)).open(path.name)
    assert file.is_remote == request.param
    return file


def test_where_few_files_may_be_open_they_are_closed_between_readings(path, reopened):
    buffer = bytearray(4)
    reopened.expect(0, 10)
    reopened.read_into(memoryview(buffer), 5)
    assert (reopened.size, reopened.read(2, 3), bytes(buffer)) == (10, b"234", b"5678")
    assert open_files(path) == []
    path.with_name("b").write_bytes(b"abcdefghij")
    os.replace(path.with_name("b"), path)
    with pytest.raises(CorruptDataError, match="replaced while it was read"):
        reopened.read(0, 10)
    path.unlink()
    with pytest.raises(DatasetNotFoundError, match="there is no such file"):
        reopened.read(0, 10)
