import pickle
import struct
import threading

import numpy as np
import orjson
import pytest
import xxhash

from wdsplit.errors import CorruptDataError, InputError, StorageError
from wdsplit.order.bundles import Grouping, Groups, Packing, Packs, items_of, shard_units
from wdsplit.order.selection import Selection
from wdsplit.order.units import MAX_TIMES, Repeats
from wdsplit.shards import view_parts, views
from wdsplit.shards.manifest import Field, Manifest, Shard, Shards
from wdsplit.shards.view_parts import hash_of_part
from wdsplit.shards.views import VIEWS, lock_view, read_view, write_view
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.local_file import LocalFile

COUNTS = (10, 0, 13, 8)
BITMAPS = b"\x49\x02\x49\x12\x49"
"""Of every third sample."""


def manifest_of(counts=COUNTS, checksum="xxh3_128:00"):
    shards = [Shard(f"{n:06d}.tar", count + 1, 1, 10_240 * 9, f"{checksum}{n}") for n, count in enumerate(counts)]
    return Manifest(Shards.of(shards), (Field("cls", "cls", "integer", "int64"),), 4, 4, "none", {})


def chosen(every):
    """Return a selection of every so-maniest sample of each shard; 0 for none."""
    return Selection.of_masks([np.arange(count) % every == 0 if every else np.zeros(count, bool) for count in COUNTS])


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path))


@pytest.fixture
def manifest():
    return manifest_of()


def view_bytes(storage, manifest, every=3):
    write_view(storage, manifest, "v", chosen(every), {"where": "x"})
    return path_of(storage, manifest).read_bytes()


def path_of(storage, manifest):
    return storage.root / VIEWS.path("v", manifest.fingerprint)


def refused(storage, manifest, data, error=CorruptDataError):
    """Return the error for a view whose file has these bytes, whether it is read whole or by parts."""
    (storage.root / "views").mkdir(exist_ok=True)
    path_of(storage, manifest).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        for whole in (0, 2**24):
            patch.setattr(views, "_WHOLE_BYTES", whole)
            with pytest.raises(error) as caught:
                read_parts(read_view(storage, manifest, "v")[1])
            assert VIEWS.path("v", manifest.fingerprint) in caught.value.place
    return caught.value


def read_parts(units):
    """Return the samples of the items of each shard."""
    counts = enumerate(units.counts.tolist())
    every = ((shard, shard_units(units, units.totals, shard, 4), count) for shard, count in counts)
    return [own.items(np.arange(count)).samples.tolist() for _, own, count in every]


FORMS = [None, (4, Packing(9, True)), (0, Grouping(3, 0, (False, True))), (7, Grouping(0, 40))]


CASES = [(most, form, 3) for most in (None, 3) for form in FORMS] + [(300, FORMS[1], 3), (70_000, None, 3)]
CASES += [(3, form, every) for form in FORMS for every in (0, 1)]


