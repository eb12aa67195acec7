"""The parsers of untrusted bytes under any bytes: what each must hold, for hypothesis (test_fuzz.py) and tools/fuzz.py.

A target takes bytes and returns whether they were accepted. It fails if a parser raises another error than its own, or
gives something else than another reader does: for tars that is Python's tarfile, where it reads all that it is given.
"""

import io
import pickle
import tarfile
import tempfile
from pathlib import PurePosixPath

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tars import by_tarfile
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.order.bundles import Grouping, Groups, Packing, Packs
from wdsplit.order.limits import MAX_LANES, MAX_WINDOW
from wdsplit.order.selection import Selection
from wdsplit.order.units import Repeats
from wdsplit.shards.manifest import Field, Manifest, Shard, Shards, checksum_of, dump_manifest, parse_manifest
from wdsplit.shards.views import parse_view, write_view
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.members import build_body
from wdsplit.tar.names import split_member
from wdsplit.tar.places import PlacesBuilder, parse_places, rows_of
from wdsplit.tar.samples import group_samples
from wdsplit.tar.scan import scan_tar

BLOCK = 512
REFUSED = (CorruptDataError, InputError)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)


def outcome(parse, *arguments):
    """Return what a parser gives, or None if it refuses in our way."""
    try:
        return parse(*arguments)
    except REFUSED as error:
        assert error.cause and error.expected and error.remedy, error
        assert len(str(error)) < 20_000
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        return None


# The manifest: two bytes that tell the length of the header, the header, the table


def manifest_files(header, table):
    return len(header).to_bytes(2, "little") + header + table


def signed(header, table):
    """Return a header that names the checksum of the table, as whoever tampers with both would write it."""
    try:
        values = orjson.loads(header)
    except orjson.JSONDecodeError:
        return header
    if not isinstance(values, dict):
        return header
    return orjson.dumps({**values, "shards_checksum": checksum_of(xxhash.xxh3_128(table))})


def fuzz_manifest(data):
    length = int.from_bytes(data[:2], "little")
    header, table = data[2 : 2 + length], data[2 + length :]
    found = outcome(parse_manifest, header, table)
    try:
        forged = signed(header, table)
    except orjson.JSONEncodeError:  # nested deeper than orjson writes
        return found is not None
    for manifest in filter(None, (found, outcome(parse_manifest, forged, table))):
        check_manifest(manifest)
        found = manifest
    return found is not None


def check_manifest(manifest):
    rows = manifest.shards.table.to_pylist()
    for row in rows:
        path = PurePosixPath(row["path"])
        assert str(path) == row["path"] and not path.is_absolute() and ".." not in path.parts
        assert not {"\\", "\0", "\n"} & set(row["path"])
        assert 0 <= row["num_pads"] <= row["num_samples"] <= row["num_bytes"] // BLOCK
    assert len({row["path"] for row in rows}) == len(rows)
    assert manifest.num_samples == sum(row["num_samples"] - row["num_pads"] for row in rows)
    assert manifest.num_bytes == sum(row["num_bytes"] for row in rows) < 2**63
    assert 1 <= manifest.lanes <= MAX_LANES and 1 <= manifest.window <= MAX_WINDOW
    for field in manifest.fields:
        assert all(isinstance(text, str) for text in (field.name, field.column, field.encoding, field.type))
    assert parse_manifest(*dump_manifest(manifest)) == manifest


def manifest_seeds():
    shards = [Shard(f"{n:06d}.tar", 10, n % 2, 20_480, f"xxh3_128:{n:032x}") for n in range(3)]
    fields = (Field("jpg", "image", "bytes", "binary"), Field("cls", "label", "text", "int64", ("a", "b")))
    for count in range(4):
        manifest = Manifest(Shards.of(shards[:count]), fields[: count % 3], 8, 64, "repeat", {"rows": [18, None]})
        header, table = dump_manifest(manifest)
        yield manifest_files(header, table)
        for use_dictionary in (False, True):
            sink = io.BytesIO()
            pq.write_table(manifest.shards.table, sink, compression="none", use_dictionary=use_dictionary)
            yield manifest_files(signed(header, sink.getvalue()), sink.getvalue())


# Places: samples, bytes and checksum of the shard, then its places


def fuzz_places(data):
    num_samples, num_bytes = (int.from_bytes(data[at : at + 8], "little") >> 1 for at in (0, 8))
    places = outcome(parse_places, data[16:], num_bytes, data[56:72].hex(), num_samples, ("jpg", "cls"))
    if places is None:
        return False
    rows = outcome(rows_of, [(places, slice(0, num_samples))])
    if rows is None:
        return False
    assert len(rows.begins) == num_samples and rows.sizes.shape == (num_samples, 2)
    assert (rows.begins >= 0).all() and (rows.ends <= num_bytes).all() and (rows.sizes >= -1).all()
    return True


