import dataclasses
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.errors import CorruptDataError, InputError
from wdsplit.shards.manifest import (
    Field,
    Manifest,
    Shard,
    Shards,
    checksum_of,
    dump_manifest,
    parse_manifest,
    shard_path,
)
from wdsplit.shards.table import dump_shards, parse_shards

FIELDS = (Field("jpg", "image", "bytes", "binary"), Field("cls", "label", "text", "int64"))

path_parts = st.from_regex(r"[A-Za-z0-9_ é.-]+", fullmatch=True).filter(lambda part: part not in (".", ".."))
paths = st.lists(path_parts, min_size=1, max_size=3).map(lambda parts: "data/" + "/".join(parts))


def shard_row(**changes):
    return dataclasses.replace(Shard("000000.tar", 10, 1, 20_480, "xxh3_128:00"), **changes)


@st.composite
def shard_rows(draw):
    num_samples = draw(st.integers(0, 2**26))
    return shard_row(
        path=draw(paths),
        num_samples=num_samples,
        num_pads=draw(st.integers(0, num_samples)),
        num_bytes=draw(st.integers(512 * num_samples, 2**50)),
        checksum=f"xxh3_128:{draw(st.integers(0, 2**128 - 1)):032x}",
    )


manifests = st.builds(
    Manifest,
    shards=st.lists(shard_rows(), max_size=5, unique_by=lambda row: row.path).map(Shards.of),
    fields=st.lists(
        st.builds(Field, *[st.text()] * 4, st.lists(st.text()).map(tuple)), max_size=3, unique_by=lambda each: each.name
    ).map(tuple),
    lanes=st.integers(1, 2**20),
    window=st.integers(1, 2**20),
    pad=st.sampled_from(["repeat", "drop", "none"]),
    provenance=st.dictionaries(st.text(), st.text() | st.integers(-(2**60), 2**60) | st.none(), max_size=3),
)


def manifest(*rows, **changes):
    rows = rows or (shard_row(), shard_row(path="000001.tar", checksum="xxh3_128:01"))
    whole = Manifest(Shards.of(rows), FIELDS, lanes=8, window=64, pad="repeat", provenance={"rows": 18})
    return dataclasses.replace(whole, **changes)


def with_header(changes):
    """Return a manifest's two files, the header's values replaced (or left out where the change is `...`)."""
    header, table = dump_manifest(manifest())
    values = {**json.loads(header), **changes}
    return json.dumps({name: value for name, value in values.items() if value is not ...}).encode(), table


def with_table(table, **changes):
    """Return a manifest's two files, the shard table replaced and its checksum put right."""
    header, _ = with_header({"shards_checksum": checksum_of(xxhash.xxh3_128(table)), **changes})
    return header, table


def parquet(columns):
    """Return a parquet file of columns, of which some may have one name if they are given as pairs."""
    pairs, sink = columns.items() if isinstance(columns, dict) else columns, io.BytesIO()
    table = pa.Table.from_arrays([pa.array(values) for _, values in pairs], [name for name, _ in pairs])
    pq.write_table(table, sink)
    return sink.getvalue()


def garbled(text_bytes):
    """Return a text column of one value that is no UTF-8."""
    offsets = pa.array([0, len(text_bytes)], pa.int32()).buffers()[1]
    return pa.StringArray.from_buffers(1, offsets, pa.py_buffer(text_bytes))


def refused(files, kind=CorruptDataError):
    with pytest.raises(kind) as caught:
        parse_manifest(*files)
    assert type(caught.value) is kind
    return caught.value


@given(manifests)
def test_parse_is_the_inverse_of_dump(whole):
    parsed = parse_manifest(*dump_manifest(whole))
    assert parsed == whole
    assert parsed.fingerprint == whole.fingerprint
    assert dump_manifest(parsed) == dump_manifest(whole)


# The fingerprint


def test_the_fingerprint_is_the_same_for_ever():
    """Checkpoints name it."""
    rows = shard_row(), shard_row(checksum=f"xxh3_128:{1:032x}", path="größe.tar")
    assert manifest(*rows).fingerprint == "71f76cde3b10381463e1750fe9cdfc69"
    assert manifest().fingerprint == "1397f26bc9bd52f97c12e946102fcd76"


