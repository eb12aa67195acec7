import io
import tarfile

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given

from tars import (
    FIELDS,
    SIZES,
    archive,
    archives,
    binary,
    by_tarfile,
    gnu_tar,
    payload,
    read_by_tarfile,
    without_devices,
)
from wdsplit.errors import InputError
from wdsplit.tar import members
from wdsplit.tar.headers import MAX_MEMBER_BYTES, pack_headers, size_digits
from wdsplit.tar.members import build_body
from wdsplit.tar.names import MAX_COMPONENT_BYTES, MAX_NAME_BYTES


@given(archives())
def test_the_bytes_are_those_of_tarfile_but_for_the_device_numbers(built):
    assert without_devices(built.data) == without_devices(by_tarfile(built.members, tarfile.USTAR_FORMAT))


def test_the_bytes_are_those_of_gnu_tar(tmp_path):
    """With each size of payload, in each field, and with members left out."""
    rows = range(len(SIZES))
    fields = {
        name: [payload(row, column, SIZES[(row + column) % len(SIZES)]) for row in rows]
        for column, name in enumerate(FIELDS)
    }
    fields["jpg"][2] = fields["json"][0] = None
    built = archive([f"train/img_{row}" for row in rows], fields)
    for name, data in built.members:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    names = [name for name, _ in built.members]
    options = ["--format=ustar", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=0644"]
    gnu_tar("-cf", "gnu.out", *options, *names, cwd=tmp_path)
    assert (tmp_path / "gnu.out").read_bytes() == built.data


@pytest.mark.parametrize("size", [0, 7, 8, 2**32, 2**33 - 2, MAX_MEMBER_BYTES])
def test_a_size_below_8_gib_fits_the_header_and_is_read_back(size):
    header = pack_headers(np.frombuffer(b"a.jpg".ljust(100, b"\0"), np.uint8)[None, :], np.array([size]))
    info = tarfile.TarInfo.frombuf(header.tobytes(), "ascii", "strict")
    assert (info.name, info.size) == ("a.jpg", size)
    assert size_digits(np.array([size])).tobytes() == b"%011o" % size


LONG_KEYS = ["short", "k" * 95, "k" * 96, "k" * 97, "dir/" + "n" * 150, "a/" * 400 + "b", "é" * 60, "z" * 251]


def long_and_short():
    """Return an archive whose names are of all lengths; one member is left out."""
    texts = [payload(row, 0, SIZES[row % len(SIZES)]) for row in range(len(LONG_KEYS))]
    return archive(LONG_KEYS, {"jpg": texts, "cls": [b"1", None, b"3", b"4", None, b"6", b"7", b"8"]})


def test_tarfile_and_gnu_tar_read_members_with_long_names_as_they_went_in(tmp_path):
    built = long_and_short()
    assert read_by_tarfile(built.data) == built.members
    (tmp_path / "a.tar").write_bytes(built.data)
    listed = gnu_tar("--utc", "--quoting-style=literal", "-tvf", "a.tar", cwd=tmp_path).splitlines()
    assert [line.split(maxsplit=5)[5] for line in listed] == [name for name, _ in built.members]
    assert all(line.startswith("-rw-r--r-- 0/0") and "1970-01-01 00:00" in line for line in listed)


def test_rows_beside_one_with_an_extended_header_keep_their_bytes():
    built = long_and_short()
    with tarfile.open(fileobj=io.BytesIO(built.data)) as tar:
        assert [bool(info.pax_headers) for info in tar] == [len(name.encode()) > 99 for name, _ in built.members]
    rows = [row for row, sample in enumerate(built.samples) if all(len(name.encode()) <= 99 for name, _ in sample)]
    assert 0 < len(rows) < len(built.samples)
    fields = {
        field: [dict(built.samples[row]).get(f"{LONG_KEYS[row]}.{field}") for row in rows] for field in ("jpg", "cls")
    }
    alone = archive([LONG_KEYS[row] for row in rows], fields)
    for row, first, stop in zip(rows, alone.offsets, alone.offsets[1:], strict=False):
        assert built.data[built.offsets[row] : built.offsets[row + 1]] == alone.data[first:stop]


@pytest.mark.parametrize("key", ["k" * 252, "a/" * 510 + "b", "k" * 256 + "/a"])
def test_a_name_that_is_too_long_for_a_file_system_is_refused_with_its_key(key):
    with pytest.raises(InputError, match="too long") as caught:
        archive(["short", "k" * 120, key], {"jpg": [b"1", b"2", b"3"]})
    assert caught.value.key == key
    assert f"{MAX_NAME_BYTES} bytes" in caught.value.expected and str(MAX_COMPONENT_BYTES) in caught.value.expected
    assert f"{len(key) + 4} bytes" in caught.value.found


def test_a_member_of_9_gib_has_the_headers_that_tarfile_writes():
    size, keys = 9 * 1024**3 + 5, pa.array(["huge", "small"], pa.large_binary())
    info = tarfile.TarInfo("huge.mp4")
    info.size = size
    theirs = info.tobuf(tarfile.PAX_FORMAT)
    ours = members._headers(keys, "mp4", np.array([size, 5]), np.array([True, True])).to_pylist()
    assert without_devices(ours[0] + bytes(512)) == without_devices(theirs + bytes(512))
    assert list(map(len, ours)) == [1536, 512]


def test_one_huge_sample_among_many_small_ones_is_not_copied():
    """The mean of a batch says nothing of its largest sample."""
    count, large = 2000, bytes(4 * 1024**2)
    values = binary([b"x"] * (count // 2) + [large] + [b"y"] * (count // 2))
    body = build_body(pa.array([f"k{row}" for row in range(count + 1)]), {"bin": values})
    parts, _ = body.parts()
    assert b"".join(parts) == bytes(body.join())
    address = next(np.frombuffer(part, np.uint8).ctypes.data for part in parts if len(part) == len(large))
    assert address == values.buffers()[2].address + count // 2
    assert len(parts) <= 5


def test_bytes_that_lie_under_a_null_are_not_written():
    validity = pa.array([True, False, True]).buffers()[1]
    offsets = pa.py_buffer(np.array([0, 1, 4, 5], np.int64))
    values = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 3, [validity, offsets, pa.py_buffer(b"ahidb")])
    body = build_body(pa.array(["x", "y", "z"]), {"txt": values, "cls": binary([b"1"] * 3)})
    read = read_by_tarfile(b"".join(body.parts()[0]))
    assert read == [("x.txt", b"a"), ("x.cls", b"1"), ("y.cls", b"1"), ("z.txt", b"b"), ("z.cls", b"1")]


@pytest.mark.parametrize("sizes", [[0, 1, 511], [20_000, 0, 100_000], [16_384] * 5])
def test_parts_put_together_are_the_joined_bytes_and_have_the_hashes_of_the_samples(sizes):
    payload = pa.array([bytes([size % 251]) * size for size in [7, *sizes]], pa.large_binary()).slice(1)
    other = pa.array([None if size == 0 else b"x" for size in sizes], pa.large_binary())
    body = build_body(pa.array([f"k{i}" for i in range(len(sizes))]), {"jpg": payload, "cls": other})
    parts, hashes = body.parts()
    assert b"".join(parts) == bytes(body.join())
    ends = np.cumsum(body.sample_bytes).tolist()
    samples = [bytes(body.join())[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert hashes.tolist() == [xxhash.xxh3_64_intdigest(sample) for sample in samples]
