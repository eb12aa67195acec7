import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from made_datasets import converted, numbers_dataset, numbers_table, sized_dataset
from tars import archive
from wdsplit.checks import verify as verify_module
from wdsplit.checks.verify import verify
from wdsplit.errors import CorruptDataError, WdsplitError
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import HEADER_NAME, SHARDS_NAME, Shards, checksum_of, dump_manifest
from wdsplit.shards.places import places_path, read_places
from wdsplit.storage.opening import open_storage
from wdsplit.tar.members import trailer_bytes
from wdsplit.tar.names import pad_key
from wdsplit.tar.places import _dump_listed, hash_samples
from wdsplit.tar.samples import sample_members
from wdsplit.tar.scan import scan_tar

SHARD = "000002.tar"
"""Of the 7 shards of `numbers`, the one that is damaged; it holds 15 samples and no pad."""

CHANGED = "a shard was changed"
BAD_HEADER = "a tar header is damaged"
NO_END = "the end of a shard is damaged"
OTHER_SIZE = "a shard has another size than the manifest says"
NO_FILE = "there is no such file"
BAD_PLACES = "the places of a shard are damaged"
OTHER_PLACES = "the places of a shard do not match its samples"
PADS = "the pads of a shard do not match the manifest"
UNKNOWN = "a sample has a field that is not in the manifest"
TWICE = "duplicate key"


@pytest.fixture
def dataset(numbers, tmp_path):
    """Return a copy of `numbers` that may be damaged."""
    return Path(shutil.copytree(numbers, tmp_path / "copy"))


def problems_of(folder, jobs=1):
    return [(Path(problem.url).name, problem.cause) for problem in verify(str(folder), jobs).problems]


def causes_in(folder, shard=SHARD):
    """Return the causes of all problems, which must be of one shard: each names it, and says what to do."""
    problems = verify(str(folder)).problems
    assert {problem.url for problem in problems} <= {f"{folder}/{shard}", f"{folder}/{places_path(shard)}"}
    assert problems and all(f"/{shard}" in problem.place and problem.remedy for problem in problems)
    return [problem.cause for problem in problems]


def offsets_of(folder, shard=SHARD):
    storage = open_storage(str(folder))
    manifest = read_manifest(storage)
    (listed,) = [each for each in map(manifest.shards.__getitem__, range(len(manifest.shards))) if each.path == shard]
    return read_places(storage, listed, manifest.field_names).offsets().tolist()


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def change(path, edit):
    path.write_bytes(edit(path.read_bytes()))


def change_row(folder, row, name, bits=512):
    """Change a number in the places of a shard, and their own hash with it."""
    data = bytearray((folder / places_path(SHARD)).read_bytes())
    rows = np.frombuffer(data, [("offset", "<u8"), ("hash", "<u8"), ("size", "<u4"), ("other", "<u4")], offset=64)
    rows[name][row] ^= bits
    data[56:64] = xxhash.xxh3_64_intdigest(data[:56] + data[64:]).to_bytes(8, "little")
    (folder / places_path(SHARD)).write_bytes(data)