def test_the_fingerprint_is_that_of_the_content_of_all_shards_and_nothing_else(monkeypatch):
    rows = [shard_row(path=f"{number}.tar", checksum=f"xxh3_128:{number:032x}") for number in range(7)]
    whole = manifest(*rows).fingerprint
    for changes in ({"num_samples": 11}, {"num_pads": 0}, {"checksum": "xxh3_128:02"}):
        assert manifest(*rows[:6], dataclasses.replace(rows[6], **changes)).fingerprint != whole
    moved = [dataclasses.replace(row, path=f"moved/{row.path}") for row in rows]
    assert manifest(*moved, provenance={}).fingerprint == whole
    for together in (1, 2, 3, 6, 7):
        monkeypatch.setattr("wdsplit.shards.manifest._HASHED_TOGETHER", together)
        assert manifest(*rows).fingerprint == whole


def test_a_large_table_whose_checksums_compress_well_is_read():
    num_rows = 200_000
    columns = {
        "path": [shard_path(shard) for shard in range(num_rows)],
        "num_samples": np.full(num_rows, 10),
        "num_pads": np.zeros(num_rows, np.int64),
        "num_bytes": np.full(num_rows, 10_240),
        "checksum": [f"xxh3_128:{0:032x}"] * num_rows,
    }
    table = dump_shards(Shards.of_columns(columns))
    assert len(table) < 2 * num_rows
    assert len(parse_shards(table, num_rows)) == num_rows


# Damage


@pytest.mark.parametrize(
    ("header", "found"),
    [
        *((header, "invalid JSON") for header in (b"", b"{", b"\xff", b'{"wdsplit": 1', b"[" * 5000, b"NaN")),
        *((header, "no format version") for header in (b"[]", b"1", b"null", b'"wdsplit"', b"{}")),
    ],
)
def test_what_is_no_header_is_refused(header, found):
    assert found in refused((header, dump_manifest(manifest())[1])).found


@pytest.mark.parametrize("version", [1, "2", None])
def test_another_format_version_is_an_input_error_that_names_both(version):
    error = refused(with_header({"wdsplit": version}), InputError)
    assert (error.expected, error.found) == ("2", repr(version))
    assert "version" in refused(with_header({"version": 2})).found  # of a dataset, without the versions before it


@pytest.mark.parametrize("name", sorted(set(json.loads(dump_manifest(manifest())[0])) - {"wdsplit"}))
def test_a_header_value_that_is_missing_or_of_a_wrong_type_is_named(name):
    for value in (..., None, 1.5, True):
        error = refused(with_header({name: value}))
        assert name in error.found and name in error.expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("lanes", "window") for value in (0, 2**40 + 1, 2**64 - 1)),
        ("num_shards", 3),
        ("num_samples", 19),
        ("num_pads", 0),
    ],
)
def test_header_values_that_cannot_be_are_refused(name, value):
    error = refused(with_header({name: value}))
    assert name.removeprefix("num_") in error.found and str(value) in error.found


@pytest.mark.parametrize(
    "field",
    [
        "jpg",
        {},
        {"name": "jpg"},
        {**dataclasses.asdict(FIELDS[0]), "type": 1},
        {**dataclasses.asdict(FIELDS[0]), "more": ""},
        {**dataclasses.asdict(FIELDS[0]), "names": "a"},
        {**dataclasses.asdict(FIELDS[0]), "names": ["a", 1]},
    ],
)
def test_a_field_that_is_not_five_texts_is_refused(field):
    assert "arrow_schema, column, encoding, name, type" in refused(with_header({"fields": [field]})).expected


OUTWARD_PATHS = ["../x.tar", "a/..", ".", "/x.tar", "C:x.tar", "a\\x.tar", "a//x.tar", "", "x\n.tar"]


def shards_of(count, **changes):
    return [shard_row(path=f"{number}.tar", **changes) for number in range(count)]


