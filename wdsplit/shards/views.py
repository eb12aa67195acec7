"""Stored views of a dataset: a file for each view, with the units of each shard.

`views/NAME@VERSION.view` is a line of JSON, a table of the shards, then arrays: the bitmaps; where samples come several
times, how often each selected sample comes; of packs or groups, the pack or the class of each item. Of a large view,
only what is needed of the arrays is read. Anyone may have made it, so sizes are compared with the dataset's before
memory is allocated.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, WdsplitError
from wdsplit.order.bundles import Grouping, Groups, Packing, Packs, Units, fewer_lanes, form_of, items_of
from wdsplit.order.limits import MAX_LANES
from wdsplit.order.packing import MAX_CAPACITY, MAX_SIZE
from wdsplit.order.selection import Selection, bitmap_bytes
from wdsplit.order.units import KINDS, MAX_TIMES, Repeats
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.stored import VERSION, Kind
from wdsplit.shards.view_parts import ViewParts, hash_of_part
from wdsplit.storage.interface import ReadableFile, ReadableStorage, Storage
from wdsplit.texts import counted, percent, quoted

__all__ = [
    "COMPARED_RANKS",
    "UNIT_OPTIONS",
    "VIEWS",
    "StoredView",
    "described_units",
    "lock_view",
    "parse_view",
    "read_view",
    "write_view",
]

COMPARED_RANKS = 8
"""Ranks of which the costs of a step are compared."""

UNIT_OPTIONS = ("pack", "capacity", "group", "size", "budget", "allow_pads", "long")
"""The options of units that have several samples each."""

_VERSION = 4
_COUNT = np.dtype("<i8")
_DIGEST_BYTES = 16
_MAX_HEAD_BYTES = 4 * 1024**2
"""Limit for the line of JSON, with a condition of up to 100,000 characters."""
_FIRST_BYTES = 16 * 1024
_MAX_SMALL_BYTES = 1024**3
"""A view of this size may be read whole in any case."""
_WHOLE_BYTES = 16 * 1024**2
"""A view up to this size is read whole: a request for each shard would take longer."""
_TYPES = {
    "dataset": str,
    "fingerprint": str,
    "num_samples": int,
    "num_selected": int,
    "num_units": int,
    "lanes": int,
    "kind": str,
    "form": dict,
    "widths": list,
    "recipe": dict,
}
_HASH = np.dtype("<u8")
_FORM_TYPES = {"block": int, "capacity": int, "truncates": bool, "size": int, "budget": int, "values": list}


@dataclass(frozen=True, repr=False)
class StoredView:
    """The header of a stored view.

    Attributes:
        name: Its name.
        dataset: The fingerprint of the dataset that it was made for.
        fingerprint: The fingerprint of its selection.
        num_samples: Number of samples of the dataset, without pads.
        num_selected: Number of samples in the view.
        num_units: Number of positions of an epoch: samples, each as often as it comes, or packs, or groups.
        lanes: Lanes of an epoch, unless others are given.
        kind: How samples come: `select`, `repeat` or `expand`.
        form: Of packs `capacity` and `truncates`, of groups `size`, `budget` and `values`, as of `Packing` and
            `Grouping`; and `block`, how many items are packed or grouped together. Else empty.
        widths: Bytes of an integer in each array after the bitmaps.
        recipe: How it was made, to show it or make it again: the options, by their names, and figures.
    """

    name: str
    dataset: str
    fingerprint: str
    num_samples: int
    num_selected: int
    num_units: int
    lanes: int
    kind: str
    form: Mapping[str, Any]
    widths: Sequence[int]
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<StoredView {self.summary}>"

    @property
    def noun(self) -> str:
        """What a unit with a form is called."""
        return "pack" if "capacity" in self.form else "group"

    @property
    def summary(self) -> str:
        """Its name, and what it has selected."""
        repeated = {"repeat": f", {self.num_units:,} with repetitions", "expand": f", {self.num_units:,} parts"}
        times = f", in {counted(self.num_units, self.noun)}" if self.form else repeated.get(self.kind, "")
        return f"{self.name!r}: {self.num_selected:,} of {self.num_samples:,} samples{times}"

    @property
    def made_of(self) -> str:
        """How it was made, as options of `wdsplit view` in one line."""
        words = []
        inners = {"view": "name", "keys": "from", "exclude": "from"}
        for name in ("view", "where", "keys", "exclude", "repeat", "expand", *UNIT_OPTIONS):
            value = self.recipe.get(name)
            text = value.get(inners.get(name, "")) if isinstance(value, dict) else value
            option = f"--{name.replace('_', '-')}"
            words += [] if text is None else [option] if text is True else [f"{option} {quoted(str(text))}"]
        return " ".join(words)


def described_units(units: Units, figures: Mapping[str, Any]) -> list[str]:
    """Say what packs or groups a view has, and how well they are filled; nothing if it has none.

    Args:
        units: The units of the view.
        figures: Some of `fill`, which share of the packs or padded groups is samples; `pads`, the samples repeated to
            fill groups; `num_long`, the samples that were too long, and are dropped or truncated; `imbalance`, how much
            the largest of the costs of eight ranks in a step is, on average, in means of all.
    """
    form = form_of(units)
    figures = {name: value for name, value in figures.items() if type(value) in (int, float)}  # anyone's file has them
    if form is None:
        return []
    lines = [f"{counted(units.num_samples, form.noun)} {form}"]
    if isinstance(form, Packing) and "fill" in figures:
        lines[0] += f", filled to {100 * figures['fill']:.1f} %"
    elif "fill" in figures:
        lines[0] += f", padded: at least {100 * figures['fill']:.1f} % is no padding"
    elif isinstance(form, Grouping):
        pads, every = figures.get("pads", 0), units.num_samples * form.size
        lines[0] += f", by {counted(len(form.values), 'value')}; {counted(pads, 'repeated sample')}"
        lines[0] += f" ({percent(pads, every)}) to fill them"
    if "imbalance" in figures:
        most = f"{figures['imbalance']:.2f} times the mean"
        lines.append(f"in a step of {COMPARED_RANKS} ranks, the largest sum of squared lengths is {most}")
    if figures.get("num_long"):
        is_cut = isinstance(form, Packing) and form.truncates
        lines.append(f"longer samples: {figures['num_long']:,} {'truncated' if is_cut else 'dropped'}")
    return lines


# Writing


@contextmanager
def lock_view(storage: Storage, name: str) -> Iterator[None]:
    """Keep other processes from making the same view; raises StorageError if one does."""
    path = f"{VIEWS.folder}/.{VIEWS.checked(name)}.lock"
    # The temporary files of other names belong to other views.
    own = re.compile(rf"\.{re.escape(name)}@{VERSION}{re.escape(VIEWS.suffix)}\.[^.]*\.tmp")
    with storage.lock(path):
        try:
            # what killed processes have left of this view; the files of others may be in use
            left = [f"{VIEWS.folder}/{each}" for each in storage.list(VIEWS.folder) if own.fullmatch(each)]
            storage.remove(*left)
            yield
        finally:
            if not storage.is_remote:
                storage.remove(path)
                VIEWS.remove_empty_folder(storage)


def write_view(storage: Storage, manifest: Manifest, name: str, units: Units, recipe: Mapping[str, Any]) -> StoredView:
    """Write a view of a version; an existing one of this name and version is replaced when the new one is complete.

    Args:
        storage: The dataset's folder.
        manifest: The version's manifest.
        name: The view's name.
        units: The units of each shard.
        recipe: How it was made, as JSON values.
    """
    chosen, items = units.chosen, items_of(units)
    columns, arrays = [chosen.counts], [chosen.bitmaps]
    form: dict[str, Any] = {}
    if isinstance(items, Repeats):
        columns.append(items.counts)
        arrays.append(items.times)
    if isinstance(units, (Packs, Groups)):
        given = units.form._asdict() | {"block": units.block}
        form = {name: [*value] if isinstance(value, tuple) else value for name, value in given.items()}
        columns.append(units.counts)
        arrays.append(units.codes)
    arrays[1:] = [each.astype(np.min_scalar_type(int(each.max(initial=0))).newbyteorder("<")) for each in arrays[1:]]
    stored = StoredView(
        name,
        manifest.fingerprint,
        units.fingerprint,
        int(units.totals.sum()),
        chosen.num_samples,
        units.num_samples,
        fewer_lanes(units, manifest.lanes, manifest.sample_bytes),
        items.kind if isinstance(items, Repeats) else "select",
        form,
        [array.itemsize for array in arrays[1:]],
        recipe,
    )
    head = orjson.dumps({"wdsplit_view": _VERSION} | {each: getattr(stored, each) for each in _TYPES})
    line = head + b" " * (-(len(head) + 1) % _COUNT.itemsize) + b"\n"  # so that the table is aligned
    data = [np.ascontiguousarray(array).view(np.uint8) for array in arrays]
    sizes = _part_sizes(stored, chosen.totals, columns)
    ends = np.cumsum(sizes, axis=1)
    places = zip((ends - sizes).T.tolist(), ends.T.tolist(), strict=True)
    hashes = [hash_of_part(each[b:e] for each, b, e in zip(data, *place, strict=True)) for place in places]
    table = b"".join([*(each.astype(_COUNT).tobytes() for each in columns), np.array(hashes, _HASH).tobytes()])
    with storage.publish(VIEWS.path(name, manifest.fingerprint), durable=True) as file:
        file.write([line, xxhash.xxh3_128_digest(line + table), table, *(each.data for each in data if len(each))])
    return stored


# Reading


def read_view(storage: ReadableStorage, manifest: Manifest, name: str, whole: bool = False) -> tuple[StoredView, Units]:
    """Return the view that was made for a version, and its units.

    A view of more than 16 MiB is read by parts, as shards are asked for, and each part is checked when it is read.

    Args:
        storage: The dataset's folder.
        manifest: The version's manifest.
        name: The view's name.
        whole: Read and check all of it.

    Raises:
        InputError: There is no such view, or it was made for another dataset.
        CorruptDataError: Its file is damaged.
    """
    path = VIEWS.path(name, manifest.fingerprint)
    totals = manifest.shards.num_real
    most = _MAX_HEAD_BYTES + 4 * _COUNT.itemsize * len(totals) + int((-(-totals // 8)).sum() + 8 * totals.sum())
    most = max(most, _MAX_SMALL_BYTES)  # samples that come very often have more packs than samples
    try:
        data = storage.read(path, most if whole else _WHOLE_BYTES)
    except DatasetNotFoundError:
        raise VIEWS.missing(storage, name, manifest) from None
    except CorruptDataError:  # it is larger
        if whole:
            raise
        return _open_view(storage, manifest, name, path)
    try:
        return parse_view(name, data, manifest)
    except WdsplitError as error:
        raise error.in_dataset(storage.url, path) from error


def parse_view(name: str, data: bytes, manifest: Manifest) -> tuple[StoredView, Units]:
    """Parse and check a view's whole file. Raises as `read_view` does."""
    stored, line = _head(name, data)
    _refuse_other(stored, manifest)
    totals, begin = manifest.shards.num_real, len(line)
    columns, _ = _table(stored, line, data[begin : begin + _table_bytes(stored, len(totals))], totals)
    begin += _table_bytes(stored, len(totals))
    arrays = []
    sizes = _part_sizes(stored, totals, columns).sum(axis=1).tolist()
    if begin + sum(sizes) != len(data):
        raise VIEWS.unreadable(name, f"{len(data):,} bytes instead of {begin + sum(sizes):,}")
    for dtype, size in zip(_types(stored), sizes, strict=True):
        arrays.append(np.frombuffer(data, dtype, size // dtype.itemsize, begin) if size else np.zeros(0, dtype))
        begin += size
    units = _checked(stored, totals, columns, arrays)
    _refuse_other_numbers(stored, units)
    if stored.fingerprint != units.fingerprint:
        raise VIEWS.unreadable(name, "bytes that were changed")
    return stored, units


def _open_view(storage: ReadableStorage, manifest: Manifest, name: str, path: str) -> tuple[StoredView, Units]:
    """Return a view of which the arrays are read later, by parts."""
    try:
        # It is larger than what is read first: so that is one request, which mostly has the table too.
        most = _FIRST_BYTES + 4 * _COUNT.itemsize * len(manifest.shards)
        stored, line, file, data = _read_line(storage, name, path, min(most, _WHOLE_BYTES))
        _refuse_other(stored, manifest)
        totals, num_bytes = manifest.shards.num_real, _table_bytes(stored, len(manifest.shards))
        if file.size < len(line) + num_bytes:
            raise VIEWS.unreadable(name, "a file that is cut off")
        if len(data) < len(line) + num_bytes:
            data = line + file.read(len(line), num_bytes)
        columns, hashes = _table(stored, line, data[len(line) : len(line) + num_bytes], totals)
        sizes, begin = _part_sizes(stored, totals, columns), len(line) + num_bytes
        if file.size != begin + int(sizes.sum()):
            raise VIEWS.unreadable(name, f"{file.size:,} bytes instead of {begin + int(sizes.sum()):,}")
        check = partial(_check_part, storage.url, path, stored, totals, columns, hashes)
        parts = ViewParts(storage, path, file, begin, _types(stored), sizes, check)
        units = _made(stored, totals, columns, parts.arrays, parts)
        _refuse_other_numbers(stored, units)
    except WdsplitError as error:
        raise error.in_dataset(storage.url, path) from error
    units.fingerprint = stored.fingerprint  # which the hash of the table covers, as the hashes of all parts
    return stored, units


def _read_head(storage: ReadableStorage, name: str, path: str) -> StoredView:
    """Read the header of a view, and little more of its file."""
    try:
        return _read_line(storage, name, path)[0]
    except (CorruptDataError, InputError) as error:
        raise error.in_dataset(storage.url, path) from error


def _read_line(
    storage: ReadableStorage, name: str, path: str, num_bytes: int = 0
) -> tuple[StoredView, bytes, ReadableFile, bytes]:
    """Return the header of a view, its line, the open file, and its first `num_bytes` bytes; 0 if it may have fewer."""
    file = storage.open(path)
    data = file.read(0, num_bytes or min(file.size, _FIRST_BYTES))
    if b"\n" not in data:
        data = file.read(0, min(file.size, _MAX_HEAD_BYTES))
    return *_head(name, data), file, data


def _head(name: str, data: bytes) -> tuple[StoredView, bytes]:
    """Return the header of a view, and its line."""
    line = data[: data.find(b"\n", 0, _MAX_HEAD_BYTES) + 1]
    try:
        head = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise VIEWS.unreadable(name, f"no line of JSON ({error})") from error
    version = head.get("wdsplit_view") if isinstance(head, dict) else None
    if version != _VERSION:
        raise VIEWS.unreadable(name, f"format version {version!r} instead of {_VERSION}")
    if any(type(head.get(key)) is not kind for key, kind in _TYPES.items()):
        raise VIEWS.unreadable(name, f"no JSON with {', '.join(_TYPES)}")
    stored = StoredView(name, **{key: head[key] for key in _TYPES})
    num_arrays = (stored.kind != "select") + bool(stored.form)
    if stored.kind not in KINDS or len(stored.widths) != num_arrays or not set(stored.widths) <= {1, 2, 4}:
        raise VIEWS.unreadable(name, f"units of kind {stored.kind!r}, with {len(stored.widths)} arrays")
    if not 1 <= stored.lanes <= MAX_LANES:
        raise VIEWS.unreadable(name, f"{stored.lanes:,} lanes")
    return stored, line


def _refuse_other(stored: StoredView, manifest: Manifest) -> None:
    """Refuse a file whose name says that it is for a version, if its content says otherwise."""
    if stored.dataset != manifest.fingerprint:
        raise VIEWS.unreadable(stored.name, f"a file for {stored.dataset}")


def _table_bytes(stored: StoredView, num_shards: int) -> int:
    return _DIGEST_BYTES + _COUNT.itemsize * num_shards * (2 + len(stored.widths))


def _table(stored: StoredView, line: bytes, data: bytes, totals: Int64) -> tuple[list[Int64], npt.NDArray[np.uint64]]:
    """Return the columns of a view's table, checked: what each array counts of each shard, and the parts' hashes."""
    if data[:_DIGEST_BYTES] != xxhash.xxh3_128_digest(line + data[_DIGEST_BYTES:]):
        raise VIEWS.unreadable(stored.name, "a file that is cut off, or bytes that were changed")
    *columns, hashes = np.frombuffer(data, _COUNT, offset=_DIGEST_BYTES).reshape(2 + len(stored.widths), len(totals))
    if ((columns[0] < 0) | (columns[0] > totals)).any():
        raise VIEWS.unreadable(stored.name, "other counts of samples")
    if stored.kind != "select" and ((columns[1] < columns[0]) | (columns[1] > columns[0] * MAX_TIMES)).any():
        raise VIEWS.unreadable(stored.name, f"samples that come never, or more than {MAX_TIMES:,} times")
    if stored.form and ((columns[-1] < 0) | (columns[-1] > columns[-2])).any():
        raise VIEWS.unreadable(stored.name, "more packs or groups than samples")
    return columns, hashes.view(_HASH)


def _types(stored: StoredView) -> list[np.dtype[Any]]:
    """Return the type of each array: bitmaps, times, codes."""
    return [np.dtype(np.uint8), *(np.dtype(f"<u{width}") for width in stored.widths)]


def _part_sizes(stored: StoredView, totals: Int64, columns: Sequence[Int64]) -> Int64:
    """Return the bytes of each shard in each array: int64 of shape (arrays, shards)."""
    numbers = zip(stored.widths, columns, strict=False)  # each array but the bitmaps has the units counted before it
    return np.stack([bitmap_bytes(totals, columns[0]), *(width * counts for width, counts in numbers)])


def _made(
    stored: StoredView, totals: Int64, columns: Sequence[Int64], arrays: Sequence[Any], parts: ViewParts | None = None
) -> Units:
    """Return the units of some shards; they are counted again, unless their parts are read later."""
    items: Selection | Repeats = Selection(totals, columns[0], arrays[0], None if parts is None else parts.load)
    if stored.kind != "select":
        items = Repeats(items.chosen, arrays[1], cast(Any, stored.kind), None if parts is None else columns[1])
    return _formed(stored, items, arrays[-1], None if parts is None else columns[-1]) if stored.form else items


def _checked(stored: StoredView, totals: Int64, columns: Sequence[Int64], arrays: Sequence[npt.NDArray[Any]]) -> Units:
    """Return the units of some shards, of which the arrays agree with the columns of the table."""
    times = arrays[1] if stored.kind != "select" else arrays[0][:0]
    if len(times) and not 1 <= times.min() <= times.max() <= MAX_TIMES:
        raise VIEWS.unreadable(stored.name, f"samples that come never, or more than {MAX_TIMES:,} times")
    units = _made(stored, totals, columns, arrays)
    items = units.base if isinstance(units, (Packs, Groups)) else units
    if not (
        np.array_equal(units.counts, columns[-1]) and np.array_equal(items.counts, columns[-1 - bool(stored.form)])
    ):
        raise VIEWS.unreadable(stored.name, "other counts of units")
    return units


def _check_part(
    url: str,
    path: str,
    stored: StoredView,
    totals: Int64,
    columns: Sequence[Int64],
    hashes: npt.NDArray[np.uint64],
    shard: int,
    arrays: Sequence[npt.NDArray[Any]],
) -> None:
    """Refuse what the arrays of a view have of a shard, if it is not what the table says."""
    own = slice(shard, shard + 1)
    try:
        if hash_of_part(arrays) != int(hashes[shard]):
            raise VIEWS.unreadable(stored.name, f"bytes that were changed, in the part of shard {shard}")
        units = _checked(stored, totals[own], [each[own] for each in columns], arrays)
        if not units.chosen.is_intact:
            raise VIEWS.unreadable(stored.name, f"another number of samples in shard {shard}")
    except CorruptDataError as error:
        raise error.in_dataset(url, path) from error


def _refuse_other_numbers(stored: StoredView, units: Units) -> None:
    found = int(units.totals.sum()), units.chosen.num_samples, units.num_samples
    if (stored.num_samples, stored.num_selected, stored.num_units) != found:
        raise VIEWS.unreadable(stored.name, "other numbers of samples")


def _formed(stored: StoredView, items: Selection | Repeats, codes: Any, counts: Int64 | None) -> Packs | Groups:
    """Return the packs or groups of a view; without `counts` they are counted, and their codes checked."""
    form, units = stored.form, cast(Packs | Groups | None, None)
    is_typed = all(type(value) is _FORM_TYPES.get(name) for name, value in form.items())
    if is_typed and form.keys() == {"block", "capacity", "truncates"}:
        if form["block"] >= 1 and 1 <= form["capacity"] <= MAX_CAPACITY:
            units = Packs(items, codes, form["block"], Packing(form["capacity"], form["truncates"]), counts)
    elif is_typed and form.keys() == {"block", "size", "budget", "values"}:
        grouping, block = Grouping(form["size"], form["budget"], tuple(form["values"])), form["block"]
        is_sized = 0 <= grouping.size <= MAX_SIZE and 0 <= grouping.budget <= MAX_CAPACITY
        has_values = grouping.size and (counts is not None or int(codes.max(initial=0)) < max(1, len(grouping.values)))
        if block >= 0 and is_sized and (grouping.budget or has_values):
            units = Groups(items, codes, block, grouping, counts)
            units = None if units.num_pads > items.num_samples else units
    if units is None:
        raise VIEWS.unreadable(stored.name, f"packs or groups as {reprlib.repr(dict(stored.form))}")
    return units


VIEWS = Kind(
    what="view",
    folder="views",
    suffix=".view",
    pattern=re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"),
    allowed="up to 100 letters, digits, '_', '-' and '.', not beginning with '-' or '.'",
    make="wdsplit view DATASET {name} ... --overwrite",
    again="`wdsplit view DATASET {name} --update`",
    read=_read_head,
    fingerprint=lambda view: view.dataset,
)
