import os
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys

from tables import files_below, sample_offsets, tar_samples
from tars import archives, binary, by_tarfile, read_by_tarfile
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError
from wdsplit.loading.reading.open_shard import check_tail, open_shard
from wdsplit.loading.reading.read_windows import read_window
from wdsplit.shards.files import read_manifest, write_shard
from wdsplit.shards.manifest import Shard
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.members import build_body
from wdsplit.tar.samples import group_samples
from wdsplit.tar.scan import scan_tar

PATH = "000000.tar"


def body(keys, **fields):
    fields = {name: binary(values) for name, values in fields.items()}
    return build_body(pa.array(keys, pa.string()), fields)


def bodies():
    yield body(["a", "dir/b"], jpg=[b"x" * 600, b""], cls=[b"1", b"2"])
    yield body(["c"], jpg=[b"y" * 512], cls=[b"3"])


@dataclass
class Written:
    storage: LocalStorage
    shard: Shard

    @property
    def tar(self):
        return self.storage.root / PATH

    @property
    def idx(self):
        return self.storage.root / f"{PATH}.idx"

    def open(self, **changes):
        return open_shard(self.storage, replace(self.shard, **changes))


@pytest.fixture
def written(tmp_path):
    storage = LocalStorage(str(tmp_path))
    return Written(storage, write_shard(storage, PATH, bodies(), 1))


SAMPLES = [
    ("a", {"jpg": b"x" * 600, "cls": b"1"}),
    ("dir/b", {"jpg": b"", "cls": b"2"}),
    ("c", {"jpg": b"y" * 512, "cls": b"3"}),
]


def test_a_shard_holds_the_samples_of_all_batches_in_order(written):
    assert tar_samples(written.tar) == SAMPLES
    assert files_below(written.storage.root) == [PATH, f"{PATH}.idx"]


def test_the_manifest_is_told_what_was_written(written):
    data = written.tar.read_bytes()
    assert written.shard == Shard(PATH, 3, 1, len(data), f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}")
    assert len(data) % 10_240 == 0


def test_the_index_is_what_the_standard_library_finds(written):
    assert np.frombuffer(written.idx.read_bytes(), "<u8").tolist() == sample_offsets(written.tar)


def test_a_shard_is_read_as_it_was_written(written):
    window = read_window(written.open(), 0, 3)
    samples = list(window.take([2, 0, 1], [7, 8, 9], [False, True, False]))
    assert len(window) == 3
    assert window.keys.tolist() == ["a", "dir/b", "c"]
    for sample, row, position, pad in zip(samples, (2, 0, 1), (7, 8, 9), (False, True, False), strict=True):
        key, fields = SAMPLES[row]
        names = {"__key__": key, "__url__": str(written.tar), "__position__": position, "__pad__": pad}
        assert sample == {**names, **fields}


@settings(max_examples=50)
@given(archives(min_samples=1), st.data())
def test_any_window_of_any_shard_holds_its_samples(tmp_path_factory, built, data):
    folder = tmp_path_factory.mktemp("shard")
    (folder / PATH).write_bytes(built.data)
    (folder / f"{PATH}.idx").write_bytes(built.offsets.astype("<u8").tobytes())
    num_samples = len(built.samples)
    shard = open_shard(LocalStorage(str(folder)), Shard(PATH, num_samples, 0, len(built.data), ""))
    first = data.draw(st.integers(0, num_samples - 1))
    stop = data.draw(st.integers(first + 1, num_samples))
    rows = data.draw(st.permutations(range(stop - first)))
    window = read_window(shard, first, stop)
    taken = list(window.take(rows, rows, [False] * len(rows)))
    for sample, row in zip(taken, rows, strict=True):
        members = [(f"{sample['__key__']}.{name}", value) for name, value in sample.items() if name[:2] != "__"]
        assert sorted(members) == sorted(built.samples[first + row]), "in the window's order of fields, not the tar's"
    names = [sample[0][0] for sample in built.samples[first:stop]]
    assert window.keys.tolist() == [name.partition(".")[0] for name in names]
    assert check_tail(shard) is None


def test_an_error_in_a_late_batch_leaves_no_tar_that_looks_valid(tmp_path):
    def failing():
        yield from bodies()
        raise InputError("a value is null")

    with pytest.raises(InputError, match="is null"):
        write_shard(LocalStorage(str(tmp_path)), PATH, failing(), 0)
    assert files_below(tmp_path) == []


def test_a_shard_that_another_attempt_wrote_is_replaced_by_the_same_bytes(written):
    before = written.tar.read_bytes(), written.idx.read_bytes()
    assert write_shard(written.storage, PATH, bodies(), 1) == written.shard
    assert (written.tar.read_bytes(), written.idx.read_bytes()) == before


@pytest.mark.parametrize("size", [0, 1, 512, 10_239])
def test_a_truncated_shard_is_refused_by_name_with_both_sizes(written, size):
    os.truncate(written.tar, size)
    with pytest.raises(CorruptDataError, match="another size") as caught:
        written.open()
    assert caught.value.url == str(written.tar)
    assert f"{written.shard.num_bytes} bytes" in caught.value.expected
    assert f"{size} bytes" in caught.value.found


