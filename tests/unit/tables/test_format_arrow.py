import io
import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.orc as orc
import pytest

from columns import NESTED, SCALARS
from wdsplit.errors import InputError
from wdsplit.tables.formats import arrow
from wdsplit.tables.formats import orc as orc_format
from wdsplit.tables.read import open_inputs, read_rows
from written_formats import arrow_bytes, orc_bytes

WRITERS = {"file": ipc.new_file, "stream": ipc.new_stream}
every_kind = pytest.mark.parametrize("new", WRITERS.values(), ids=WRITERS)
every_compression = pytest.mark.parametrize("compression", [None, "lz4", "zstd"])


def read(path, columns=None, groups=None, module=arrow) -> pa.Table:
    file, schema = module.open_file(str(path))
    columns = columns or schema.names
    groups = range(len(file.row_groups)) if groups is None else groups
    batches = list(module.read_batches(file, groups, columns, schema)) if len(groups) else []
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in columns]))


def file_of(folder, data, name="a.arrow"):
    path = Path(folder) / name
    path.write_bytes(data)
    return path


# Arrow


@every_kind
@every_compression
def test_values_of_every_type_are_read_as_they_were_written(new, compression, tmp_path):
    arrays = [pa.array(values, kind) for kind, values in SCALARS + NESTED if "_view" not in str(kind)]
    rows = max(map(len, arrays))
    table = pa.table({f"c{i}": pa.concat_arrays([a, pa.nulls(rows - len(a), a.type)]) for i, a in enumerate(arrays)})
    found = read(file_of(tmp_path, arrow_bytes(table, new, compression, rows=1)))
    assert found.schema == table.schema
    for name in table.column_names:
        assert found.column(name).combine_chunks().equals(table.column(name).combine_chunks()), name


@every_kind
@every_compression
def test_dictionaries_that_grow_are_read_with_each_of_their_batches(new, compression, tmp_path):
    words = [["a"], ["a", "b"], ["a", "b", "c"]]
    arrays = [pa.DictionaryArray.from_arrays(list(range(len(its))), its) for its in words]
    sink = io.BytesIO()
    schema = pa.schema([("n", pa.int64()), ("word", arrays[0].type), ("l", pa.list_(arrays[0].type))])
    options = ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with new(sink, schema, options=options) as writer:
        for array in arrays:
            lists = pa.ListArray.from_arrays(list(range(len(array) + 1)), array)
            writer.write_batch(pa.record_batch([pa.array(range(len(array))), array, lists], schema=schema))
    path = file_of(tmp_path, sink.getvalue())
    assert read(path).column("word").to_pylist() == ["a", "a", "b", "a", "b", "c"]
    assert read(path, ["word"], [1]).column("word").to_pylist() == ["a", "b"]
    assert read(path, ["word", "n"], [0, 2]).to_pydict() == {"word": ["a", "a", "b", "c"], "n": [0, 0, 1, 2]}
    assert read(path, ["l"], [2]).column("l").to_pylist() == [["a"], ["b"], ["c"]]


def test_dictionaries_that_are_replaced_in_a_stream_are_read_with_each_of_their_batches(tmp_path):
    arrays = [pa.array(words).dictionary_encode() for words in (["a", "b"], ["c"], ["d", "e"], ["a"])]
    sink = io.BytesIO()
    with ipc.new_stream(sink, pa.schema([("word", arrays[0].type)])) as writer:
        for array in arrays:
            writer.write_batch(pa.record_batch([array], names=["word"]))
    path = file_of(tmp_path, sink.getvalue())
    assert read(path).column("word").to_pylist() == ["a", "b", "c", "d", "e", "a"]
    for groups, words in (([1], ["c"]), ([0, 2], ["a", "b", "d", "e"]), ([3], ["a"])):
        assert read(path, groups=groups).column("word").to_pylist() == words


def test_dictionaries_of_a_file_may_stand_after_batches_that_need_them(tmp_path):
    table = pa.table({"word": pa.array(["a", "b", "c", "a"]).dictionary_encode()})
    data = arrow_bytes(table, ipc.new_file, rows=2)
    source = pa.BufferReader(data)
    source.seek(8)
    places = [source.tell() for _ in range(4) if ipc.read_message(source)]
    schema, dictionary, one, _ = (data[a:b] for a, b in pairwise([8, *places]))
    path = file_of(tmp_path, data[:8] + schema + one + dictionary + data[places[2] :])
    assert read(path).column("word").to_pylist() == ["a", "b", "c", "a"]
    assert read(path, groups=[0]).column("word").to_pylist() == ["a", "b"]


@every_kind
@every_compression
def test_a_large_batch_is_cut_into_row_groups(new, compression, tmp_path, monkeypatch):
    monkeypatch.setattr(arrow, "_GROUP_BYTES", 500)
    table = pa.table({"n": range(100), "s": ["x" * (i % 40) for i in range(100)]})
    path = file_of(tmp_path, arrow_bytes(table, new, compression, rows=60))
    file, _ = arrow.open_file(str(path))
    assert 2 < len([offset for offset in file.offsets if offset == file.offsets[0]]) < 6
    assert len(set(file.offsets)) == 3
    assert read(path).equals(table)
    last = sum(file.row_groups[:-1])
    assert read(path, ["n"], [1, len(file.row_groups) - 1]).column("n").to_pylist() == [
        *range(file.row_groups[0], sum(file.row_groups[:2])),
        *range(last, 100),
    ]


