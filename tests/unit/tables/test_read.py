import base64
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privileges import as_another_user, public_folder
from tables import mixed_table, shard_files, write_files, write_table
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.errors import InputError
from wdsplit.tables.formats.common import grouped, unreadable
from wdsplit.tables.read import first_payloads, open_inputs, read_rows
from written_formats import arrow_bytes

TABLE = mixed_table(60)


# Rows by their number


def test_columns_with_dots_in_their_names_are_not_taken_for_nested_ones(tmp_path):
    table = pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "b": [5, 6]})
    opened = open_inputs([write_table(tmp_path / "a.parquet", table)])
    for name in table.column_names:
        (rows,) = read_rows(opened, 0, 2, [name])
        assert rows.columns[name].to_pylist() == table[name].to_pylist()


# Files that cannot be read


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"\xff" * 5000, b"PAR1" + b"\xff" * 100 + b"PAR1"])
def test_what_is_no_parquet_is_refused_by_name(tmp_path, content):
    good, bad = write_table(tmp_path / "a.parquet", {"a": [1]}), tmp_path / "b.parquet"
    bad.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as parquet") as caught:
        open_inputs([good, str(bad)])
    assert caught.value.place == caught.value.url == str(bad)
    assert caught.value.found and "\n" not in caught.value.found


@pytest.mark.parametrize(
    ("other", "rows_per_group"),
    [(TABLE.slice(0, 59), None), (mixed_table(60, first=100), 20), (TABLE, 7), (TABLE.select(["label"]), 20)],
    ids=["fewer rows", "other rows", "other row groups", "other columns"],
)
def test_an_input_that_changed_after_it_was_planned_is_refused_by_name(tmp_path, other, rows_per_group):
    path = write_table(tmp_path / "a.parquet", TABLE, 20)
    table = open_inputs([path])
    write_table(path, other, rows_per_group)
    with pytest.raises(InputError, match="changed since it was planned") as caught:
        list(read_rows(table, 0, 60, ["label"]))
    assert caught.value.place == path


# The first bytes


def test_the_first_payload_that_is_not_null_is_found_past_nulls_empty_files_and_groups(tmp_path):
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        "a": pa.array([None] * 8 + [b"\xff\xd8\xff" * 50], pa.binary()),
        "b": pa.array([None, {"bytes": None, "path": "x"}, *[{"bytes": b"GIF89a", "path": None}] * 7], image),
        "c": pa.array([None] * 9, pa.binary()),
        "d": pa.array([None] * 4 + [b"fLaC"] * 5, pa.binary()).dictionary_encode(),
        "e": ["text"] * 9,
    }
    table = open_inputs(write_files(tmp_path, pa.table(columns), [0, 3, 0, 6], 2))
    found = first_payloads(table, table.schema.names)
    assert found == {"a": (b"\xff\xd8\xff" * 50)[:64], "b": b"GIF89a", "c": None, "d": b"fLaC"}
    for file in table.files:
        os.remove(file.path)
    assert first_payloads(table, ["e"]) == {}, "nothing is read for columns that are not binary"


def test_a_batch_is_bounded_by_what_its_values_take_when_they_are_decoded(tmp_path):
    """One long value that repeats takes little room in the file, and much in memory."""
    path = write_table(tmp_path / "a.parquet", {"text": ["x" * 60_000] * 1000})
    table = open_inputs([path])
    assert table.files[0].data_bytes < 2**20
    sizes = [rows.columns["text"].nbytes for rows in read_rows(table, 0, 1000, ["text"])]
    assert sum(sizes) > 1000 * 60_000
    assert max(sizes) <= 2**25


# Files that cannot be read, and why


def error_of(path, columns=()):
    """Return the error of opening a file, and of reading columns of it."""
    with pytest.raises(InputError) as caught:
        table = open_inputs([str(path)])
        list(read_rows(table, 0, table.num_rows, list(columns)))
    assert caught.value.place.startswith(str(path))
    return caught.value


class NoKms(pe.KmsClient):
    """Wraps keys by doing nothing to them."""

    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return base64.b64encode(key)


