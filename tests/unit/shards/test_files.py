import os
import tarfile
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from webdataset.tariterators import group_by_keys

from tables import files_below, sample_offsets, tar_samples
from tars import binary, by_tarfile, read_by_tarfile
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError
from wdsplit.indexing.tars import read_tar
from wdsplit.loading.reading.open_shard import check_tail, open_shard
from wdsplit.loading.reading.windows import read_window
from wdsplit.shards.files import read_manifest, write_shard
from wdsplit.shards.manifest import Shard
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.members import build_body

PATH, NAMES = "000000.tar", ("jpg", "cls")


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
    def places(self):
        return self.storage.root / f"{PATH}.places"

    def open(self):
        return open_shard(self.storage, self.shard, NAMES)


@pytest.fixture
def written(tmp_path):
    storage = LocalStorage(str(tmp_path))
    return Written(storage, write_shard(storage, PATH, bodies(), NAMES, 1))


SAMPLES = [
    ("a", {"jpg": b"x" * 600, "cls": b"1"}),
    ("dir/b", {"jpg": b"", "cls": b"2"}),
    ("c", {"jpg": b"y" * 512, "cls": b"3"}),
]


def test_a_shard_holds_the_samples_of_all_batches_in_order(written):
    assert tar_samples(written.tar) == SAMPLES
    assert files_below(written.storage.root) == [PATH, f"{PATH}.places"]


def test_the_places_are_what_the_standard_library_finds(written):
    assert written.open().places.offsets().tolist() == sample_offsets(written.tar)


def test_a_shard_is_read_as_it_was_written(written):
    window = read_window(written.open(), np.arange(3))
    assert window.keys.tolist() == ["a", "dir/b", "c"]
    for row, (sample, (key, fields)) in enumerate(zip(window.samples(), SAMPLES, strict=True)):
        names = {"__key__": key, "__url__": str(written.tar), "__position__": row, "__pad__": False}
        assert sample == {**names, **fields}


def test_an_error_in_a_late_batch_leaves_no_tar_that_looks_valid(tmp_path):
    def failing():
        yield from bodies()
        raise InputError("a value is null")

    with pytest.raises(InputError, match="is null"):
        write_shard(LocalStorage(str(tmp_path)), PATH, failing(), NAMES, 0)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, 512, 10_239])
def test_a_truncated_shard_is_refused_by_name_with_both_sizes(written, size):
    os.truncate(written.tar, size)
    with pytest.raises(CorruptDataError, match="another size") as caught:
        written.open()
    assert caught.value.url == str(written.tar)
    assert f"{written.shard.num_bytes} bytes" in caught.value.expected
    assert f"{size} bytes" in caught.value.found


@pytest.mark.parametrize("name", ["tar", "places"])
def test_a_missing_shard_or_its_places_are_refused_by_name(written, name):
    path = getattr(written, name)
    path.unlink()
    with pytest.raises(DatasetNotFoundError) as caught:
        written.open()
    assert caught.value.place == str(path)


@pytest.mark.parametrize("data", [b"", bytes(63), bytes(64), b"\xff" * 64])
def test_damaged_places_are_refused_by_name(written, data):
    written.places.write_bytes(data)
    with pytest.raises(CorruptDataError) as caught:
        written.open()
    assert str(written.places) in str(caught.value)


def test_large_places_are_refused_by_their_size_before_they_are_read(written):
    os.truncate(written.places, 8 * 1024**3)
    unread = patch.object(os, "pread", side_effect=AssertionError("they were read"))
    with unread, pytest.raises(CorruptDataError, match="too large") as caught:
        written.open()
    assert f"{8 * 1024**3} bytes" in caught.value.found


def test_a_shard_that_was_written_again_with_other_samples_of_the_same_sizes_is_refused(written):
    """As by `convert --overwrite` with another seed, while a reader has the manifest of before."""
    write_shard(
        written.storage, PATH, [body(["a", "dir/b", "d"], jpg=[b"z" * 600, b"", b"y" * 512], cls=[b"1"] * 3)], NAMES, 1
    )
    assert written.tar.stat().st_size == written.shard.num_bytes
    with pytest.raises(CorruptDataError, match="belong to another tar") as caught:
        written.open()
    assert "overwritten" in caught.value.remedy


@pytest.mark.parametrize("offset", [0, 100, 148, 156, 500])
def test_a_changed_header_is_refused_by_name_and_byte(written, offset):
    data = bytearray(written.tar.read_bytes())
    second = sample_offsets(written.tar)[1]
    data[second + offset] ^= 1
    written.tar.write_bytes(data)
    shard = written.open()
    assert read_window(shard, np.arange(1)).keys.tolist() == ["a"]
    with pytest.raises(CorruptDataError) as caught:
        read_window(shard, np.arange(3))
    assert caught.value.url == str(written.tar)
    assert caught.value.offset == second
    assert f"byte {second}" in caught.value.place
    assert str(written.tar) in caught.value.place


def test_a_tail_that_holds_more_than_zeros_is_told_by_its_place(written):
    data = bytearray(written.tar.read_bytes())
    data[-1] = 1
    written.tar.write_bytes(data)
    error = check_tail(written.open())
    assert isinstance(error, CorruptDataError)
    assert error.url == str(written.tar)
    assert error.offset == sample_offsets(written.tar)[-1]
    assert "not all zero" in error.found


# Tars of others


def opened(folder, data):
    """Return a tar of others as an open shard, with the places that it should have."""
    (folder / PATH).write_bytes(data)
    storage = LocalStorage(str(folder))
    content, places = read_tar(storage, PATH)
    (folder / f"{PATH}.places").write_bytes(places)
    return open_shard(storage, content.shard, tuple(content.field_counts))


def taken(window):
    """Return keys and fields of the samples of a window."""
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"})
        for sample in window.samples()
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
    num_samples = shard.places.num_samples
    window = read_window(shard, np.arange(num_samples))
    assert taken(window) == expected
    assert window.keys.tolist() == [key for key, _ in expected]
    for row in range(num_samples):
        assert taken(read_window(shard, np.array([row]))) == [expected[row]]
    assert check_tail(shard) is None


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