def test_a_shard_that_grew_is_refused_by_name(written):
    os.truncate(written.tar, written.shard.num_bytes + 1)
    with pytest.raises(CorruptDataError) as caught:
        written.open()
    assert str(written.tar) in str(caught.value)


@pytest.mark.parametrize("name", ["tar", "idx"])
def test_a_missing_shard_or_index_is_refused_by_name(written, name):
    path = getattr(written, name)
    path.unlink()
    with pytest.raises(DatasetNotFoundError) as caught:
        written.open()
    assert caught.value.place == str(path)


@pytest.mark.parametrize("data", [b"", bytes(8), bytes(31), bytes(32), bytes(33), b"\xff" * 32])
def test_a_damaged_index_is_refused_by_name(written, data):
    written.idx.write_bytes(data)
    with pytest.raises(CorruptDataError) as caught:
        written.open()
    assert str(written.idx) in str(caught.value)


def test_a_large_index_is_refused_by_its_size_before_it_is_read(written):
    index = Path(written.storage.url, f"{PATH}.idx")
    os.truncate(index, 8 * 1024**3)
    unread = patch.object(os, "pread", side_effect=AssertionError("it was read"))
    with unread, pytest.raises(CorruptDataError, match="too large") as caught:
        open_shard(written.storage, written.shard)
    assert f"{8 * 1024**3} bytes" in caught.value.found
    assert int(caught.value.expected.split()[2]) < 1024


@pytest.mark.parametrize("shift", [-1024, -512, 512, 1024])
def test_the_index_of_another_shard_is_refused_when_its_samples_are_read(written, shift):
    offsets = sample_offsets(written.tar)
    offsets[1] += shift
    written.idx.write_bytes(np.array(offsets, "<u8").tobytes())
    with pytest.raises(CorruptDataError) as caught:
        list(read_window(written.open(), 0, 3).take(range(3), range(3), [False] * 3))
    assert str(written.tar) in str(caught.value)


@pytest.mark.parametrize("offset", [0, 100, 148, 156, 500])
def test_a_changed_header_is_refused_by_name_and_byte(written, offset):
    data = bytearray(written.tar.read_bytes())
    second = sample_offsets(written.tar)[1]
    data[second + offset] ^= 1
    written.tar.write_bytes(data)
    shard = written.open()
    assert read_window(shard, 0, 1).keys.tolist() == ["a"]
    with pytest.raises(CorruptDataError) as caught:
        read_window(shard, 0, 3)
    assert caught.value.url == str(written.tar)
    assert caught.value.offset == second
    assert f"byte {second}" in caught.value.place
    assert str(written.tar) in caught.value.place


def test_members_of_two_samples_under_one_entry_are_not_merged(tmp_path):
    storage = LocalStorage(str(tmp_path))
    shard = write_shard(storage, PATH, [body(["a", "b", "c"], cls=[b"1", b"2", b"3"])], 0)
    offsets = sample_offsets(tmp_path / PATH)
    (tmp_path / f"{PATH}.idx").write_bytes(np.array([offsets[0], *offsets[2:]], "<u8").tobytes())
    with pytest.raises(CorruptDataError, match="members of two samples") as caught:
        read_window(open_shard(storage, replace(shard, num_samples=2)), 0, 2)
    assert caught.value.key == "a"
    assert "'b'" in caught.value.found


def test_a_right_tail_is_nothing_but_zeros_to_the_end(written):
    assert check_tail(written.open()) is None


def test_a_tail_that_holds_more_than_zeros_is_told_by_its_place(written):
    data = bytearray(written.tar.read_bytes())
    data[-1] = 1
    written.tar.write_bytes(data)
    error = check_tail(written.open())
    assert isinstance(error, CorruptDataError)
    assert error.url == str(written.tar)
    assert error.offset == sample_offsets(written.tar)[-1]
    assert "not all zero" in error.found


@pytest.mark.parametrize("change", [-512, 512, 10_240])
def test_how_many_zeros_end_a_tar_is_left_to_its_writer(written, change):
    num_bytes = written.shard.num_bytes + change
    os.truncate(written.tar, num_bytes)
    assert check_tail(written.open(num_bytes=num_bytes)) is None


@pytest.mark.parametrize("change", [-1, 1, 511])
def test_a_tail_of_no_whole_blocks_is_told_even_where_the_manifest_agrees(written, change):
    num_bytes = written.shard.num_bytes + change
    os.truncate(written.tar, num_bytes)
    error = check_tail(written.open(num_bytes=num_bytes))
    assert error is not None
    assert "end of a shard" in error.cause


# Tars of others


def opened(folder, data):
    """Return a tar of others as an open shard, with the index that it should have."""
    samples = group_samples(scan_tar(memoryview(data)))
    (folder / PATH).write_bytes(data)
    (folder / f"{PATH}.idx").write_bytes(samples.offsets.astype("<u8").tobytes())
    return open_shard(LocalStorage(str(folder)), Shard(PATH, len(samples.keys), 0, len(data), ""))


