"""Stored views of a dataset: a file for each view, with the units of each shard.

`views/NAME.view` is a line of JSON, then the number of selected samples of each shard, then the bitmaps. Where samples
come several times, it goes on with how often each selected sample comes; of packs or groups, with the pack or the class
of each item. A local file is memory-mapped. Anyone may have made it, so its size is compared with the dataset's before
memory is allocated.
"""

from __future__ import annotations

import mmap
import os
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from wdsplit.errors import DatasetNotFoundError, InputError, WdsplitError
from wdsplit.order.bundles import Grouping, Groups, Packing, Packs, Units, fewer_lanes, form_of, items_of
from wdsplit.order.limits import MAX_LANES
from wdsplit.order.packing import MAX_CAPACITY, MAX_SIZE
from wdsplit.order.selection import Selection, bitmap_bytes
from wdsplit.order.units import KINDS, MAX_TIMES, Repeats
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.stored import AT_VERSION, Kind
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.local import LocalStorage
from wdsplit.texts import Brief, counted, percent, quoted

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

_VERSION = 3
_COUNT = np.dtype("<i8")
_MAX_HEAD_BYTES = 4 * 1024**2
"""Limit for the line of JSON, with a condition of up to 100,000 characters."""
_FIRST_BYTES = 16 * 1024
_MAX_SMALL_BYTES = 1024**3
"""A remote view of this size is read in any case."""
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
_FORM_TYPES = {"block": int, "capacity": int, "truncates": bool, "size": int, "budget": int, "values": list}


@dataclass(frozen=True, repr=False)
class StoredView(Brief):
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
    own = re.compile(rf"\.{re.escape(name)}({AT_VERSION})?{re.escape(VIEWS.suffix)}\.[^.]*\.tmp")
    with storage.lock(path):
        try:
            # what killed processes have left of this view; the files of others may be in use
            left = [f"{VIEWS.folder}/{each}" for each in storage.list(VIEWS.folder) if own.fullmatch(each)]
            storage.remove(*left)
            yield
        finally:
            if not storage.is_remote:
                storage.remove(path)
                with suppress(OSError):  # there are views, or another process has started
                    os.rmdir(os.path.join(storage.url, VIEWS.folder))


def write_view(
    storage: Storage, manifest: Manifest, name: str, units: Units, recipe: Mapping[str, Any], path: str = ""
) -> StoredView:
    """Write a view; an existing view of this name is replaced when the new one is complete.

    Args:
        storage: The dataset's folder.
        manifest: Its manifest.
        name: The view's name.
        units: The units of each shard.
        recipe: How it was made, as JSON values.
        path: The path of its file, if that is for one version.
    """
    path, chosen, items = path or VIEWS.path(name), units.chosen, items_of(units)
    arrays = [items.times] if isinstance(items, Repeats) else []
    form: dict[str, Any] = {}
    if isinstance(units, (Packs, Groups)):
        given = units.form._asdict() | {"block": units.block}
        form = {name: [*value] if isinstance(value, tuple) else value for name, value in given.items()}
        arrays.append(units.codes)
    arrays = [array.astype(np.min_scalar_type(int(array.max(initial=0))).newbyteorder("<")) for array in arrays]
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
        [array.itemsize for array in arrays],
        recipe,
    )
    head = orjson.dumps({"wdsplit_view": _VERSION} | {each: getattr(stored, each) for each in _TYPES})
    line = head + b" " * (-(len(head) + 1) % _COUNT.itemsize) + b"\n"  # so that the counts are aligned
    with storage.publish(path, durable=True) as file:
        file.write([line, chosen.counts.astype(_COUNT).data.cast("B"), np.ascontiguousarray(chosen.bitmaps).data])
        file.write([array.data.cast("B") for array in arrays if len(array)])
    return stored


# Reading


def read_view(storage: ReadableStorage, manifest: Manifest, name: str) -> tuple[StoredView, Units]:
    """Return the view that was made for a version, and its units; a local view is memory-mapped, not read.

    Args:
        storage: The dataset's folder.
        manifest: The version's manifest.
        name: The view's name.

    Raises:
        InputError: There is no such view, or it was made for another dataset.
        CorruptDataError: Its file is damaged.
    """
    try:
        return _read_view(storage, manifest, name, VIEWS.path(name))
    except InputError:
        older = VIEWS.path_of_version(name, manifest.fingerprint)
        if storage.size(VIEWS.path(name)) is None or storage.size(older) is None:
            raise
        return _read_view(storage, manifest, name, older)