@pytest.mark.parametrize(("most", "form", "every"), CASES, ids=str)
@pytest.mark.parametrize("whole", [0, 2**24], ids=["parts", "whole"])
def test_a_view_is_read_as_it_was_written(storage, manifest, monkeypatch, every, most, form, whole):
    selection = chosen(every)
    times = np.linspace(1, most or 1, selection.num_samples).astype(np.uint32)
    items = selection if most is None else Repeats(selection, times, "expand")
    number = np.arange(items.num_samples) - np.repeat(np.cumsum(items.counts) - items.counts, items.counts)
    codes, units = number // 2 if form and isinstance(form[1], Packing) else number % 2, items
    if form is not None:
        units = (Packs if isinstance(form[1], Packing) else Groups)(items, codes.astype(np.uint32), *form)
    stored = write_view(storage, manifest, "v", units, {"where": "x > 1"})
    monkeypatch.setattr(views, "_WHOLE_BYTES", whole)
    again, found = read_view(storage, manifest, "v")
    assert again == stored == VIEWS.find(storage, "v", manifest)
    assert (stored.num_samples, stored.num_selected) == (31, selection.num_samples)
    assert (stored.num_units, stored.kind) == (units.num_samples, "select" if most is None else "expand")
    assert (f"{units.num_samples:,} parts" in repr(stored)) == (most is not None and form is None)
    assert (found.block, found.form) == form if form else stored.form == {}
    assert (
        (stored.dataset, stored.fingerprint)
        == (manifest.fingerprint, units.fingerprint)
        == (stored.dataset, found.fingerprint)
    )
    assert [found.chosen.places(n).tolist() for n in range(4)] == [selection.places(n).tolist() for n in range(4)]
    assert most is None or items_of(found).times[:].tolist() == times.tolist()
    assert form is None or found.codes[:].tolist() == codes.tolist()
    assert read_parts(pickle.loads(pickle.dumps(found))) == read_parts(units)  # in another process
    lengths = [len(times)] * (most is not None) + [len(number)] * (form is not None)
    assert selection.num_samples == 0 or most is None or stored.widths[0] == {3: 1, 300: 2, 70_000: 4}[most]
    data = path_of(storage, manifest).read_bytes()
    bits = sum(-(-n // 8) for n, k in zip(COUNTS, selection.counts, strict=True) if 0 < k < n)
    table = 16 + 8 * len(COUNTS) * (2 + len(lengths))
    assert len(data) == data.index(b"\n") + 1 + table + bits + sum(map(int.__mul__, stored.widths, lengths))


def test_the_same_view_has_the_same_bytes(storage, manifest):
    data = view_bytes(storage, manifest)
    assert data == view_bytes(storage, manifest)
    head, _, arrays = data.partition(b"\n")
    assert orjson.loads(head)["num_selected"] == 12
    assert (len(head) + 1) % 8 == 0
    assert arrays[:16] == xxhash.xxh3_128_digest(head + b"\n" + arrays[16 : -len(BITMAPS)])
    counts, hashes = arrays[16:48], arrays[48 : -len(BITMAPS)]
    assert np.frombuffer(counts, "<i8").tolist() == [4, 0, 5, 3]
    parts = BITMAPS[:2], b"", BITMAPS[2:4], BITMAPS[4:]
    assert np.frombuffer(hashes, "<u8").tolist() == [xxhash.xxh3_64_intdigest(part) for part in parts]
    assert arrays[-len(BITMAPS) :] == BITMAPS


@pytest.fixture
def parted(storage, manifest, monkeypatch):
    """Return a view that is read by parts from a store, and the offsets that were read; reads come three at a time."""
    view_bytes(storage, manifest)
    monkeypatch.setattr(views, "_WHOLE_BYTES", 0)
    units, reads, together, read = read_view(storage, manifest, "v")[1], [], threading.Barrier(3), LocalFile.read

    def read_together(file, offset, num_bytes):
        reads.append(offset)
        if len(reads) <= 3:
            together.wait(60)
        return read(file, offset, num_bytes)

    monkeypatch.setattr(LocalFile, "is_remote", True)
    monkeypatch.setattr(LocalFile, "read", read_together)
    return units, reads


def test_parts_that_are_needed_are_read_at_the_same_time_and_once(parted):
    units, reads = parted
    units.load([0, 2, 3])
    assert read_parts(units) == read_parts(units) == read_parts(chosen(3))
    assert len(set(reads)) == len(reads) == 3


def test_no_more_parts_stay_in_memory_than_may(parted, monkeypatch):
    monkeypatch.setattr(view_parts, "_KEPT_BYTES", 4)  # the first two parts have 2 bytes each
    units, reads = parted
    reads.extend([-1, -1, -1])
    units.load([0, 2, 3])
    assert len(reads[3:]) == 2
    assert [units.places(shard).tolist() for shard in (0, 2, 3, 0)] == [
        chosen(3).places(n).tolist() for n in (0, 2, 3, 0)
    ]
    assert len(reads[3:]) == 4


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".x", "a b", "é", "x" * 101, 3, None])
def test_odd_names_are_refused(name):
    with pytest.raises(InputError, match="invalid view name"):
        VIEWS.checked(name)