def taken(window, rows=None):
    """Return keys and fields of the samples of a window."""
    rows = range(len(window)) if rows is None else rows
    samples = window.take(rows, rows, [False] * len(rows))
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"}) for sample in samples
    ]


UNIFORM = [f"{key}.{field}" for key in ("a", "b", "c") for field in ("jpg", "cls")]

TARS = {
    "uniform": UNIFORM,
    "from .": [f"./{name}" for name in UNIFORM],
    "capitals": [name.replace("jpg", "JPG") for name in UNIFORM],
    "capitals once": ["a.JPG", *UNIFORM[1:]],
    "another order": ["a.cls", "a.jpg", *UNIFORM[2:]],
    "another number": UNIFORM[:-1],
    "folders with dots": [f"v1.0/{name}" for name in UNIFORM],
    "dots": ["a.jpg", "x.y.jpg", "z.jpg"],
    "long": [f"{'n' * 120}-{name}" for name in UNIFORM],
    "long once": [*UNIFORM[:2], *[f"{'n' * 120}-{name}" for name in UNIFORM[2:4]], *UNIFORM[4:]],
    "split names": [f"{'d' * 60}/{'n' * 60}-{name}" for name in UNIFORM],
    "not ASCII": [f"größe {name}" for name in UNIFORM],
    "left out": ["README", *UNIFORM[:2], "notes", *UNIFORM[2:], "__meta__/x.json"],
    "one left out a sample": [name for key in "Rab" for name in (f"{key}.jpg", f"{key}EADME", f"{key}.cls")],
    "left out after each": [name for key in "Rab" for name in (f"{key}.jpg", f"{key}EADME")],
    "hidden": [name for key in "abc" for name in (f"{key}.jpg", f"._{key}.jpg")],
    "marked": [f"__{name}" for name in UNIFORM],
    "marked in a folder": [f"__m/{name}" for name in UNIFORM],
}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("names", TARS.values(), ids=TARS)
def test_a_window_of_a_tar_of_others_holds_the_samples_of_webdataset(tmp_path, names, format):
    if format == tarfile.USTAR_FORMAT and any(len(name) > 120 and "/" not in name for name in names):
        format = tarfile.PAX_FORMAT
    data = by_tarfile([(name, name.encode() * 30) for name in names], format, mtime=1.5)
    shard = opened(tmp_path, data)
    read = group_by_keys(
        {"fname": name.removeprefix("./"), "data": data, "__url__": ""}
        for name, data in read_by_tarfile(data)
        if not name.startswith(("._", "__meta__/"))
    )
    expected = [
        (sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"}) for sample in read
    ]
    num_samples = len(shard.offsets) - 1
    window = read_window(shard, 0, num_samples)
    assert taken(window) == expected
    assert window.keys.tolist() == [key for key, _ in expected]
    assert {name for _, names in window.field_names() for name in names} == {
        name for _, fields in expected for name in fields
    }
    for row in range(num_samples):
        assert taken(read_window(shard, row, row + 1)) == [expected[row]]
    assert check_tail(shard) is None


def test_a_field_in_two_cases_is_a_field_twice(tmp_path):
    data = by_tarfile([("a.jpg", b"1"), ("b.jpg", b"2"), ("b.cls", b"3")])
    shard = opened(tmp_path, data)
    assert taken(read_window(shard, 0, 2))
    both = by_tarfile([("a.jpg", b"1"), ("b.jpg", b"2"), ("b.JPG", b"3")])
    (tmp_path / PATH).write_bytes(both)
    again = open_shard(LocalStorage(str(tmp_path)), Shard(PATH, 2, 0, len(both), ""))
    with pytest.raises(CorruptDataError, match="duplicate field"):
        taken(read_window(again, 0, 2))


def test_an_entry_of_the_index_without_a_sample_is_told(tmp_path):
    data = by_tarfile([("a.jpg", b"1"), ("README", b"2"), ("b.jpg", b"3")])
    shard = opened(tmp_path, data)
    (tmp_path / f"{PATH}.idx").write_bytes(np.array([0, 1024, 2048, 3072], "<u8").tobytes())
    indexed = open_shard(LocalStorage(str(tmp_path)), Shard(PATH, 3, 0, len(data), ""))
    assert taken(read_window(indexed, 0, 1)) == taken(read_window(shard, 0, 1))
    with pytest.raises(CorruptDataError, match="no members"):
        read_window(indexed, 0, 3)


# What is no dataset


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("000000.tar", "wdsplit index"),
        ("t.parquet", "wdsplit convert t.parquet OUTPUT"),
        ("wdsplit.json", "the folder that contains it"),
    ],
)
def test_a_file_in_the_place_of_a_dataset_is_refused_with_the_command_for_it(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DatasetNotFoundError, match="a file is not a dataset") as caught:
        read_manifest(LocalStorage(str(tmp_path / name)))
    assert remedy in caught.value.remedy


def test_a_pattern_of_tars_in_the_place_of_a_dataset_names_the_command_for_their_folder(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no dataset") as caught:
        read_manifest(LocalStorage(str(tmp_path / "{0..3}.tar")))
    assert "wdsplit index FOLDER" in caught.value.remedy