@every_kind
def test_batches_without_rows_are_row_groups_without_rows(new, tmp_path):
    table = pa.table({"n": [1, 2, 3]})
    empty = table.slice(0, 0).combine_chunks()
    sink = io.BytesIO()
    with new(sink, table.schema) as writer:
        for part in (empty, table, empty, table):
            writer.write_batch(pa.record_batch([pa.array(part.column("n").to_pylist(), pa.int64())], names=["n"]))
    path = file_of(tmp_path, sink.getvalue())
    assert arrow.open_file(str(path))[0].row_groups == (0, 3, 0, 3)
    rows = read_rows(open_inputs([str(path)]), 2, 5, ["n"])
    assert [value for part in rows for value in part.columns["n"].to_pylist()] == [3, 1, 2]


@every_kind
def test_what_is_read_of_a_file_that_is_not_compressed_is_not_copied(new, tmp_path):
    table = pa.table({"s": ["x" * 1000] * 1000})
    path = file_of(tmp_path, arrow_bytes(table, new, rows=100))
    file, schema = arrow.open_file(str(path))
    before = pa.total_allocated_bytes()
    batches = list(arrow.read_batches(file, range(10), ["s"], schema))
    assert sum(map(len, batches)) == 1000
    assert pa.total_allocated_bytes() - before < 10_000


@every_kind
@every_compression
def test_the_size_when_decoded_is_told_of_compressed_files_too(new, compression, tmp_path):
    table = pa.table({"s": ["x" * 1000] * 1000})
    file, _ = arrow.open_file(str(file_of(tmp_path, arrow_bytes(table, new, compression, rows=100))))
    assert file.data_bytes == pytest.approx(table.nbytes, rel=0.05)


def test_rows_are_counted_without_decompressing(tmp_path):
    table = pa.table({"s": ["x" * 1000] * 1000})
    data = bytearray(arrow_bytes(table, ipc.new_file, "zstd", rows=100))
    path = file_of(tmp_path, data)
    file, schema = arrow.open_file(str(path))
    place = file.offsets[5] + (file.offsets[6] - file.offsets[5]) // 2
    data[place : file.offsets[6]] = b"\xff" * (file.offsets[6] - place)
    path.write_bytes(data)
    damaged, _ = arrow.open_file(str(path))
    assert damaged.row_groups == file.row_groups
    assert sum(map(len, arrow.read_batches(damaged, [4, 6], ["s"], schema))) == 200
    with pytest.raises(InputError, match="cannot be read as an Arrow IPC"):
        list(read_rows(open_inputs([str(path)]), 500, 600, ["s"]))


def test_a_footer_that_names_other_columns_is_refused(tmp_path):
    data = arrow_bytes(pa.table({"caption": [1]}), ipc.new_file)
    place = data.rindex(b"caption")
    path = file_of(tmp_path, data[:place] + b"captioN" + data[place + 7 :])
    with pytest.raises(InputError, match="cannot be read as an Arrow IPC"):
        open_inputs([str(path)])


def test_feather_v1_is_refused_by_its_name(tmp_path):
    path = file_of(tmp_path, b"FEA1" + bytes(100) + b"FEA1", "old.feather")
    with pytest.raises(InputError, match="cannot be read as an Arrow IPC") as caught:
        open_inputs([str(path)])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut, found", [(-8, "no end marker"), (None, "bytes follow the end")])
def test_a_stream_must_end_with_its_marker(tmp_path, cut, found):
    data = arrow_bytes(pa.table({"n": [1, 2]}), ipc.new_stream)
    path = file_of(tmp_path, data[:cut] if cut else data + data)
    with pytest.raises(InputError, match=found) as caught:
        open_inputs([str(path)])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_offsets_and_indices_that_lead_astray_are_refused(tmp_path, kind):
    words = ["a", "bb", "ccc", "a"] * 4
    array = pa.array(words, kind) if kind == pa.string() else pa.array(words).dictionary_encode()
    data = arrow_bytes(pa.table({"s": array}), ipc.new_file, rows=16)
    numbers = array.buffers()[1].to_pybytes()[: 4 * len(words)]
    place = data.index(numbers)
    path = file_of(tmp_path, data[:place] + b"\xff\xff\xff\x7f" * 8 + data[place + 32 :])
    with pytest.raises(InputError, match="cannot be read as an Arrow IPC"):
        list(read_rows(open_inputs([str(path)]), 0, 16, ["s"]))


# ORC


@pytest.fixture(scope="module")
def stripes():
    chance = random.Random(0)
    text = [chance.randbytes(40).hex() for _ in range(4000)]
    return pa.table({"text": text, "n": range(4000), "a.b": range(4000), "a": [{"b": -i} for i in range(4000)]})


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_stripes_are_row_groups(stripes, compression, tmp_path):
    path = file_of(tmp_path, orc_bytes(stripes, stripe_size=1, batch_size=500, compression=compression), "a.orc")
    file, schema = orc_format.open_file(str(path))
    assert len(file.row_groups) == orc.ORCFile(path).nstripes > 3
    assert sum(file.row_groups) == file.num_rows == 4000
    assert schema == stripes.schema
    assert stripes.nbytes / 2 < file.data_bytes < stripes.nbytes * 2
    assert read(path, module=orc_format).equals(stripes)
    first = file.row_groups[0]
    assert read(path, ["n", "text"], [1], orc_format).equals(
        stripes.select(["n", "text"]).slice(first, file.row_groups[1])
    )
    for name in ("a.b", "a"):
        assert read(path, [name], [0], orc_format).column(name).to_pylist() == stripes.column(name)[:first].to_pylist()


def test_text_of_orc_that_is_not_utf8_is_refused(tmp_path):
    path = file_of(tmp_path, orc_bytes(pa.table({"s": ["abcdefgh"]})).replace(b"abcdefgh", b"\xffbcdefgh"), "a.orc")
    with pytest.raises(InputError, match="cannot be read as ORC"):
        list(read_rows(open_inputs([str(path)]), 0, 1, ["s"]))