def test_a_view_that_is_not_there_names_those_that_are(storage, manifest):
    with pytest.raises(InputError) as caught:
        read_view(storage, manifest, "good")
    assert caught.value.found == "no views at all"
    for name in ("good", "bad"):
        write_view(storage, manifest, name, chosen(3), {})
    with pytest.raises(InputError) as caught:
        read_view(storage, manifest, "goood")
    assert (caught.value.expected, caught.value.remedy) == ("one of bad, good", "did you mean 'good'?")


def test_other_files_beside_views_are_none(storage, manifest):
    view_bytes(storage, manifest)
    version = "@0123456789abcdef.view"
    for name in (f".v{version}.1-2-0123456789abcdef.tmp", "notes.txt", f".hidden{version}", f"a b{version}", "w.view"):
        (storage.root / "views" / name).write_bytes(b"")
    assert VIEWS.versions(storage) == {"v": [manifest.fingerprint[:16]]}


# Files that anyone may have written


def test_a_truncated_view_is_refused_wherever_it_ends(storage, manifest):
    data = view_bytes(storage, manifest)
    for end in [*range(0, len(data), 31), *range(len(data) - 9, len(data))]:
        refused(storage, manifest, data[:end])


def test_a_changed_byte_of_the_counts_or_bitmaps_is_noticed(storage, manifest):
    data = view_bytes(storage, manifest)
    places = [data.rindex(part) for part in (struct.pack("<q", 4), struct.pack("<q", 5), BITMAPS)]
    for place in places:
        for bits in (1, 3):  # of the bitmap, 3 selects another sample, and as many
            changed = bytearray(data)
            changed[place] ^= bits
            refused(storage, manifest, bytes(changed))


def forged(manifest, head=None, counts=(4, 0, 5, 3), units=None, bitmaps=BITMAPS, bins=b"", **changes):
    """Return the bytes of a view file with something wrong in it, whose hashes are right."""
    right = chosen(3)
    own = {
        "wdsplit_view": 4,
        "dataset": manifest.fingerprint,
        "fingerprint": right.fingerprint,
        "num_samples": 31,
        "num_selected": right.num_samples,
        "num_units": right.num_samples,
        "lanes": 4,
        "kind": "select",
        "form": {},
        "widths": [],
        "recipe": {},
        **changes,
    }
    line = (orjson.dumps(own) if head is None else head) + b"\n"
    columns, ends = [counts] + [counts if units is None else units] * len(own["widths"]), np.cumsum((2, 0, 2, 1))
    arrays = [np.split(np.frombuffer(bitmaps, np.uint8), ends[:-1])]
    if own["widths"]:
        arrays.append(np.split(np.frombuffer(bins, np.uint8), np.cumsum(counts)[:-1]))
    hashes = [hash_of_part(part) for part in zip(*arrays, strict=True)]
    table = np.array(columns, "<i8").tobytes() + np.array(hashes, "<u8").tobytes()
    return line + xxhash.xxh3_128_digest(line + table) + table + bitmaps + bins


HUGE = 2**62


@pytest.mark.parametrize(
    ("counts", "bitmaps"),
    [
        ([4, 0, 5], BITMAPS),
        ([4, 0, 5, 3, 0], BITMAPS),
        ([4, 0, 5, HUGE], BITMAPS),
        ([4, 0, 5, -3], BITMAPS),
        ([3, 0, 6, 3], BITMAPS),
        ([4, 0, 5, 3], BITMAPS[:-1]),
        ([4, 0, 5, 3], BITMAPS * 100_000),
    ],
    ids=["few shards", "many shards", "huge", "negative", "moved", "short", "long"],
)
def test_counts_that_are_not_those_of_the_dataset_are_refused(storage, manifest, counts, bitmaps):
    refused(storage, manifest, forged(manifest, counts=counts, bitmaps=bitmaps))