WRONG_ROWS = [
    ([shard_row(), shard_row()], "duplicate"),
    *(([shard_row(), shard_row(path=path)], "outside the dataset") for path in OUTWARD_PATHS),
    (shards_of(1, num_samples=-1, num_pads=0), "invalid counts"),
    *((shards_of(1, num_pads=number), "invalid counts") for number in (-1, 11)),
    (shards_of(1, num_bytes=-1), "invalid counts"),
    (shards_of(1, num_samples=41), "invalid counts"),  # more than there are blocks
    *((shards_of(number, num_bytes=2**62), "invalid counts") for number in (2, 4)),
    (shards_of(1, num_samples=2**50, num_bytes=2**59), "more samples than a dataset can have"),
    (shards_of(1, num_samples=2**34, num_bytes=2**43), "more samples than a dataset can have"),
    (shards_of(2**14 + 1, num_samples=2**26, num_bytes=2**35), "more samples than a dataset can have"),
]


@pytest.mark.parametrize(("rows", "cause"), WRONG_ROWS, ids=range(len(WRONG_ROWS)))
def test_shards_that_no_dataset_can_have_are_refused(rows, cause):
    error = refused(with_table(dump_shards(Shards.of(rows)), num_shards=len(rows)))
    assert cause in error.cause
    assert cause != "outside the dataset" or error.found == repr(rows[1].path)
    assert "more samples" not in cause or f"{rows[0].num_samples:,} in a shard" in error.found


@pytest.mark.parametrize("name", sorted(json.loads(dump_manifest(manifest())[0])))
def test_values_that_are_nested_deep_or_long_are_refused_in_a_short_message(name):
    for value in (b'{"a":' * 1000 + b"1" + b"}" * 1000, b'["' + b"x" * 10**6 + b'"]', b"9" * 10**6):
        header, table = with_header({name: "PLACE"})
        kind = InputError if name == "wdsplit" and value[:1] != b"9" else CorruptDataError
        assert len(str(refused((header.replace(b'"PLACE"', value), table), kind))) < 2000


NESTED = b"\x1c", b"\x19\x19"
"""How Thrift's compact protocol begins a struct in a struct, and a list in a list."""
COLUMNS = {name: [value] for name, value in dataclasses.asdict(shard_row()).items()}


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"PAR1",
        *(b"PAR1" + nested * 2000 + (2000 * len(nested)).to_bytes(4, "little") + b"PAR1" for nested in NESTED),
        dump_manifest(manifest())[1][:-1],
        dump_manifest(manifest())[1][:100],
        *(parquet({other: COLUMNS[other] for other in COLUMNS if other != name}) for name in COLUMNS),
        *(parquet({**COLUMNS, name: pa.nulls(1, pa.array(COLUMNS[name]).type)}) for name in COLUMNS),
        *(parquet({**COLUMNS, name: garbled(b"\xff.tar")}) for name in ("path", "checksum")),
        parquet({**COLUMNS, "num_samples": ["many"]}),
        parquet({**COLUMNS, "num_samples": [10.5]}),
        parquet({**COLUMNS, "checksum": [["a"]]}),
        parquet({**COLUMNS, "path": pa.array([["a.tar"]], pa.list_(pa.string()))}),
        parquet([*COLUMNS.items(), ("path", ["b.tar"])]),
    ],
)
def test_a_table_that_is_not_the_shards_is_refused(table):
    error = refused(with_table(table, num_shards=1))
    assert error.cause == "shards.parquet cannot be read"
    assert "path, num_samples" in error.expected and error.found


@given(st.data())
def test_a_truncated_manifest_or_a_changed_byte_of_its_table_is_refused(data):
    header, table = dump_manifest(manifest())
    refused((header[: data.draw(st.integers(0, len(header) - 2))], table))
    refused((header, table[: data.draw(st.integers(0, len(table) - 1))]))
    changed = flipped(table, data.draw(st.integers(0, len(table) - 1)), data.draw(st.integers(1, 255)))
    assert "shards.parquet does not belong to" in refused((header, changed)).cause


def flipped(whole, place, mask):
    return whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :]


def test_a_forged_footer_is_refused_or_changes_nothing_and_never_ends_the_process():
    """Arrow aborts the process for some footers when it is asked for a column's metadata."""
    table, refusals = dump_manifest(manifest())[1], 0
    begin = len(table) - 8 - int.from_bytes(table[-8:-4], "little")
    for place in range(begin, len(table), 3):
        try:
            parsed = parse_manifest(*with_table(flipped(table, place, 0x20)))
        except CorruptDataError:
            refusals += 1
        else:
            assert parsed.shards == manifest().shards
    assert refusals > 100
