import tarfile

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tars import by_tarfile, read_by_tarfile
from wdsplit.errors import CorruptDataError
from wdsplit.tar.members import build_body, trailer_bytes
from wdsplit.tar.places import HEAD_BYTES, PlacesBuilder, parse_places, rows_of, scanned_places
from wdsplit.tar.samples import group_samples
from wdsplit.tar.scan import scan_tar


def written(keys, fields, cut=None):
    """Return a tar of these samples and its places, written in two batches."""
    columns = {name: pa.array(values, pa.large_binary()) for name, values in fields.items()}
    builder, tar = PlacesBuilder(list(fields)), b""
    cut = len(keys) // 2 if cut is None else cut
    for rows in (slice(0, cut), slice(cut, None)):
        body = build_body(pa.array(keys, pa.string())[rows], {name: column[rows] for name, column in columns.items()})
        parts, hashes = body.parts()
        tar += b"".join(parts)
        builder.append(body, hashes)
    tar += bytes(trailer_bytes(len(tar)))
    return tar, builder.dump(len(tar), xxhash.xxh3_128_digest(tar))


def parsed(tar, data, num_samples, fields):
    return parse_places(data, len(tar), xxhash.xxh3_128_hexdigest(tar), num_samples, fields)


def payloads(tar, rows, fields):
    """Return each sample's fields, as the places say."""
    starts, sizes = rows.starts.tolist(), rows.sizes.tolist()
    return [
        {
            name: tar[start : start + size]
            for name, start, size in zip(fields, starts[row], sizes[row], strict=True)
            if size >= 0
        }
        for row in range(len(starts))
    ]


KEYS = st.lists(
    st.text("ab-", min_size=1, max_size=5) | st.text("ab", min_size=95, max_size=150),
    unique=True,
    min_size=1,
    max_size=6,
)


@given(KEYS, st.data())
def test_the_places_of_what_was_written_lead_to_it(keys, data):
    """With plain headers and with extended ones; samples may lack fields, and are slices of Arrow arrays."""
    value = st.none() | st.binary(max_size=1200)
    names = ["jpg", "cls", "seg.png"]
    samples = [
        dict(zip(names, [data.draw(st.binary(max_size=600)), *data.draw(st.tuples(value, value))], strict=True))
        for _ in keys
    ]
    tar, stored = written(keys, {name: [sample[name] for sample in samples] for name in names})
    present = [{name: value for name, value in sample.items() if value is not None} for sample in samples]
    assert read_by_tarfile(tar) == [
        (f"{key}.{name}", value) for key, own in zip(keys, present, strict=True) for name, value in own.items()
    ]
    places = parsed(tar, stored, len(keys), names)
    rows = rows_of([(places, slice(0, len(keys)))])
    assert payloads(tar, rows, names) == present
    assert rows.hashes.tolist() == [
        xxhash.xxh3_64_intdigest(tar[b:e]) for b, e in zip(rows.begins, rows.ends, strict=True)
    ]
    assert places.offsets().tolist() == [*rows.begins.tolist(), places.end]
    is_long = any(len(f"{key}.{name}") > 99 for key, own in zip(keys, present, strict=True) for name in own)
    assert places.is_listed == is_long
    assert rows.keys is None or rows.keys.tolist() == keys
    some = np.array(sorted(data.draw(st.sets(st.integers(0, len(keys) - 1), min_size=1))))
    both = rows_of([(places, some), (places, slice(0, 1))])
    assert both.begins.tolist() == [*rows.begins[some].tolist(), 0]
    assert payloads(tar, both, names)[:-1] == [payloads(tar, rows, names)[row] for row in some]


NAMES = ["a", "v1.0/b", "größe c", "__d", "__m/e", "n" * 120, "d" * 60 + "/" + "n" * 60]
NO_SAMPLES = st.lists(st.sampled_from(["README", "__meta__/x.json", "._a.jpg"]), max_size=2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES), st.dictionaries(st.sampled_from(["jpg", "CLS", "seg.png"]), NO_SAMPLES, min_size=1)
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda sample: sample[0],
    ),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    st.sampled_from([("", 0), ("./", 0), ("", 1.5)]),
    st.booleans(),
)
def test_the_places_of_a_tar_of_another_program_are_those_of_its_members(samples, format, how, reversed_fields):
    """Whatever stands between them, and however their names and times are written."""
    (lead, mtime), members, expected = how, [], []
    for key, fields in samples:
        expected.append((key, {}))
        for field, left_out in fields.items():
            data = f"{key}.{field}".encode() * 30
            members += [(lead + key + "." + field, data), *((name, b"no sample") for name in left_out)]
            expected[-1][1][field.lower()] = data
    if format == tarfile.USTAR_FORMAT and any(len(name) > 100 and "/" not in name[2:] for name, _ in members):
        format = tarfile.PAX_FORMAT
    data = by_tarfile(members, format, mtime=mtime)
    found = group_samples(scan_tar(memoryview(data)))
    stored = scanned_places(memoryview(data), found, bytes(16))
    # the order is that of the manifest of several tars, which may have more fields
    fields = sorted({*found.field_counts, "other"}, reverse=reversed_fields)
    places = parse_places(stored, len(data), bytes(16).hex(), len(samples), fields)
    rows = rows_of([(places, slice(0, len(samples)))])
    assert list(zip(rows.keys.tolist(), payloads(data, rows, fields), strict=True)) == expected


def test_the_bytes_of_places_are_those_of_the_format():
    tar, stored = written(["a", "b"], {"jpg": [b"12345", b""], "cls": [None, b"7"]})
    head = b"wdpl" + np.array([1, 0], "<u2").tobytes() + np.array([2, 0], "<u4").tobytes()
    head += np.array([2, len(tar), 2560], "<u8").tobytes() + xxhash.xxh3_128_digest(tar)
    assert stored[:HEAD_BYTES] == head + xxhash.xxh3_64_intdigest(head + stored[HEAD_BYTES:]).to_bytes(8, "little")
    assert len(stored) == HEAD_BYTES + 2 * (16 + 4 * 2)
    row = np.frombuffer(stored[HEAD_BYTES:], [("offset", "<u8"), ("hash", "<u8"), ("sizes", "<u4", (2,))])
    assert row["offset"].tolist() == [0, 1024]
    assert row["sizes"].tolist() == [[5, 2**32 - 1], [0, 1]]
    assert row["hash"].tolist() == [xxhash.xxh3_64_intdigest(tar[:1024]), xxhash.xxh3_64_intdigest(tar[1024:2560])]


@pytest.mark.parametrize("key", ["a", "k" * 120], ids=["plain", "listed"])
def test_any_changed_byte_and_any_early_end_is_noticed(key):
    names = ["txt", "cls"]
    tar, stored = written([key, "b"], {"txt": [b"x" * 700, b"y"], "cls": [b"1", b"2"]})
    for place in range(len(stored)):
        changed = bytearray(stored)
        changed[place] ^= 0x41
        with pytest.raises(CorruptDataError):
            parsed(tar, bytes(changed), 2, names)


def test_places_of_another_tar_are_refused_and_a_shard_may_have_no_samples():
    empty, stored = written([], {"cls": []}, cut=0)
    assert parsed(empty, stored, 0, ["cls"]).offsets().tolist() == [0]
    other, _ = written(["a"], {"cls": [b"2"]})
    with pytest.raises(CorruptDataError, match="belong to another tar") as caught:
        parsed(other, stored, 1, ["cls"])
    assert "overwritten" in caught.value.remedy