def places_seeds():
    for keys in (["a"], ["a", "b"], ["k" * 120, "b"]):
        columns = {name: pa.array([b"1"] * len(keys), pa.large_binary()) for name in ("jpg", "cls")}
        body, builder = build_body(pa.array(keys), columns), PlacesBuilder(["jpg", "cls"])
        builder.append(body, body.parts()[1])
        stored = builder.dump(10_240, bytes(16))
        yield b"".join((2 * count).to_bytes(8, "little") for count in (len(keys), 10_240)) + stored


# Tars


def as_tarfile_reads(data):
    """Return names and payloads of the files of a tar, or None where Python does not read all of it."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8") as tar:
            files = [(name_of(info), tar.extractfile(info).read()) for info in tar if info.isreg()]
            whole = not any(data[tar.offset :])
    except (tarfile.TarError, ValueError, OverflowError, MemoryError, RecursionError, KeyError, IndexError, EOFError):
        return None
    return files if whole and not has_other_names(data) else None


def name_of(info):
    return info.name.encode("utf-8", "surrogateescape")


def has_other_names(data):
    """Tell whether a header has no POSIX magic but bytes where POSIX has the prefix.

    GNU tar keeps times there, and so do we; Python takes them for a part of the name.
    """
    blocks = np.frombuffer(data, np.uint8)[: len(data) // BLOCK * BLOCK].reshape(-1, BLOCK)
    foreign = (blocks[:, 257:263] != np.frombuffer(b"ustar\0", np.uint8)).any(axis=1)
    return bool((foreign & (blocks[:, 345] != 0)).any())


def files_of(parsed, data, base=0):
    """Return names and payloads of parsed members; `data` begins at `base`."""
    starts, sizes = parsed.starts.tolist(), parsed.sizes.tolist()
    assert all(
        size >= 0 and base <= start <= base + len(data) - size for start, size in zip(starts, sizes, strict=True)
    )
    rows = zip(list(parsed.names), starts, sizes, strict=True)
    return [(bytes(name), data[start - base : start - base + size]) for name, start, size in rows]


def fuzz_scan(data):
    scan = outcome(scan_tar, memoryview(data))
    if scan is None:
        return False
    files = files_of(scan, data)
    assert as_tarfile_reads(data) in (None, files)
    samples = outcome(group_samples, scan)
    if samples is None or not len(samples.keys):
        return True
    named, keys = [files[row] for row in samples.rows.tolist()], samples.keys.to_pylist()
    for (name, _), key, field in zip(named, samples.sample_index.tolist(), samples.field_index.tolist(), strict=True):
        found_key, found_field = split_member(name)
        assert (found_key.decode(), found_field.decode().lower()) == (keys[key], samples.fields[field])
    return True


def some_tars():
    """Give tars as Python writes them: plain names, long ones, split ones, folders, times in fractions, old types."""
    names = ["a.jpg", "a.cls", "./b.jpg", "d/b.x/c.tar.gz", "e" * 70 + "/" + "f" * 60 + ".png", "größe.txt"]
    members = [(name, bytes([number]) * (number * 300)) for number, name in enumerate(names)]
    for format in FORMATS:
        for mtime in (0, 1.5):
            yield by_tarfile(members, format, mtime=mtime)
        yield by_tarfile([("l" * 600 + ".jpg", b"x") if format != tarfile.USTAR_FORMAT else members[0]], format)
        yield by_tarfile(members[:2], format, type=tarfile.AREGTYPE)
        yield by_tarfile([("dir/", b""), members[0]], format, type=tarfile.AREGTYPE)
        yield by_tarfile(members[:2], format, type=tarfile.CONTTYPE)
        records = {"comment": "none", "path": "p" * 90} if format == tarfile.PAX_FORMAT else {}
        yield by_tarfile(members[:3], format, pax_headers=records)


def scan_seeds():
    return some_tars()


def mended(data):
    """Return a tar whose headers have the right checksums again, wherever a block looks like a header."""
    blocks = bytearray(data)
    for first in range(0, len(blocks) - BLOCK + 1, BLOCK):
        block = blocks[first : first + BLOCK]
        if block[257:262] == b"ustar" or (block[154:156] == b"\0 " and block[148:154].isdigit()):
            block[148:156] = b" " * 8
            blocks[first + 148 : first + 156] = b"%06o\0 " % sum(block)
    return bytes(blocks)


NUMBERS = [b"%011o\0" % n for n in (0, 1, 5, 511, 512, 513, 1024, 8**11 - 1)] + [
    b"\x80" + n.to_bytes(11, "big") for n in (0, 3, 600, 2**62, 2**63 - 1, 2**63, 2**64 - 512, 2**87)
]
NUMBERS += [b"\xff" * 12, b"           3", b"3\0" + bytes(10), b"0000000003 3", b"-0000000001\0", b"00000000_03\0"]
KINDS = b"0\0007xXgLK512346SDMVZ"
NAMES = [
    b"a.jpg\0junk",
    b"dir/\0",
    b"../../x.jpg\0",
    b"a\nb.jpg\0",
    b"\xff.jpg\0",
    b"\0",
    b"./././a.jpg\0",
    b"/a.jpg\0",
]
RECORDS = [
    b"size=5",
    b"size=",
    b"size=0",
    b"size=99999999999999999999",
    b"size=-1",
    b"size= 5",
    b"path=",
    b"path=q.jpg",
]
RECORDS += [b"path=q.jpg/", b"path=a\0b", b"GNU.sparse.name=s.jpg", b"GNU.sparse.map=0,1", b"GNU.sparse.size=1"]
RECORDS += [b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"hdrcharset=BINARY", b"path=\xff.jpg", b"linkpath=path=z"]


def record(body):
    rest = b" " + body + b"\n"
    return b"%d%b" % (next(n for n in range(len(rest), len(rest) + 9) if n == len(rest) + len(str(n))), rest)


def extended(chance, kind):
    """Return an extended header that says something odd."""
    body = b"".join(map(record, chance.choices(RECORDS, k=chance.randint(1, 2))))
    if kind == b"L":
        body = chance.choice([b"long.jpg\0", b"", b"\0", b"long.jpg", b"n" * 600, b"dir/\0"])
    header = bytearray(tarfile.TarInfo("././@Long").tobuf(tarfile.USTAR_FORMAT))
    header[124:136], header[156:157] = b"%011o\0" % max(0, len(body) + chance.choice([0, 0, 0, -3, 5])), kind
    padding = bytearray(-len(body) % BLOCK)
    if chance.random() < 0.2:
        padding[:12] = b"10 path=zz\n\0"[: len(padding)]
    return bytes(header) + body + bytes(padding)


def mutated(data, chance):
    """Return a tar in which one thing was changed, by a random.Random."""
    blocks = [data[first : first + BLOCK] for first in range(0, len(data), BLOCK)] or [bytes(BLOCK)]
    row = chance.randrange(len(blocks))
    block = bytearray(blocks[row].ljust(BLOCK, b"\0"))
    what = chance.randrange(10)
    if what == 0:
        block[chance.randrange(BLOCK)] = chance.randrange(256)
    elif what == 1:
        block[124:136] = chance.choice(NUMBERS)
    elif what == 2:
        block[156] = chance.choice(KINDS)
    elif what == 3:
        name = chance.choice(NAMES)
        block[: len(name)] = name
    elif what == 4:
        name = chance.choice(NAMES)
        block[345 : 345 + len(name)] = name
    elif what == 5:
        return b"".join(blocks[:row])
    elif what == 6:
        return b"".join([*blocks[:row], *blocks[row + 1 :]])
    elif what == 7:
        other = chance.randrange(len(blocks))
        return b"".join([*blocks[:row], *blocks[min(row, other) : other + 1], *blocks[row:]])
    elif what == 8:
        return b"".join([*blocks[:row], extended(chance, chance.choice([b"x", b"L", b"g", b"K", b"X"])), *blocks[row:]])
    else:
        place = chance.choice([100, 108, 136, 154, 257, 263, 329])
        block[place : place + 8] = chance.choice([bytes(8), b"ustar\x0000", b"ustar  \0", b"9" * 8, b"\x80" * 8])
    return b"".join([*blocks[:row], bytes(block), *blocks[row + 1 :]])


# Stored views


VIEWED = Manifest(
    Shards.of(
        [Shard(f"{n}.tar", count, 0, BLOCK * (count + 1), f"xxh3_128:{n}") for n, count in enumerate((9, 0, 17))]
    ),
    (Field("cls", "cls", "integer", "int64"),),
    1,
    1,
    "none",
    {},
)


def fuzz_view(data):
    found = outcome(parse_view, "v", data, VIEWED)
    if found is None:
        return False
    stored, selection = found
    assert stored.dataset == VIEWED.fingerprint
    assert len(pickle.dumps(stored)) < len(data) + 2000
    assert stored.num_selected == sum(len(selection.chosen.places(shard)) for shard in range(3))
    return True


def view_seeds():
    for every in (1, 2, 20):
        with tempfile.TemporaryDirectory() as folder:
            selection = Selection.of_masks([np.arange(count) % every == 0 for count in VIEWED.shards.num_real])
            times = np.arange(1, selection.num_samples + 1, dtype=np.uint32)
            units = selection if every == 2 else Repeats(selection, times, "repeat")
            if every == 20:
                units = Packs(units, np.zeros(units.num_samples, np.uint8), 100, Packing(9, False))
            if every == 2:
                units = Groups(units, np.zeros(units.num_samples, np.uint8), 0, Grouping(3, 0, ("a",)))
            write_view(LocalStorage(folder), VIEWED, "v", units, {"where": "x > 1"})
            yield LocalStorage(folder).read(f"views/v@{VIEWED.fingerprint[:16]}.view")


TARGETS = {
    "manifest": (fuzz_manifest, manifest_seeds, None),
    "places": (fuzz_places, places_seeds, None),
    "scan": (fuzz_scan, scan_seeds, 0),
    "view": (fuzz_view, view_seeds, None),
}
"""By name: the target, its seeds, and where a tar begins in its bytes (None if there is none)."""
