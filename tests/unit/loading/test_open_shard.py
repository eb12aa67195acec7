"""Windows read together are those read alone; so are large samples, of which only the headers are read."""

import multiprocessing
import tarfile
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tars import archives, by_tarfile
from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading import ranges
from wdsplit.loading.reading import read_windows as read_windows_module
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.read_windows import Scratch, WindowPlace, read_window, read_windows
from wdsplit.shards.manifest import Shard
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.samples import group_samples
from wdsplit.tar.scan import scan_tar

reading = pytest.mark.parametrize("is_large", [False, True], ids=["at once", "headers only"])


def as_large(is_large):
    """Let samples be taken for large ones, whatever their size."""
    return patch.object(read_windows_module, "_SMALL_SAMPLE_BYTES", 0 if is_large else 16_384)


def open_tar(folder, data, name="a"):
    """Return a tar, with the index that it should have, as an open shard."""
    samples = group_samples(scan_tar(memoryview(data)))
    (folder / f"{name}.tar").write_bytes(data)
    (folder / f"{name}.tar.idx").write_bytes(samples.offsets.astype("<u8").tobytes())
    return open_shard(LocalStorage(str(folder)), Shard(f"{name}.tar", len(samples.keys), 0, len(data), ""))


def samples_of(window):
    return samples_in(window, range(len(window)))


def samples_in(window, rows, url=None):
    samples = window.take(rows, range(len(rows)), [False] * len(rows))
    return [{**sample, "__url__": url or sample["__url__"]} for sample in samples]


def samples_of_each(places, fields=None):
    """Return the samples of each of some windows that are read together."""
    parts = read_windows(places, fields)
    sizes = [place.num_samples for place in places]
    return [samples_in(window, range(first, first + size)) for (window, first), size in zip(parts, sizes, strict=True)]


def place(shard):
    return WindowPlace(shard, 0, len(shard.offsets) - 1)


def fetched(place):
    """Return the bytes of a window, as if they had been fetched."""
    ranges = place.shard.ranges(place.first, place.stop, place.chosen)
    return memoryview(b"".join(place.shard.file.read(begin, end - begin) for begin, end in ranges))


FIELDS = st.sampled_from([None, ["jpg"], ["cls", "json"], []])


def chosen_of(data, first, stop):
    """Draw which samples of a window are read: the first, the last and some of those between; None for all."""
    between = data.draw(st.none() | st.lists(st.booleans(), min_size=stop - first, max_size=stop - first))
    if between is None:
        return None
    return np.array([s for s, kept in enumerate(between, first) if kept or s in (first, stop - 1)])


@settings(max_examples=40)
@given(st.lists(archives(min_samples=1), min_size=1, max_size=4), st.booleans(), FIELDS, st.data())
def test_windows_that_are_read_together_are_those_read_alone(tmp_path_factory, built, is_large, fields, data):
    folder = tmp_path_factory.mktemp("shards")
    shards = [open_tar(folder, one.data, f"{number}") for number, one in enumerate(built)]
    places, expected = [], []
    for shard, one in zip(shards, built, strict=True):
        first = data.draw(st.integers(0, len(one.samples) - 1))
        stop = data.draw(st.integers(first + 1, len(one.samples)))
        chosen = chosen_of(data, first, stop)
        places.append(WindowPlace(shard, first, stop, None, chosen))
        rows = range(first, stop) if chosen is None else chosen.tolist()
        members = [{name.partition(".")[2]: value for name, value in one.samples[row]} for row in rows]
        expected.append([{k: v for k, v in sample.items() if fields is None or k in fields} for sample in members])
    with as_large(is_large):
        found = samples_of_each(places, fields)
        windows = [read_windows([place], fields)[0].window for place in places]
        assert found == [samples_of(window) for window in windows]
        for place, samples in zip(places, found, strict=True):
            if place.chosen is None:
                assert samples == samples_of(read_window(place.shard, place.first, place.stop, fields))
        at_hand = [place._replace(data=fetched(place)) for place in places]
        assert samples_of_each(at_hand, fields) == found
        assert [samples_of_each([each], fields)[0] for each in at_hand] == found
    for window, own, (shard, *_), samples in zip(windows, found, places, expected, strict=True):
        assert [{k: v for k, v in sample.items() if k[:2] != "__"} for sample in own] == samples
        assert {sample["__url__"] for sample in own} == {shard.url}
        assert window.sizes.tolist() == [sum(map(len, s.values())) for s in samples]


NAMES = [f"{key}.{field}" for key in ("a", "b", "c") for field in ("jpg", "cls")]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("lead", ["", "./", "d" * 60 + "/" + "n" * 60])
def test_large_samples_in_tars_of_others_are_found_whatever_their_headers(tmp_path, format, lead):
    """Plain ones, times in extended headers, names in extended headers, and the last member at the end of the file."""
    data = by_tarfile([(lead + name, name.encode() * 300) for name in NAMES], format, mtime=1.5)
    data = data[: scan_tar(memoryview(data)).end]
    shard = open_tar(tmp_path, data)
    with as_large(True):
        samples = samples_of(read_window(shard, 0, 3))
    assert samples == samples_of(read_window(shard, 0, 3))
    assert [sample["jpg"] for sample in samples] == [f"{key}.jpg".encode() * 300 for key in "abc"]
    assert [sample["cls"] for sample in samples] == [f"{key}.cls".encode() * 300 for key in "abc"]


