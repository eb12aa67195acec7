"""What holds for every format: the same rows give the same shards; what is not as it should be is named."""

import dataclasses
import os
import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tables import converted, options, shard_files, write_table
from wdsplit.conversion.convert import convert
from wdsplit.errors import InputError, WdsplitError
from wdsplit.tables.formats import arrow, text
from wdsplit.tables.formats import common as formats_common
from wdsplit.tables.formats.registry import format_named
from wdsplit.tables.read import open_inputs, read_rows
from written_formats import WRITERS, numbered_table, tar_bytes, write_as

TABLE = numbered_table(60)
PLAN = {
    "shards": 4,
    "null": "omit",
    "mapping": {"txt": "caption", "cls": "label", "a.json": "score", "b.cls": "is good"},
}
every_format = pytest.mark.parametrize("name", WRITERS)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Cut files into blocks and batches of a few rows, so that their boundaries are met everywhere."""
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    monkeypatch.setattr(arrow, "_GROUP_BYTES", 100)
    monkeypatch.setattr(formats_common, "BATCH_BYTES", 150)


def read_all(paths, columns=None) -> pa.Table:
    table = open_inputs(paths)
    columns = columns or table.schema.names
    parts = [
        pa.table([rows.columns[name] for name in columns], names=columns)
        for rows in read_rows(table, 0, table.num_rows, columns)
    ]
    return pa.concat_tables(parts) if parts else table.schema.empty_table()


@pytest.fixture(scope="module")
def as_parquet(tmp_path_factory):
    """Return the shards that the table gives as parquet, in order and shuffled."""
    folder = tmp_path_factory.mktemp("parquet")
    path = write_table(folder / "a.parquet", TABLE, 13)
    return {shuffle: _converted(path, folder / str(shuffle), shuffle=shuffle) for shuffle in (False, True)}


def _converted(inputs, out, **changes):
    converted(inputs, out, **{**PLAN, **changes})
    return shard_files(out)


# Rows and shards


@every_format
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_table_gives_the_shards_that_it_gives_as_parquet(name, shuffle, tmp_path, as_parquet, tiny_blocks):
    path = write_as(tmp_path, name, TABLE)
    assert _converted(path, tmp_path / "out", shuffle=shuffle) == as_parquet[shuffle]


@pytest.mark.parametrize("name", ["stream.arrow", "a.jsonl"])
def test_two_jobs_give_the_same_shards(name, tmp_path, as_parquet, tiny_blocks):
    path = write_as(tmp_path, name, TABLE)
    assert _converted(path, tmp_path / "out", jobs=2) == as_parquet[False]


@every_format
def test_several_files_give_the_shards_of_one(name, tmp_path, as_parquet):
    cuts = [0, 0, 1, 20, 20, 60]
    paths = [
        write_as(tmp_path / str(number), name, TABLE.slice(first, stop - first))
        for number, (first, stop) in enumerate(pairwise(cuts))
    ]
    assert _converted(paths, tmp_path / "out") == as_parquet[False]


@every_format
def test_a_run_is_resumed(name, tmp_path, as_parquet):
    path = write_as(tmp_path, name, TABLE)

    def stop(progress):
        if progress.done >= 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        convert([path], str(tmp_path / "out"), options(**PLAN), stop)
    assert _converted(path, tmp_path / "out", resume=True) == as_parquet[False]


@pytest.fixture(scope="module")
def small_groups(tmp_path_factory):
    """Return the table in every format, with row groups of a few rows, and its rows as they are read whole."""
    folder = tmp_path_factory.mktemp("groups")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", 100)
        patch.setattr(arrow, "_GROUP_BYTES", 100)
        tables = {name: open_inputs([write_as(folder, name, TABLE)]) for name in WRITERS}
    return {name: (table, read_all([table.files[0].path])) for name, table in tables.items()}


@settings(max_examples=150)
@given(
    st.sampled_from(list(WRITERS)),
    st.integers(0, 60),
    st.integers(0, 60),
    st.lists(st.sampled_from(TABLE.column_names), min_size=1, unique=True),
    st.sampled_from([1, 300, 16 * 1024**2]),
)
def test_any_rows_and_columns_are_the_slice_of_the_table(small_groups, name, first, stop, columns, batch_bytes):
    table, whole = small_groups[name]
    first, stop = sorted((first, stop))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats_common, "BATCH_BYTES", batch_bytes)
        parts = [pa.table(dict(rows.columns)) for rows in read_rows(table, first, stop, columns)]
    wanted = whole.slice(first, stop - first).select(columns)
    assert pa.concat_tables([wanted.slice(0, 0), *parts]).equals(wanted)


@every_format
def test_rows_are_read_as_they_were_written(name, tmp_path, tiny_blocks):
    assert read_all([write_as(tmp_path, name, TABLE)]).to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.endswith("orc")])
def test_files_are_cut_into_row_groups_whose_rows_add_up(name, small_groups):
    file = small_groups[name][0].files[0]
    assert len(file.row_groups) > 5
    assert sum(file.row_groups) == file.num_rows == 60
    assert file.offsets == () or len(file.offsets) == len(file.row_groups) + 1
    assert list(file.offsets) == sorted(file.offsets)


@every_format
def test_a_batch_does_not_hold_more_than_its_bytes_of_rows(name, tmp_path, monkeypatch):
    table = pa.table({"caption": ["x" * 100] * 60, "label": range(60)})
    path = write_as(tmp_path, name, table)
    monkeypatch.setattr(formats_common, "BATCH_BYTES", 550)
    opened = open_inputs([path])
    file = opened.files[0]
    groups = range(len(file.row_groups))
    batches = [len(b) for b in format_named(file.format).read_batches(file, groups, ["caption"], opened.schema)]
    assert sum(batches) == 60
    assert max(batches) <= 5


@every_format
def test_a_table_without_rows_has_none(name, tmp_path):
    table = open_inputs([write_as(tmp_path, name, TABLE.slice(0, 0))])
    assert table.num_rows == 0
    assert table.schema.names == ([] if name.endswith("jsonl") else TABLE.column_names)


@every_format
def test_a_row_of_many_bytes_is_read(name, tmp_path, tiny_blocks):
    table = pa.table({"caption": ["a", "é" * 200_000, "b"], "label": [1, 2, 3]})
    assert read_all([write_as(tmp_path, name, table)]).to_pylist() == table.to_pylist()


@every_format
def test_the_size_of_the_columns_is_told_about(name, tmp_path):
    data_bytes = open_inputs([write_as(tmp_path, name, TABLE)]).files[0].data_bytes
    assert TABLE.nbytes / 3 < data_bytes < TABLE.nbytes * 3


# Files that are not what they should be


@every_format
def test_other_values_give_another_checksum(name, tmp_path):
    other = TABLE.set_column(0, "caption", [["a"] * 60])
    files = [open_inputs([write_as(tmp_path / str(n), name, t)]).files[0] for n, t in enumerate((TABLE, other))]
    assert files[0].footer != files[1].footer
    again = open_inputs([files[0].path]).files[0]
    assert again == files[0]


@every_format
@pytest.mark.parametrize("change", ["longer", "as long"])
def test_a_file_that_was_written_since_it_was_opened_is_refused(name, change, tmp_path):
    path = write_as(tmp_path, name, TABLE)
    table = open_inputs([path])
    data = Path(path).read_bytes()
    Path(path).write_bytes(data + b"\n" if change == "longer" else data)
    os.utime(path, ns=(0, table.files[0].modified_ns + 1))
    with pytest.raises(InputError, match="changed since it was planned") as caught:
        list(read_rows(table, 0, 60, ["label"]))
    assert path in str(caught.value)


@pytest.mark.parametrize("name", [*WRITERS, "a.tar"])
def test_a_file_with_other_rows_than_it_was_planned_with_is_refused(name, tmp_path):
    if name == "a.tar":
        path = str(tmp_path / name)
        Path(path).write_bytes(tar_bytes(TABLE))
    else:
        path = write_as(tmp_path, name, TABLE)
    table = open_inputs([path])
    file = table.files[0]
    groups = (file.row_groups[0] + 1, *file.row_groups[1:])
    wrong = dataclasses.replace(file, row_groups=groups)
    with pytest.raises(InputError, match="changed since it was planned"):
        list(format_named(file.format).read_batches(wrong, [0], table.schema.names, table.schema))


@pytest.mark.parametrize("name", [*WRITERS, "a.tar"])
def test_a_damaged_file_gives_rows_or_an_error_that_names_it(name, tmp_path):
    chance = random.Random(name)
    data = tar_bytes(TABLE) if name == "a.tar" else WRITERS[name](TABLE)
    path = str(tmp_path / name)
    errors = 0
    for _ in range(60):
        damaged = bytearray(data)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(data)) :]
        else:
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        Path(path).write_bytes(damaged)
        try:
            read_all([path])
        except WdsplitError as error:
            errors += 1
            assert path in str(error)
    assert errors > 5


@pytest.mark.parametrize("name", ["file.arrow", "stream.arrow", "a.orc", "a.jsonl", "a.tar"])
def test_a_file_that_was_cut_off_is_refused(name, tmp_path):
    data = tar_bytes(TABLE) if name == "a.tar" else WRITERS[name](TABLE)
    path = tmp_path / name
    cuts = range(1, len(data) if name != "a.tar" else len(data.rstrip(b"\0")), len(data) // 40)
    for cut in cuts:
        path.write_bytes(data[:cut])
        if name == "a.jsonl" and b"\n" in data[cut - 1 : cut + 1]:
            continue
        with pytest.raises(InputError) as caught:
            read_all([str(path)])
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["a.arrow", "a.orc", "a.tar", "a.csv"])
def test_an_empty_file_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError) as caught:
        open_inputs([str(tmp_path / name)])
    assert name in str(caught.value)