DAMAGES = {
    "remove": (lambda folder: (folder / SHARD).unlink(), [NO_FILE]),
    "truncate": (lambda folder: change(folder / SHARD, lambda data: data[:-512]), [OTHER_SIZE]),
    "another shard": (lambda folder: shutil.copyfile(folder / "000003.tar", folder / SHARD), [CHANGED, PADS]),
    "payload": (lambda folder: flip(folder / SHARD, 512), [CHANGED]),
    "name": (lambda folder: flip(folder / SHARD, 0), [CHANGED, BAD_HEADER]),
    "last header": (lambda folder: flip(folder / SHARD, offsets_of(folder)[-2] + 130), [CHANGED, BAD_HEADER]),
    "end": (lambda folder: flip(folder / SHARD, offsets_of(folder)[-1]), [CHANGED, NO_END]),
    "remove places": (lambda folder: (folder / places_path(SHARD)).unlink(), [NO_FILE]),
    "shorten places": (lambda folder: change(folder / places_path(SHARD), lambda data: data[:-8]), [BAD_PLACES]),
    "flip places": (lambda folder: flip(folder / places_path(SHARD), 70), [BAD_PLACES]),
    "begin behind the first header": (lambda folder: change_row(folder, 0, "offset"), [BAD_PLACES]),
    "sample behind the next": (lambda folder: change_row(folder, 3, "offset", 8192), [BAD_PLACES]),
    "offset": (lambda folder: change_row(folder, 3, "offset"), [OTHER_PLACES]),
    "hash": (lambda folder: change_row(folder, 3, "hash"), [OTHER_PLACES]),
    "size": (lambda folder: change_row(folder, 3, "size"), [OTHER_PLACES]),
}
"""What damages the shard of a dataset, and the causes that are told."""


# Shards that are what the manifest says, but hold what they must not


def recorded(folder, shard, data, offsets, num_pads=0):
    """Put a tar and its index in the place of a shard, and write a manifest that says so, without sample tables."""
    storage = open_storage(str(folder))
    manifest = read_manifest(storage)
    rows = [manifest.shards[number] for number in range(len(manifest.shards))]
    place = [row.path for row in rows].index(shard)
    checksum = checksum_of(xxhash.xxh3_128(data))
    rows[place] = replace(
        rows[place], num_samples=len(offsets) - 1, num_pads=num_pads, num_bytes=len(data), checksum=checksum
    )
    header, table = dump_manifest(replace(manifest, shards=Shards.of(rows), samples=None))
    for name, content in (
        (shard, data),
        (places_path(shard), places_of(data, np.asarray(offsets), manifest.field_names)),
        (SHARDS_NAME, table),
        (HEADER_NAME, header),
    ):
        (folder / name).write_bytes(content)


def places_of(data, offsets, names):
    """Return places that say of a tar what its samples are, whatever its headers say."""
    try:
        scan = scan_tar(memoryview(data)[: int(offsets[-1])])
    except CorruptDataError:  # they say that each sample is one payload
        begins, ends = offsets[:-1], offsets[1:]
        hashes = hash_samples(data[begin:end] for begin, end in zip(begins, ends, strict=True))
        listed = np.arange(len(begins)), np.zeros(len(begins), int), begins + 512, ends - begins - 512
        keys = [str(number) for number in range(len(begins))]
        digest = xxhash.xxh3_128_digest(data)
        return _dump_listed(len(data), int(ends[-1]), digest, begins, hashes, names, listed, keys)
    members = sample_members(scan)
    samples = np.searchsorted(offsets, scan.tops[members.rows], side="right") - 1
    firsts = members.sample_index[np.searchsorted(samples, np.arange(len(offsets) - 1))]
    keys = [members.keys[row].as_py() for row in firsts.tolist()]
    hashes = hash_samples(data[begin:end] for begin, end in itertools.pairwise(offsets.tolist()))
    digest = xxhash.xxh3_128_digest(data)
    numbers = np.array([names.index(name) if name in names else 0 for name in members.fields])
    listed = samples, numbers[members.field_index], scan.starts[members.rows], scan.sizes[members.rows]
    return _dump_listed(len(data), int(offsets[-1]), digest, offsets[:-1], hashes, names, listed, keys)


def with_samples(keys, num_pads=0, shard=SHARD, **fields):
    """Return what puts a shard of these samples in the place of one."""
    made = archive(keys, fields or {"cls": [b"1"] * len(keys), "txt": [b"one"] * len(keys)})
    return lambda folder: recorded(folder, shard, made.data, made.offsets, num_pads)