@pytest.mark.parametrize(
    "changes",
    [
        {"wdsplit_view": 0},
        {"dataset": "0" * 32},
        {"recipe": []},
        {"num_selected": "12"},
        {"num_selected": 11},
        {"num_units": 13},
        {"lanes": 0},
        {"lanes": HUGE},
        {"kind": "other"},
        {"kind": "repeat"},
        {"widths": [1]},
        {"kind": "repeat", "widths": [3]},
        {"form": {"capacity": 9, "truncates": False, "block": 4}},
        {"form": {"capacity": 9, "truncates": False, "block": 0}, "widths": [1], "bins": bytes(12)},
        {"form": {"capacity": 9, "truncates": False, "block": 4}, "widths": [1], "bins": b"\xff" * 12},
        {"form": {"size": 0, "budget": 0, "values": [1], "block": 4}, "widths": [1], "bins": bytes(12)},
        {"form": {"size": 2, "budget": 0, "values": [1], "block": 4}, "widths": [1], "bins": b"\1" * 12},
        {"form": {"size": 2, "budget": 0, "values": [1]}, "widths": [1], "bins": bytes(12)},
        {"form": {"size": 0, "budget": HUGE, "values": [], "block": 4}, "widths": [1], "bins": b"\1" * 12},
        {"form": {"size": 40, "budget": 0, "values": [1], "block": 4}, "widths": [1], "bins": bytes(12)},
        {"form": {"size": HUGE, "budget": 9, "values": [], "block": 4}, "widths": [1], "bins": b"\1" * 12},
        {"form": {"capacity": 9, "truncates": False, "block": 4}, "widths": [1], "bins": bytes(13)},
        {"head": b"[]"},
        {"head": b"[" * 5000},
    ],
    ids=str,
)
def test_metadata_that_is_not_a_views_is_refused(storage, manifest, changes):
    view_bytes(storage, manifest)
    path_of(storage, manifest).write_bytes(forged(manifest))
    assert read_view(storage, manifest, "v")[1].num_samples == 12, "the forger can write a right one"
    path_of(storage, manifest).write_bytes(forged(manifest, fingerprint="00"))
    with pytest.raises(CorruptDataError, match="bytes that were changed"):
        read_view(storage, manifest, "v")
    refused(storage, manifest, forged(manifest, **changes))


@pytest.mark.parametrize("times", [0, MAX_TIMES + 1])
def test_samples_that_come_never_or_too_often_are_refused(storage, manifest, times):
    units = Repeats(chosen(3), np.full(12, times, np.uint32), "repeat")
    write_view(storage, manifest, "v", units, {})
    refused(storage, manifest, path_of(storage, manifest).read_bytes())


def test_packs_that_do_not_follow_one_another_block_by_block_are_refused(storage, manifest):
    items = chosen(3)
    codes = np.concatenate([np.arange(count)[::-1] for count in items.counts]).astype(np.uint32)
    write_view(storage, manifest, "v", Packs(items, codes, 1, Packing(9, False), items.counts), {})
    refused(storage, manifest, path_of(storage, manifest).read_bytes())


def test_any_recipe_can_be_shown(storage, manifest):
    long = " or ".join(["x > 1"] * 10_000)
    write_view(storage, manifest, "v", chosen(3), {"where": long})
    assert VIEWS.find(storage, "v", manifest).recipe == {"where": long}
    recipe = {"where": "a == 'b'", "view": 3, "keys": {"from": ["x"]}, "exclude": {"x": 1}}
    write_view(storage, manifest, "v", chosen(3), recipe)
    assert VIEWS.find(storage, "v", manifest).made_of == "--view 3 --where \"a == 'b'\" --keys \"['x']\""


# Names that are taken


def test_one_process_at_a_time_makes_a_view_and_removes_what_a_killed_one_has_left_of_it(storage):
    left = [f".{name}@0123456789abcdef.view.123-0-0123456789abcdef.tmp" for name in ("v", "w", "v.view")]
    (storage.root / "views").mkdir()
    for name in left:
        (storage.root / "views" / name).write_bytes(b"x")
    with lock_view(storage, "v"):
        pass
    assert storage.list("views") == sorted(left[1:])
    storage.remove(*(f"views/{name}" for name in left[1:]))
    other = LocalStorage(str(storage.root))
    with lock_view(storage, "v"):
        with lock_view(other, "w"):
            assert storage.list("views") == [".v.lock", ".w.lock"]
        with pytest.raises(StorageError, match="another process is writing"), lock_view(other, "v"):
            pass
    assert storage.list("views") == []