@reading
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1024, 5000])
def test_payloads_of_any_size_around_a_block_are_whole(tmp_path, size, is_large):
    members = [(f"{key}.{field}", (key + field).encode() * size) for key in "ab" for field in ("x", "y", "z")]
    shard = open_tar(tmp_path, by_tarfile(members, tarfile.USTAR_FORMAT))
    with as_large(is_large):
        samples = samples_of(read_window(shard, 0, 2))
    assert [{k: v for k, v in sample.items() if k[:2] != "__"} for sample in samples] == [
        {field: (key + field).encode() * size for field in ("x", "y", "z")} for key in "ab"
    ]


@reading
@pytest.mark.parametrize("offset", [0, 124, 148, 156, 300])
def test_a_damaged_header_is_that_of_its_shard_also_among_others(tmp_path, offset, is_large):
    data = bytearray(by_tarfile([(name, b"x" * 700) for name in NAMES], tarfile.USTAR_FORMAT))
    good, bad = open_tar(tmp_path, data, "good"), open_tar(tmp_path, data, "bad")
    second = int(bad.offsets[1])
    data[second + offset] ^= 1
    (tmp_path / "bad.tar").write_bytes(data)
    with as_large(is_large), pytest.raises(CorruptDataError) as caught:
        read_windows([place(good), place(bad), place(good)])
    assert caught.value.url == bad.url
    assert caught.value.offset == second
    with as_large(is_large), pytest.raises(CorruptDataError) as caught:
        read_windows([place(good), WindowPlace(bad, 1, 3, None, np.array([1, 2]))])
    assert (caught.value.url, caught.value.offset) == (bad.url, second)
    with as_large(is_large):
        assert samples_of(read_windows([WindowPlace(bad, 0, 1)])[0].window) == samples_of(read_window(bad, 0, 1))
        around = WindowPlace(bad, 0, 3, None, np.array([0, 2]))
        assert samples_of(read_windows([around])[0].window) == samples_in(read_window(good, 0, 3), [0, 2], bad.url)


@reading
def test_a_damaged_header_behind_a_gap_is_where_it_is_in_its_shard(tmp_path, is_large):
    data = bytearray(by_tarfile([(name, b"x" * 700) for name in NAMES], tarfile.USTAR_FORMAT))
    shard = open_tar(tmp_path, data)
    third = int(shard.offsets[2])
    data[third] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    two = WindowPlace(shard, 0, 3, None, np.array([0, 2]))
    with patch.object(ranges, "MIN_GAP_BYTES", 0), as_large(is_large), pytest.raises(CorruptDataError) as caught:
        assert len(shard.ranges(0, 3, two.chosen)) == 2
        read_windows([two])
    assert (caught.value.url, caught.value.offset) == (shard.url, third)


@reading
def test_a_shard_that_becomes_shorter_while_it_is_read_is_told(tmp_path, is_large):
    data = by_tarfile([(name, b"x" * 700) for name in NAMES], tarfile.USTAR_FORMAT)
    shard = open_tar(tmp_path, data)
    (tmp_path / "a.tar").write_bytes(data[: int(shard.offsets[2])])
    with as_large(is_large), pytest.raises(CorruptDataError, match="shorter"):
        samples_of(read_window(shard, 0, 3))


@reading
def test_what_is_not_wanted_is_not_read(tmp_path, is_large):
    """Of large samples: of small ones all is read, since that costs less."""
    shard = open_tar(tmp_path, by_tarfile([(name, b"x" * 5000) for name in NAMES], tarfile.USTAR_FORMAT))
    read = []
    with (
        as_large(is_large),
        patch.object(
            type(shard.file), "read", lambda file, offset, size: read.append(size) or bytes_at(tmp_path, offset, size)
        ),
    ):
        window = read_window(shard, 0, 3, fields=())
        assert [names for _, names in window.field_names()] == [["jpg", "cls"]]
        assert window.keys.tolist() == ["a", "b", "c"]
        assert samples_of(window)[0].keys() == {"__key__", "__url__", "__position__", "__pad__"}
    assert read == ([1024] * 6 if is_large else [])


def bytes_at(folder, offset, size):
    return (folder / "a.tar").read_bytes()[offset : offset + size]


@reading
def test_a_size_of_twelve_digits_is_read_as_one(tmp_path, is_large):
    """Usually a NUL follows eleven digits, but some programs use its place."""
    data = bytearray(by_tarfile([("a.x", b"1" * 700)], tarfile.USTAR_FORMAT))
    data[124:136] = b"%012o" % 700
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * ord(" ") + sum(data[156:512]))
    with as_large(is_large):
        assert samples_of(read_window(open_tar(tmp_path, data), 0, 1))[0]["x"] == b"1" * 700


def test_a_process_that_was_forked_does_not_write_into_its_parents_memory():
    memory = Scratch().at_least(10)
    memory[:6] = b"parent"
    child = multiprocessing.get_context("fork").Process(target=memory.__setitem__, args=(slice(0, 6), b"child!"))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert memory[:6] == b"parent"