def with_members(names, members_in_samples):
    """Return what puts a tar of these members in the place of the shard, with places that count so many a sample."""
    made = [archive([name.partition(".")[0]], {name.partition(".")[2]: [b"x"]}) for name in names]
    bodies = [each.data[: int(each.offsets[-1])] for each in made]
    ends, data = np.cumsum(list(map(len, bodies))), b"".join(bodies)
    offsets = [0, *ends[np.cumsum(members_in_samples) - 1].tolist()]
    return lambda folder: recorded(folder, SHARD, data + bytes(trailer_bytes(len(data))), offsets)


def with_a_sample_cut(folder):
    """Leave out the last block of a sample's payload, as if two tars had been joined at a wrong place."""
    made = archive(["a", "b", "c"], {"cls": [b"1"] * 3, "txt": [b"x" * 600] * 3})
    cut = int(made.offsets[2]) - 512
    offsets = np.where(made.offsets > cut, made.offsets - 512, made.offsets)
    body = made.data[:cut] + made.data[cut + 512 : int(made.offsets[-1])]
    recorded(folder, SHARD, body + bytes(trailer_bytes(len(body))), offsets)


def with_bytes_after_its_end(folder):
    made = archive(["a"], {"cls": [b"1"]})
    recorded(folder, SHARD, made.data + made.data, made.offsets)


WRONG_SHARDS = {
    "a sample cut": (with_a_sample_cut, BAD_HEADER),
    "bytes after its end": (with_bytes_after_its_end, NO_END),
    "two samples interleaved": (with_members(["a.cls", "b.cls", "a.txt", "b.txt"], [2, 2]), OTHER_PLACES),
    "one under two entries": (with_members(["a.cls", "b.cls", "b.txt"], [1, 1, 1]), OTHER_PLACES),
    "a field twice": (with_members(["a.cls", "a.cls"], [2]), None),
    "pads in front": (with_samples([pad_key(2, 0), "a", "b"], 1), PADS),
    "a pad too many": (with_samples(["a", "b", pad_key(2, 0)]), PADS),
    "a key twice": (with_samples(["a", "b", "a"]), TWICE),
    "a key of another shard": (with_samples(["a", "00000000"]), TWICE),
    "an unknown field": (with_samples(["a", "b"], cls=[b"1", b"2"], jpg=[None, b"y"]), UNKNOWN),
}
"""Shards whose checksum is right, and the cause that is told; None where any will do."""


LACKING = numbers_table(4).append_column("json", pa.array([{"x": 1}, None, None, {"x": 2}]))
CASES = pa.table({"name": ["a", "A", "ab", "aB", "Ab", "AB"], "cls": range(6)})


def test_a_dataset_is_healthy_whatever_its_shards_hold(tmp_path):
    for name, make in {
        "no pads": lambda folder: numbers_dataset(folder, 23, shards=5, pad="none"),
        "shards of one": lambda folder: numbers_dataset(folder, 23, samples_per_shard=1),
        "empty shards": lambda folder: sized_dataset(folder, [3, 0, 5, 0], lanes=2, window=2),
        "lacking fields": lambda folder: converted(folder, LACKING, null="omit", shards=2),
        "keys differ by case": lambda folder: converted(folder, CASES, key="name", shards=2),
    }.items():
        assert problems_of(make(tmp_path / name)) == [], name


def test_a_shard_larger_than_what_is_checked_at_once_is_checked_to_its_end(tmp_path):
    dataset = Path(numbers_dataset(tmp_path, 5000, shards=1))
    assert problems_of(dataset) == []
    flip(dataset / "000000.tar", offsets_of(dataset, "000000.tar")[4999])
    assert causes_in(dataset, "000000.tar") == [CHANGED, BAD_HEADER]


