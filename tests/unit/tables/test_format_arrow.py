import io
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest

from columns import NESTED, SCALARS
from wdsplit.errors import InputError
from wdsplit.tables.formats import arrow
from wdsplit.tables.read import open_inputs, read_rows
from written_formats import arrow_bytes

WRITERS = {"file": ipc.new_file, "stream": ipc.new_stream}
every_kind = pytest.mark.parametrize("new", WRITERS.values(), ids=WRITERS)
every_compression = pytest.mark.parametrize("compression", [None, "lz4", "zstd"])


def read(path, columns=None, groups=None, module=arrow) -> pa.Table:
    file, schema = module.open_file(str(path))
    columns = columns or schema.names
    groups = range(len(file.row_groups)) if groups is None else groups
    batches = list(module.read_batches(file, groups, columns, schema))
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in columns]))


def file_of(folder, data, name="a.arrow"):
    path = Path(folder) / name
    path.write_bytes(data)
    return path


# Arrow


def odd_batches():
    """Return batches of every type; with dictionaries that grow, and that are replaced; and without rows."""
    arrays = [pa.array(values, kind) for kind, values in SCALARS + NESTED if "_view" not in str(kind)]
    rows = max(map(len, arrays))
    types = {f"c{i}": pa.concat_arrays([a, pa.nulls(rows - len(a), a.type)]) for i, a in enumerate(arrays)}
    growing = [pa.DictionaryArray.from_arrays(list(range(n)), list("abc"[:n])) for n in (1, 2, 3)]
    replaced = [pa.array(words).dictionary_encode() for words in (["a", "b"], ["c"], ["d", "e"], ["a"])]
    numbers = (pa.array(values, pa.int64()) for values in ([], [1, 2, 3], [], [4]))
    return {
        "types": pa.table(types).to_batches(max_chunksize=1),
        "growing": [
            pa.record_batch({"n": range(len(a)), "word": a, "l": pa.ListArray.from_arrays(list(range(len(a) + 1)), a)})
            for a in growing
        ],
        "replaced": [pa.record_batch({"word": array}) for array in replaced],
        "empty": [pa.record_batch({"n": array}) for array in numbers],
    }


@every_kind
@every_compression
@pytest.mark.parametrize("name", ["types", "growing", "replaced", "empty"])
def test_any_batches_are_read_as_they_were_written(new, compression, name, tmp_path):
    batches, sink = odd_batches()[name], io.BytesIO()
    if (name, new) == ("replaced", ipc.new_file):
        pytest.skip("a file has one dictionary for all its batches")
    options = ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with new(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    path = file_of(tmp_path, sink.getvalue())
    assert arrow.open_file(str(path))[0].row_groups == tuple(map(len, batches))
    for groups in (range(len(batches)), [1], [0, 2], [len(batches) - 1]):
        found = read(path, groups=groups)
        expected = pa.Table.from_batches([batches[group] for group in groups])
        assert found.schema == expected.schema
        if name == "types":
            assert found.combine_chunks().equals(expected.combine_chunks())
        else:
            assert found.to_pydict() == expected.to_pydict()


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
def test_a_large_batch_is_cut_into_row_groups(new, tmp_path, monkeypatch):
    monkeypatch.setattr(arrow, "_GROUP_BYTES", 500)
    table = pa.table({"n": range(100), "s": ["x" * (i % 40) for i in range(100)]})
    path = file_of(tmp_path, arrow_bytes(table, new, "zstd", rows=60))
    file, _ = arrow.open_file(str(path))
    assert 2 < file.offsets.count(file.offsets[0]) < 6 and len(set(file.offsets)) == 3
    assert read(path).equals(table)
    sizes = file.row_groups
    found = read(path, ["n"], [1, len(sizes) - 1]).column("n").to_pylist()
    assert found == [*range(sizes[0], sum(sizes[:2])), *range(sum(sizes[:-1]), 100)]


@every_kind
def test_what_is_read_of_a_file_that_is_not_compressed_is_not_copied(new, tmp_path):
    table = pa.table({"s": ["x" * 1000] * 1000})
    path = file_of(tmp_path, arrow_bytes(table, new, rows=100))
    file, schema = arrow.open_file(str(path))
    before = pa.total_allocated_bytes()
    batches = list(arrow.read_batches(file, range(10), ["s"], schema))
    assert sum(map(len, batches)) == 1000
    assert pa.total_allocated_bytes() - before < 10_000


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


def changed(data, old, new):
    """Return data in which what stands last of `old` is replaced."""
    place = data.rindex(old)
    return data[:place] + new + data[place + len(new) :]


WORDS = pa.array(["a", "bb", "ccc", "a"] * 4)
ASTRAY = b"\xff\xff\xff\x7f" * 8


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        (
            "other columns.arrow",
            changed(arrow_bytes(pa.table({"caption": [1]}), ipc.new_file), b"caption", b"captioN"),
            "",
        ),
        ("feather v1.feather", b"FEA1" + bytes(100) + b"FEA1", ""),
        ("unended.arrow", arrow_bytes(pa.table({"s": [1, 2]}), ipc.new_stream)[:-8], "no end marker"),
        ("twice.arrow", arrow_bytes(pa.table({"s": [1, 2]}), ipc.new_stream) * 2, "bytes follow the end"),
        *(
            (
                f"{array.type}.arrow".replace("/", ""),
                changed(
                    arrow_bytes(pa.table({"s": array}), ipc.new_file, rows=16),
                    array.buffers()[1].to_pybytes()[:64],
                    ASTRAY,
                ),
                "",
            )
            for array in (WORDS, WORDS.dictionary_encode())
        ),
    ],
)
def test_what_is_damaged_is_refused_by_its_file(tmp_path, name, data, found):
    path = file_of(tmp_path, data, name)
    with pytest.raises(InputError, match=f"cannot be read as(.|\n)*{found}") as caught:
        list(read_rows(open_inputs([str(path)]), 0, 1, ["s"]))
    assert caught.value.place.startswith(str(path))
