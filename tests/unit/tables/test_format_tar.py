import logging
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format_inputs import read_files
from tables import converted, mixed_table, real_samples, shard_files, write_table
from tars import archives, by_tarfile, gnu_tar
from wdsplit.errors import InputError
from wdsplit.tables.formats import tar
from wdsplit.tables.read import open_inputs, read_rows


def tar_file(folder, members, name="a.tar", **options) -> str:
    path = Path(folder) / name
    path.write_bytes(members if isinstance(members, bytes) else by_tarfile(members, **options))
    return str(path)


# Samples


@given(archives(), st.sampled_from([1, 2, 1000]), st.sampled_from([1, 2000, 10**6]))
def test_samples_are_rows_and_fields_columns(tmp_path_factory, archive, max_samples, group_bytes):
    path = tar_file(tmp_path_factory.mktemp("tars"), archive.data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar, "_GROUP_SAMPLES", max_samples)
        patch.setattr(tar, "BATCH_BYTES", group_bytes)
        file, schema = tar.open_file(path)
        rows = read_files([path]).to_pylist()
    assert file.num_rows == sum(file.row_groups) == len(archive.samples) == len(rows)
    assert max(file.row_groups, default=0) <= max_samples
    assert schema.names == ["__key__", *dict.fromkeys(name.partition(".")[2] for name, _ in archive.members)]
    for row, sample in zip(rows, archive.samples, strict=True):
        fields = {name: data for name, data in row.items() if data is not None and name != "__key__"}
        assert {f"{row['__key__']}.{name}": data for name, data in fields.items()} == dict(sample)


def test_fields_that_a_sample_or_a_tar_lacks_are_null(tmp_path):
    one = tar_file(tmp_path, [("a.TXT", b"1"), ("b.cls", b""), ("b.txt", b"2")], "one.tar")
    other = tar_file(tmp_path, [("c.json", b"3")], "other.tar")
    table = read_files([one, other])
    assert table.schema == pa.schema(
        [("__key__", pa.large_string()), *((name, pa.large_binary()) for name in ("txt", "cls", "json"))]
    )
    assert table.to_pylist() == [
        {"__key__": "a", "txt": b"1", "cls": None, "json": None},
        {"__key__": "b", "txt": b"2", "cls": b"", "json": None},
        {"__key__": "c", "txt": None, "cls": None, "json": b"3"},
    ]
    assert read_files([one, other], ["cls", "__key__"]).column_names == ["cls", "__key__"]


def test_tars_of_gnu_tar_are_read_and_what_is_no_sample_is_told(tmp_path, caplog):
    folder = tmp_path / "files"
    (folder / "train").mkdir(parents=True)
    names = ["train/" + "long" * 30 + f"{number}.jpg" for number in range(5)] + ["README", "train/.hidden"]
    for name in names:
        (folder / name).write_bytes(name.encode())
    path = str(tmp_path / "a.tar")
    gnu_tar("--create", "--file", path, "--sort=name", "-C", str(folder), ".", cwd=tmp_path)
    with caplog.at_level(logging.WARNING):
        table = read_files([path])
    assert table.to_pylist() == [{"__key__": name[:-4], "jpg": name.encode()} for name in names[:5]]
    (record,) = caplog.records
    assert all(text in record.getMessage() for text in (path, "2 members", "README"))


def test_only_the_samples_that_are_asked_for_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tar, "_GROUP_SAMPLES", 2)
    path = tar_file(tmp_path, [(f"{number}.txt", b"x" * 600) for number in range(10)])
    table = open_inputs([path])
    data = bytearray(Path(path).read_bytes())
    for group in (0, 1, 4):
        begin, end = table.files[0].offsets[group : group + 2]
        data[begin:end] = b"\xff" * (end - begin)
    time = table.files[0].modified_ns
    Path(path).write_bytes(data)
    os.utime(path, ns=(time, time))
    assert sum(len(rows) for rows in read_rows(table, 4, 8, ["txt"])) == 4
    with pytest.raises(InputError, match="damaged") as caught:
        list(read_rows(table, 0, 10, ["txt"]))
    assert path in caught.value.place


# Shards of wdsplit


KEYS = ["plain", "a/b", "img.1", "a b", "é", "_x2E", "_pad_/x", "__meta__/x", "a//b", "_x2e", "x_x41"]


def test_keys_come_as_they_were_before_wdsplit_escaped_them(tmp_path):
    table = {"key": KEYS, "txt": KEYS}
    converted(write_table(tmp_path / "a.parquet", table), tmp_path / "out", key="key", shards=1)
    assert read_files([tmp_path / "out/000000.tar"]).column("__key__").to_pylist() == KEYS
    looks_escaped = ["_xFF", "a_x41", "_x2"]
    path = tar_file(tmp_path, [(f"{key}.txt", b"1") for key in looks_escaped])
    assert read_files([path]).column("__key__").to_pylist() == looks_escaped


def test_shards_that_are_sharded_again_hold_the_same_samples_without_the_pads(tmp_path):
    path = write_table(tmp_path / "a.parquet", mixed_table(50))
    manifest = converted(path, tmp_path / "out", shards=4)
    assert manifest.num_pads == 2
    for jobs, shards, inputs in ((1, 4, "out"), (2, 3, "out/*.tar")):
        again = tmp_path / f"again{jobs}"
        converted(f"{tmp_path}/{inputs}", again, shards=shards, jobs=jobs)
        assert real_samples(again) == real_samples(tmp_path / "out")
    first, again = (shard_files(tmp_path / name) for name in ("out", "again1"))
    assert first.keys() == again.keys()
    assert all(first[name] == again[name] for name in first if not name.endswith(".parquet"))  # other columns


# What is refused


@pytest.mark.parametrize(
    "members, cause",
    [
        ([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")], "are not together"),
        ([("a.txt", b""), ("a.TXT", b"")], "duplicate field"),
        ([("_pad_/a.txt", b""), ("b.txt", b"")], "a pad is not at the end"),
        ([("a.__key__", b"")], "invalid field name"),
    ],
)
def test_what_readers_would_merge_or_lose_is_refused_with_the_file(tmp_path, members, cause):
    path = tar_file(tmp_path, members)
    with pytest.raises(InputError, match=cause) as caught:
        open_inputs([path])
    assert caught.value.place.startswith(path)


def test_names_and_sizes_make_the_checksum(tmp_path):
    members = [("a.txt", b"1"), ("b.txt", b"2")]
    longer = [("a.txt", b"11"), members[1]]
    kinds = ((members, {}), (members[::-1], {}), (longer, {}), (members, {"mtime": 5}))
    footers = {tar.open_file(tar_file(tmp_path, its, **changes))[0].footer for its, changes in kinds}
    assert len(footers) == 4