@pytest.mark.parametrize(("damage", "causes"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_reported_with_the_shard_that_has_it(dataset, damage, causes):
    damage(dataset)
    assert causes_in(dataset) == causes


@pytest.mark.parametrize(("damage", "cause"), WRONG_SHARDS.values(), ids=WRONG_SHARDS)
def test_a_wrong_shard_is_reported_though_its_checksum_is_right(dataset, damage, cause):
    damage(dataset)
    (found,) = causes_in(dataset)
    assert found == cause or cause is None


def test_a_bit_that_was_flipped_in_a_header_is_reported_whatever_it_says(dataset):
    offsets = offsets_of(dataset)
    for sample, place in zip(itertools.cycle((0, 7, 14)), (0, 100, 130, 150, 156, 257, 345, 511), strict=False):
        flip(dataset / SHARD, offsets[sample] + place)
        assert CHANGED in causes_in(dataset), (sample, place)
        flip(dataset / SHARD, offsets[sample] + place)


def test_the_damage_of_several_shards_is_reported_in_their_order(dataset):
    (dataset / "000005.tar").unlink()
    flip(dataset / "000006.tar", 512)
    os.truncate(dataset / SHARD, 1000)
    flip(dataset / "000000.tar", -1)
    assert problems_of(dataset, jobs=2) == [
        ("000000.tar", CHANGED),
        ("000000.tar", NO_END),
        ("000002.tar", OTHER_SIZE),
        ("000005.tar", NO_FILE),
        ("000006.tar", CHANGED),
    ]


def test_each_key_that_stands_twice_is_named_with_both_its_shards(dataset):
    with_samples(["00000000", "b", "c", "b", "00000100"])(dataset)
    problems = verify(str(dataset)).problems
    assert [(problem.key, problem.cause) for problem in problems] == [
        ("00000000", TWICE),
        ("b", TWICE),
        ("00000100", TWICE),
    ]
    assert "000000.tar" in problems[0].found
    assert all(isinstance(problem, CorruptDataError) for problem in problems)
    assert {problems[2].url.rpartition("/")[2], problems[2].found.rpartition("/")[2]} == {SHARD, "000006.tar"}


def test_progress_counts_the_shards_that_were_checked(numbers):
    seen = []
    report = verify(numbers, progress=lambda *counts: seen.append(counts))
    assert report.problems == () and report.manifest == read_manifest(open_storage(numbers))
    assert [(done, total) for done, total, _ in seen] == [(done, 7) for done in range(8)]
    assert (seen[0][2], seen[-1][2]) == (0, sum(path.stat().st_size for path in Path(numbers).glob("*.tar")))


def test_a_dataset_whose_manifest_is_damaged_is_an_error_and_no_report(dataset):
    for name in (SHARDS_NAME, HEADER_NAME):
        flip(dataset / name, 20)
        with pytest.raises(WdsplitError, match=name):
            verify(str(dataset))


def test_a_tar_that_the_manifest_does_not_list_is_reported(dataset):
    (dataset / "000099.tar").write_bytes((dataset / SHARD).read_bytes())
    assert [(problem.cause, problem.url) for problem in verify(str(dataset)).problems] == [
        ("a tar beside the shards is not in the manifest", f"{dataset}/000099.tar")
    ]


@pytest.mark.parametrize("name", ["remove", "name"])
def test_a_shard_that_is_damaged_between_the_first_look_and_the_second_is_reported(dataset, name):
    """The second is for the keys that may stand twice; those of the other shards are still told."""
    with_samples(["a", "b", "a"])(dataset)
    with_samples(["c", "d", "c"], shard="000004.tar")(dataset)
    damage, _ = DAMAGES[name]
    report = verify(str(dataset), progress=lambda done, total, _: damage(dataset) if done == total else None)
    assert [Path(problem.url).name.partition(".")[0] for problem in report.problems] == ["000002", "000004"]
    assert report.problems[0].cause != TWICE and report.problems[1].cause == TWICE


def test_a_shard_that_shrinks_while_it_is_read_is_reported(dataset, monkeypatch):
    parts = verify_module._parts

    def shrinking(shard):
        if shard.url.endswith(SHARD):
            os.truncate(shard.url, 1000)
        return parts(shard)

    monkeypatch.setattr(verify_module, "_parts", shrinking)
    assert problems_of(dataset) == [(SHARD, "a file became shorter while it was read")]