@pytest.mark.parametrize(("name", "plaintext_footer"), [("secret.parquet", True), ("secret", False)])
def test_an_encrypted_file_is_called_encrypted(tmp_path, plaintext_footer, name):
    config = pe.EncryptionConfiguration("k1", column_keys={"k2": ["a"]}, plaintext_footer=plaintext_footer)
    properties = pe.CryptoFactory(NoKms).file_encryption_properties(pe.KmsConnectionConfig(), config)
    table = pa.table({"a": [1, 2], "b": [3, 4]})
    with pq.ParquetWriter(tmp_path / name, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    error = error_of(tmp_path / name)
    assert error.cause == "an input is encrypted" and "decrypt it" in error.remedy


def test_what_may_not_be_read_or_is_not_supported_is_not_called_damaged():
    with public_folder() as folder:
        path = write_table(folder / "a.parquet", {"a": [1]})
        Path(path).chmod(0)
        with as_another_user():
            error = error_of(path)
    assert "permission denied" in error.cause and "permissions" in error.remedy
    error = unreadable("a.parquet", "parquet", pa.ArrowNotImplementedError("Codec type lzo not supported"))
    assert f"pyarrow {pa.__version__} cannot read" in error.cause and "compression" in error.remedy
    assert (error.place, error.found) == ("a.parquet", "Codec type lzo not supported")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.tar", "a.arrow"])
def test_parquet_by_another_name_is_called_parquet(tmp_path, name):
    error = error_of(write_table(tmp_path / name, {"a": range(1000), "b": ["x"] * 1000}))
    assert "parquet" in error.remedy


# Dictionaries and views

MIB = 1024**2


def test_a_dictionary_that_is_small_on_disk_never_fills_the_memory(tmp_path):
    value = "x" * MIB
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4000, np.int8)), [value])
    path = write_table(tmp_path / "in.parquet", {"text": column})
    table = open_inputs([path])
    before = pa.total_allocated_bytes()
    rows = 0
    for batch in read_rows(table, 0, 4000, ["text"]):
        assert pa.total_allocated_bytes() - before < 100 * MIB
        assert batch.numbers.tolist() == list(range(rows, rows + len(batch)))
        rows += len(batch)
        if rows > 40:
            break


@pytest.mark.parametrize(
    ("plan", "changes"),
    [({}, {"where": "text != 'text 7' and n < 30"}), ({"shuffle": True}, {"where": "n > 3", "key": "last"})],
    ids=str,
)
def test_views_give_the_shards_that_plain_columns_give(tmp_path, plan, changes):
    numbers, texts, data = list(range(40)), [f"text {n}" for n in range(40)], [b"\0x%d" % n for n in range(40)]
    nested = [{"a": [text, None], "m": [("k", item)]} for text, item in zip(texts, data, strict=True)]
    shards = {}
    for name, text, binary in (("plain", pa.string(), pa.binary()), ("view", pa.string_view(), pa.binary_view())):
        kind = pa.struct([("a", pa.list_(text)), ("m", pa.map_(text, binary))])
        arrays = {"n": pa.array(numbers), "text": pa.array(texts, text), "data": pa.array(data, binary)}
        table = pa.table({**arrays, "nested": pa.array(nested, kind), "last": pa.array(texts, text)})
        path = tmp_path / f"{name}.arrow"
        path.write_bytes(arrow_bytes(table, pa.ipc.new_file, rows=15))
        convert(str(path), tmp_path / name, ConvertOptions(shards=2, **plan, **changes))
        shards[name] = shard_files(tmp_path / name)
    assert shards["view"] == shards["plain"]


@given(sizes=st.lists(st.integers(0, 9)), enough=st.integers(0, 12))
def test_groups_are_as_large_as_asked_for_and_no_larger_than_needed(sizes, enough):
    groups = list(grouped(sizes, float, enough))
    assert [size for group in groups for size in group] == sizes
    assert all(sum(group) >= enough for group in groups[:-1])
    assert all(sum(group[:-1]) < enough or len(group) == 1 for group in groups)
