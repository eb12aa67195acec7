"""Windows read together are those read alone; so are large samples, of which only the headers are read."""

import contextlib
import gc
import multiprocessing
import tarfile
import weakref
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tars import FIELDS, archives, by_tarfile
from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading import segments as segments_module
from wdsplit.loading.reading import windows as windows_module
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.windows import DAMAGE, Scratch, WindowPlace, read_window, read_windows
from wdsplit.shards.files import write_shard
from wdsplit.shards.manifest import Shard
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.members import build_body
from wdsplit.tar.places import scanned_places
from wdsplit.tar.samples import group_samples
from wdsplit.tar.scan import scan_tar

reading = pytest.mark.parametrize("is_large", [False, True], ids=["at once", "headers only"])


@contextlib.contextmanager
def as_large(is_large):
    """Let samples be taken for large ones, whatever their size."""
    limit = 0 if is_large else 16_384
    modules = segments_module, windows_module
    with patch.object(modules[0], "SMALL_SAMPLE_BYTES", limit), patch.object(modules[1], "SMALL_SAMPLE_BYTES", limit):
        yield


def open_tar(folder, data, name="a"):
    """Return a tar of another program, with its places, as an open shard."""
    samples = group_samples(scan_tar(memoryview(data)))
    digest = xxhash.xxh3_128_digest(data)
    places = scanned_places(memoryview(data), samples, digest)
    (folder / f"{name}.tar").write_bytes(data)
    (folder / f"{name}.tar.places").write_bytes(places)
    shard = Shard(f"{name}.tar", len(samples.keys), 0, len(data), f"xxh3_128:{digest.hex()}")
    return open_shard(LocalStorage(str(folder)), shard, tuple(dict.fromkeys([*FIELDS, *samples.field_counts])))


def written(folder, samples, name="a", fields=FIELDS, lead="dir/key_00"):
    """Return a shard that wdsplit writes of samples, dicts of fields to bytes, as an open one."""
    columns = {name: pa.array([sample.get(name) for sample in samples], pa.large_binary()) for name in fields}
    body = build_body(pa.array([f"{lead}{row}" for row in range(len(samples))]), columns)
    storage = LocalStorage(str(folder))
    shard = write_shard(storage, f"{name}.tar", [body], fields, 0)
    return open_shard(storage, shard, tuple(fields))


def samples_in(block, first, stop):
    return list(block.cut(first, stop).samples())


def samples_of_each(places, **options):
    """Return the samples of each of some windows that are read together."""
    sizes = [len(place.samples) for place in places]
    parts = read_windows(places, Scratch(), **options)
    return [samples_in(block, first, first + size) for (block, first), size in zip(parts, sizes, strict=True)]


def fetched(place):
    """Return a window with its bytes, as if they had been fetched."""
    ranges = place.shard.ranges(place.samples)
    data = bytearray(b"".join(place.shard.file.read(begin, end - begin) for begin, end in ranges))
    return place._replace(data=memoryview(data))


def fields_of(samples):
    return [{name: bytes(value) for name, value in sample.items() if name[:2] != "__"} for sample in samples]


def chosen_of(data, first, stop):
    """Draw which samples of a window are read: all, or the first, the last and some of those between."""
    between = data.draw(st.none() | st.lists(st.booleans(), min_size=stop - first, max_size=stop - first))
    if between is None:
        return np.arange(first, stop)
    return np.array([s for s, kept in enumerate(between, first) if kept or s in (first, stop - 1)])


@given(
    st.lists(archives(min_samples=1), min_size=1, max_size=4),
    st.sampled_from(["dir/key_00", "n" * 120, None]),
    st.booleans(),
    st.sampled_from([None, ["jpg"], ["cls", "json"], []]),
    st.data(),
)
def test_windows_read_together_alone_or_after_fetching_are_what_was_written(
    tmp_path_factory, built, lead, is_large, requested, data
):
    """Of our shards, with short and long names, and of those of other programs (without a lead)."""
    folder = tmp_path_factory.mktemp("shards")
    places, expected = [], []
    for number, one in enumerate(built):
        members = [{name.partition(".")[2]: value for name, value in sample} for sample in one.samples]
        if lead is None:
            shard = open_tar(folder, one.data, f"{number}")
        else:
            shard = written(folder, members, f"{number}", lead=lead)
        first = data.draw(st.integers(0, len(members) - 1))
        stop = data.draw(st.integers(first + 1, len(members)))
        chosen = chosen_of(data, first, stop)
        places.append(WindowPlace(shard.narrowed(requested), chosen))
        rows = chosen.tolist()
        own = [{k: v for k, v in members[row].items() if requested is None or k in requested} for row in rows]
        expected.append([((lead or "dir/key_00") + str(row), values) for row, values in zip(rows, own, strict=True)])
    everything = [(places, expected), *(([place], [samples]) for place, samples in zip(places, expected, strict=True))]
    few = 0 if len(built) % 2 else 1024  # pieces are copied one by one, or as one Arrow array
    with as_large(is_large), patch.object(windows_module, "_FEW_PIECES", few):
        for some, wanted in everything:
            for each in (some, list(map(fetched, some))):
                found = samples_of_each(each)
                for samples, own, place in zip(found, wanted, some, strict=True):
                    assert [sample["__key__"] for sample in samples] == [key for key, _ in own]
                    assert fields_of(samples) == [values for _, values in own]
                    assert {sample["__url__"] for sample in samples} <= {place.shard.url}
                    assert [sample["__position__"] for sample in samples] == place.samples.tolist()


SAMPLES = [{"jpg": bytes([number]) * 700, "cls": b"%d" % number} for number in range(3)]