def _read_view(storage: ReadableStorage, manifest: Manifest, name: str, path: str) -> tuple[StoredView, Units]:
    totals = manifest.shards.num_real
    most = _MAX_HEAD_BYTES + _COUNT.itemsize * len(totals) + int((-(-totals // 8)).sum() + 8 * totals.sum())
    most = max(most, _MAX_SMALL_BYTES)  # samples that come very often have more packs than samples
    try:
        if isinstance(storage, LocalStorage) and not storage.has_latency:
            data: mmap.mmap | bytes = storage.map(path)
        else:
            data = storage.read(path, most)
    except DatasetNotFoundError:
        raise VIEWS.unknown(storage, name) from None
    try:
        found = parse_view(name, data, manifest)
    except WdsplitError as error:
        raise error.in_dataset(storage.url, path) from error
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED)  # the check has read all; an epoch maps its parts again
    return found


def _read_head(storage: ReadableStorage, name: str, path: str) -> StoredView:
    """Read the header of a view, and little more of its file."""
    try:
        file = storage.open(path)
        data = file.read(0, min(file.size, _FIRST_BYTES))
        if b"\n" not in data:
            data = file.read(0, min(file.size, _MAX_HEAD_BYTES))
        return _head(name, data)[0]
    except DatasetNotFoundError:
        raise VIEWS.unknown(storage, name) from None
    except WdsplitError as error:
        raise error.in_dataset(storage.url, path) from error


def _head(name: str, data: mmap.mmap | bytes) -> tuple[StoredView, int]:
    """Return the header of a view, and its size in bytes."""
    num_bytes = data.find(b"\n", 0, _MAX_HEAD_BYTES) + 1
    try:
        head = orjson.loads(data[:num_bytes])
    except orjson.JSONDecodeError as error:
        raise VIEWS.unreadable(name, f"no line of JSON ({error})") from error
    version = head.get("wdsplit_view") if isinstance(head, dict) else None
    if version != _VERSION:
        raise VIEWS.unreadable(name, f"format version {version!r} instead of {_VERSION}")
    if any(type(head.get(key)) is not kind for key, kind in _TYPES.items()):
        raise VIEWS.unreadable(name, f"no JSON with {', '.join(_TYPES)}")
    return StoredView(name, **{key: head[key] for key in _TYPES}), num_bytes


def parse_view(name: str, data: mmap.mmap | bytes, manifest: Manifest) -> tuple[StoredView, Units]:
    """Parse and check a view's whole file; its bitmaps stay in `data`. Raises as `read_view` does."""
    stored, num_bytes = _head(name, data)
    VIEWS.refuse_stale(name, stored.dataset, manifest, stored.made_of[:1000])
    return stored, _units(memoryview(data)[num_bytes:], stored, manifest.shards.num_real)


def _units(data: memoryview, stored: StoredView, totals: npt.NDArray[np.int64]) -> Units:
    """Return the units of a view, checked against its header and the dataset's counts."""
    count_bytes = _COUNT.itemsize * len(totals)
    if len(data) < count_bytes:
        raise VIEWS.unreadable(stored.name, "a file that is cut off")
    counts = np.frombuffer(data[:count_bytes], _COUNT)
    if ((counts < 0) | (counts > totals)).any():
        raise VIEWS.unreadable(stored.name, "other counts of samples")
    widths = stored.widths
    has_times, has_codes = stored.kind != "select", bool(stored.form)
    if stored.kind not in KINDS or len(widths) != has_times + has_codes or not set(widths) <= {1, 2, 4}:
        raise VIEWS.unreadable(stored.name, f"units of kind {stored.kind!r}, with {len(widths)} arrays")
    if not 1 <= stored.lanes <= MAX_LANES:
        raise VIEWS.unreadable(stored.name, f"{stored.lanes:,} lanes")
    rest = data[count_bytes:]

    def taken(num_bytes: int) -> memoryview:
        nonlocal rest
        if len(rest) < num_bytes:
            raise VIEWS.unreadable(stored.name, "a file that is cut off")
        part, rest = rest[:num_bytes], rest[num_bytes:]
        return part

    bitmaps = np.frombuffer(taken(int(bitmap_bytes(totals, counts).sum())), np.uint8)
    items: Selection | Repeats = Selection(totals, counts, bitmaps)
    if has_times:
        times = np.frombuffer(taken(widths[0] * items.num_samples), f"<u{widths[0]}")
        if len(times) and not 1 <= times.min() <= times.max() <= MAX_TIMES:
            raise VIEWS.unreadable(stored.name, f"samples that come never, or more than {MAX_TIMES:,} times")
        items = Repeats(items.chosen, times, stored.kind)
    units: Units = items
    if has_codes:
        units = _formed(stored, items, np.frombuffer(taken(widths[-1] * items.num_samples), f"<u{widths[-1]}"))
    if rest:
        raise VIEWS.unreadable(stored.name, f"{len(rest):,} bytes too many")
    found = int(totals.sum()), units.chosen.num_samples, units.num_samples
    if (stored.num_samples, stored.num_selected, stored.num_units) != found:
        raise VIEWS.unreadable(stored.name, "other numbers of samples")
    if stored.fingerprint != units.fingerprint:
        raise VIEWS.unreadable(stored.name, "bytes that were changed")
    return units


def _formed(stored: StoredView, items: Selection | Repeats, codes: npt.NDArray[Any]) -> Packs | Groups:
    """Return the packs or groups of a view; no shard has more of them than items."""
    form, units = stored.form, cast(Packs | Groups | None, None)
    is_typed = all(type(value) is _FORM_TYPES.get(name) for name, value in form.items())
    if is_typed and form.keys() == {"block", "capacity", "truncates"}:
        if form["block"] >= 1 and 1 <= form["capacity"] <= MAX_CAPACITY:
            units = Packs(items, codes, form["block"], Packing(form["capacity"], form["truncates"]))
    elif is_typed and form.keys() == {"block", "size", "budget", "values"}:
        grouping, block = Grouping(form["size"], form["budget"], tuple(form["values"])), form["block"]
        is_sized = 0 <= grouping.size <= MAX_SIZE and 0 <= grouping.budget <= MAX_CAPACITY
        has_values = grouping.size and int(codes.max(initial=0)) < max(1, len(grouping.values))
        if block >= 0 and is_sized and (grouping.budget or has_values):
            units = Groups(items, codes, block, grouping)
            units = None if units.num_pads > items.num_samples else units
    if units is None or (units.counts > items.counts).any():
        raise VIEWS.unreadable(stored.name, f"packs or groups as {reprlib.repr(dict(stored.form))}")
    return units


VIEWS = Kind(
    "view",
    "views",
    ".view",
    re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"),
    "up to 100 letters, digits, '_', '-' and '.', not beginning with '-' or '.'",
    "wdsplit view DATASET {name} {how} --overwrite",
    _read_head,
    lambda view: view.dataset,
    "wdsplit view DATASET {name} --update",
)
