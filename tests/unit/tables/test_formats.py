"""What holds for every format: rows are read as they were written; what is not as it should be is named."""

import dataclasses
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from format_inputs import cut_small, read_files
from wdsplit.errors import InputError, WdsplitError
from wdsplit.tables.formats import common as formats_common
from wdsplit.tables.formats.registry import format_named
from wdsplit.tables.read import open_inputs, read_rows
from written_formats import WRITERS, numbered_table, tar_bytes, write_as

TABLE = numbered_table(60)
BYTES = {**WRITERS, "a.tar": tar_bytes}
every_format = pytest.mark.parametrize("name", WRITERS)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Cut files into blocks and batches of a few rows, so that their boundaries are met everywhere."""
    cut_small(monkeypatch)


# Rows


@pytest.fixture(scope="module")
def small_groups(tmp_path_factory):
    """Return the table in every format, with row groups of a few rows."""
    folder = tmp_path_factory.mktemp("groups")
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        return {name: open_inputs([write_as(folder, name, TABLE)]) for name in WRITERS}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=20)
@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.lists(st.sampled_from(TABLE.column_names), min_size=1, unique=True),
    st.sampled_from([1, 300, 16 * 1024**2]),
)
@example(0, 60, TABLE.column_names, 150)
def test_any_rows_and_columns_are_the_slice_of_the_table(small_groups, name, first, stop, columns, batch_bytes):
    first, stop = sorted((first, stop))
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        patch.setattr(formats_common, "BATCH_BYTES", batch_bytes)
        parts = [pa.table(dict(part.columns)) for part in read_rows(small_groups[name], first, stop, columns)]
    found = [row for part in parts for row in part.to_pylist()]
    assert found == TABLE.slice(first, stop - first).select(columns).to_pylist()


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_cut_into_row_groups_whose_rows_add_up(name, small_groups):
    file = small_groups[name].files[0]
    assert len(file.row_groups) > 5
    assert sum(file.row_groups) == file.num_rows == 60
    assert file.offsets == () or len(file.offsets) == len(file.row_groups) + 1
    assert list(file.offsets) == sorted(file.offsets)
    assert TABLE.nbytes / 3 < file.data_bytes < TABLE.nbytes * 3


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
    assert read_files([write_as(tmp_path, name, table)]).to_pylist() == table.to_pylist()


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


@pytest.mark.parametrize("name", BYTES)
def test_a_file_with_other_rows_than_it_was_planned_with_is_refused(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(BYTES[name](TABLE))
    table = open_inputs([str(path)])
    file = table.files[0]
    wrong = dataclasses.replace(file, row_groups=(file.row_groups[0] + 1, *file.row_groups[1:]))
    with pytest.raises(InputError, match="changed since it was planned"):
        list(format_named(file.format).read_batches(wrong, [0], table.schema.names, table.schema))


@pytest.mark.parametrize("name", BYTES)
def test_a_damaged_file_gives_rows_or_an_error_that_names_it(name, tmp_path):
    chance, data, path, errors = random.Random(name), BYTES[name](TABLE), tmp_path / name, 0
    for _ in range(30):
        damaged = bytearray(data)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(data)) :]
        else:
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            read_files([path])
        except WdsplitError as error:
            errors += 1
            assert str(path) in str(error)
    assert errors > 2


@pytest.mark.parametrize("name", ["file.arrow", "zstd stream.ipc", "a.jsonl", "a.tar"])
def test_a_file_that_was_cut_off_is_refused(name, tmp_path):
    data, path = BYTES[name](TABLE), tmp_path / name
    for cut in (0, *range(1, len(data.rstrip(b"\0") if name == "a.tar" else data), len(data) // 20)):
        path.write_bytes(data[:cut])
        if name == "a.jsonl" and (cut == 0 or b"\n" in data[cut - 1 : cut + 1]):
            continue
        with pytest.raises(InputError) as caught:
            read_files([path])
        assert str(path) in str(caught.value)