@reading
@pytest.mark.parametrize("is_fetched", [False, True])
@pytest.mark.parametrize("row", [0, 2])
def test_a_changed_sample_is_noticed_and_only_it_is_damaged(tmp_path, is_large, is_fetched, row):
    """A large sample on a disk by its headers alone: its payloads are not read yet."""
    shard = written(tmp_path, SAMPLES, fields=["jpg", "cls"])
    offsets = shard.places.offsets()
    data = bytearray((tmp_path / "a.tar").read_bytes())
    offset = 130 if is_large and not is_fetched else 600
    data[offsets[row] + offset] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    place = WindowPlace(shard, np.arange(3))
    place = fetched(place) if is_fetched else place
    with as_large(is_large):
        with pytest.raises(CorruptDataError, match="a sample was changed") as caught:
            list(read_windows([place], Scratch()))
        assert (caught.value.url, caught.value.offset) == (shard.url, offsets[row])
        (window, _), *_ = read_windows([place], Scratch(), salvages=True)
    damage = window.fields[DAMAGE].tolist()
    assert [each is not None for each in damage] == [number == row for number in range(3)]
    good = [number for number in range(3) if number != row]
    assert [fields_of(samples_in(window, number, number + 1)) for number in good] == [
        [SAMPLES[number]] for number in good
    ]


def test_the_error_of_a_damaged_sample_keeps_nothing_of_its_reading(tmp_path):
    """By a traceback it would keep the memory forever: no collector sees into arrays of objects."""
    shard = written(tmp_path, SAMPLES)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[600] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    scratch = Scratch()
    kept = weakref.ref(scratch)
    parts = list(read_windows([WindowPlace(shard, np.arange(3))], scratch, salvages=True))
    assert DAMAGE in parts[0].block.fields
    del scratch, parts
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("fields", "byte"), [(["cls"], 1), (["cls"], 130), (["cls"], 150), ([], 150)], ids=["name", "size", "sum", "bare"]
)
def test_of_single_fields_of_large_samples_the_headers_are_compared(tmp_path, fields, byte):
    samples = [{"jpg": bytes(20_000), "cls": b"%d" % number} for number in range(3)]
    shard = written(tmp_path, samples, fields=["jpg", "cls"]).narrowed(fields)
    header = int(shard.segments(np.array([1])).begins[0])
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[header + byte] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(CorruptDataError, match="a sample was changed"):
        read_window(shard, np.arange(3))
    (window, _), *_ = read_windows([WindowPlace(shard, np.arange(3))], Scratch(), salvages=True)
    assert [each is not None for each in window.fields[DAMAGE].tolist()] == [False, True, False]
    assert not fields or window.fields["cls"].tolist() == [b"0", None, b"2"]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("lead", ["", "./", "d" * 60 + "/" + "n" * 60])
@reading
def test_samples_in_tars_of_others_are_read_whatever_their_headers(tmp_path, format, lead, is_large):
    """Plain ones, times in extended headers, names in extended headers, and the last member at the end of the file."""
    names = [f"{key}.{field}" for key in ("a", "b", "c") for field in ("jpg", "cls")]
    data = by_tarfile([(lead + name, name.encode() * 300) for name in names], format, mtime=1.5)
    shard = open_tar(tmp_path, data[: scan_tar(memoryview(data)).end])
    with as_large(is_large):
        samples = samples_of_each([WindowPlace(shard, np.arange(3))])[0]
    assert [sample["__key__"] for sample in samples] == [lead.removeprefix("./") + key for key in "abc"]
    assert fields_of(samples) == [{f: f"{key}.{f}".encode() * 300 for f in ("jpg", "cls")} for key in "abc"]


def test_small_samples_among_large_ones_have_their_own_keys(tmp_path):
    """Of these, too, the first header that is read may be of another member than the sample's first."""
    shard = written(
        tmp_path, [{"json": b"{}", "jpg": bytes(size)} for size in (90_000, 9, 90_000)], fields=["json", "jpg"]
    )
    for fields in (None, ["jpg"], ["json"], []):
        block = read_window(shard.narrowed(fields), np.arange(3))
        assert block.keys.tolist() == ["dir/key_000", "dir/key_001", "dir/key_002"]


def test_of_large_samples_only_the_requested_fields_are_read(tmp_path):
    shard = written(tmp_path, [{"jpg": b"x" * 50_000, "cls": b"7"}] * 3).narrowed(["cls"])
    kind, read = type(shard.file), []
    real = kind.read_into
    counted = lambda file, buffer, offset: read.append(len(buffer)) or real(file, buffer, offset)  # noqa: E731
    with patch.object(kind, "read_into", counted):
        assert fields_of(samples_of_each([WindowPlace(shard, np.arange(3))])[0]) == [{"cls": b"7"}] * 3
    assert read == [1024] * 3


def test_a_process_that_was_forked_does_not_write_into_its_parents_memory():
    memory = Scratch().at_least(10)
    memory[:6] = b"parent"
    child = multiprocessing.get_context("fork").Process(target=memory.__setitem__, args=(slice(0, 6), b"child!"))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert memory[:6] == b"parent"


@pytest.mark.parametrize(("starts", "sizes"), [([-1], [1]), ([0, 4], [5, 1]), ([4, 0], [1, 1]), ([0, 9], [1, 2])])
def test_pieces_outside_of_the_data_or_of_each_other_are_never_read(starts, sizes):
    with pytest.raises(ValueError, match="outside of 10 bytes"):
        windows_module._pieces(bytes(10), np.array(starts), np.array(sizes))
