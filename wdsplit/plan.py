"""The plan of a conversion: how many shards, and which rows each of them gets.

Pure (no I/O). A plan is a value made from the footers of the inputs and the options alone. Its hash names the run: what
a resumed run finds in place is only kept if it was written by the same plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import orjson
import xxhash

from wdsplit.encode import NULLS, Null
from wdsplit.errors import InputError
from wdsplit.manifest import FORMAT_VERSION, Field
from wdsplit.order import MAX_LANES, MAX_SEED, MAX_WINDOW

__all__ = [
    "PADS",
    "InputFile",
    "Pad",
    "Plan",
    "PlanOptions",
    "Span",
    "default_window",
    "make_plan",
    "task_spans",
]

Pad = Literal["repeat", "drop", "none"]
PADS: tuple[Pad, ...] = ("repeat", "drop", "none")

DEFAULT_SHARD_BYTES = 256_000_000
MIN_LANES = 16
_MAX_LANES = 64
_WINDOW_BYTES = 8 * 1024**2
_MIN_WINDOW, _MAX_WINDOW = 16, 1024
_MEMBER_OVERHEAD_BYTES = 512 + 256
"""A header, and on average half a block of padding."""
_REREAD_GROUPS = 4
_MAX_COUNT = 2**53
"""What JSON numbers hold exactly."""


@dataclass(frozen=True)
class InputFile:
    """An input table, as its footer tells it.

    Attributes:
        path: Where it is.
        num_bytes: Size of the file.
        num_rows: Rows in all.
        row_groups: Rows of each row group.
        data_bytes: Uncompressed size of its columns.
        footer: Checksum of the footer, which holds the offsets and statistics of every column.
        modified_ns: When it was last written; not part of what names a plan, as copies may differ in it.
    """

    path: str
    num_bytes: int
    num_rows: int
    row_groups: tuple[int, ...]
    data_bytes: int
    footer: str
    modified_ns: int = 0


@dataclass(frozen=True)
class PlanOptions:
    """How to cut a table into shards.

    Attributes:
        world_size: Ranks to make shards for; the number of shards is a multiple of world_size x workers.
        workers: Worker processes of each rank; 0 counts as 1.
        shards: The number of shards, or None to derive it.
        samples_per_shard: Samples of a shard, at most, or None.
        shard_size: Bytes of a shard, about, or None for 256 MB.
        lanes: Lanes of the order (C), or None for world_size x workers, multiplied up to at least 16.
        window: Samples of a window (Q), or None for those that make about 8 MiB.
        pad: repeat makes all shards equal by repeating samples, drop by leaving out what is over, none leaves +-1.
        null: What a null value becomes: error, omit (no member) or empty (a member of no bytes).
        shuffle: Put the rows of the whole table into a random order.
        seed: What that order depends on.
    """

    world_size: int = 1
    workers: int = 1
    shards: int | None = None
    samples_per_shard: int | None = None
    shard_size: int | None = None
    lanes: int | None = None
    window: int | None = None
    pad: Pad = "repeat"
    null: Null = "error"
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        bounds = {
            "world_size": (1, MAX_LANES),
            "workers": (0, MAX_LANES),
            "shards": (1, _MAX_COUNT),
            "samples_per_shard": (1, _MAX_COUNT),
            "shard_size": (1, _MAX_COUNT),
            "lanes": (1, MAX_LANES),
            "window": (1, MAX_WINDOW),
            "seed": (0, MAX_SEED),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                bound = f"at least {low}" if value < low else f"at most {high}"
                problems.append(f"{name} = {value}: expected {bound}")
        sizings = [name for name in ("shards", "samples_per_shard", "shard_size") if getattr(self, name) is not None]
        if len(sizings) > 1:
            problems.append(f"{' and '.join(sizings)} contradict each other: give one")
        if self.pad not in PADS:
            problems.append(f"pad = {self.pad!r}: expected one of {', '.join(PADS)}")
        if self.null not in NULLS:
            problems.append(f"null = {self.null!r}: expected one of {', '.join(NULLS)}")
        if problems:
            raise InputError("the options cannot be", found="; ".join(problems))

    @property
    def readers(self) -> int:
        """Readers in all: world_size x workers."""
        return self.world_size * max(1, self.workers)


@dataclass(frozen=True)
class Span:
    """Shards first, first + 1, ..., stop - 1: one task writes them in one pass over their rows."""

    first: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """A conversion, decided.

    Attributes:
        inputs: The input files, in order; their rows are numbered through.
        fields: The fields of each sample, in order.
        key: The key column, or None to number the rows.
        options: What was asked for.
        num_shards: Shards (S).
        lanes: Lanes (C).
    """

    inputs: tuple[InputFile, ...]
    fields: tuple[Field, ...]
    key: str | None
    options: PlanOptions
    num_shards: int
    lanes: int

    @property
    def columns(self) -> list[str]:
        """The columns that are read, each once."""
        return list(dict.fromkeys([field.column for field in self.fields] + ([self.key] if self.key else [])))

    @cached_property
    def num_rows(self) -> int:
        """Rows of all inputs."""
        return sum(file.num_rows for file in self.inputs)

    @cached_property
    def num_samples(self) -> int:
        """Samples that will be written, pads left out."""
        if self.options.pad == "drop":
            return self.num_rows // self.num_shards * self.num_shards
        return self.num_rows

    @property
    def num_dropped(self) -> int:
        """Rows at the end of the table that are left out, to make the shards equal."""
        return self.num_rows - self.num_samples

    @property
    def num_pads(self) -> int:
        """Pads that will be written."""
        return -self.num_samples % self.num_shards if self.options.pad == "repeat" else 0

    def rows(self, shard: int) -> tuple[int, int]:
        """Return the first row of a shard and the row after its last; the first shards are those with one more.

        With `shuffle` these are places in the shuffled table.
        """
        each, rest = divmod(self.num_samples, self.num_shards)
        first = shard * each + min(shard, rest)
        return first, first + each + (shard < rest)

    def pad_row(self, shard: int) -> int | None:
        """Return the row that a shard repeats as its pad: its own first one if it has any; None if it needs no pad."""
        rest = self.num_samples % self.num_shards
        if self.options.pad != "repeat" or rest == 0 or shard < rest:
            return None
        first, stop = self.rows(shard)
        return first if first < stop else shard % self.num_rows

    def summary(self) -> dict[str, Any]:
        """Return what the plan decides, as plain JSON values."""
        first, stop = self.rows(0)
        return {
            "plan": self.hash,
            "modified": self.modified,
            "inputs": len(self.inputs),
            "rows": self.num_rows,
            "shards": self.num_shards,
            "samples_per_shard": stop - first,
            "pads": self.num_pads,
            "dropped": self.num_dropped,
            "lanes": self.lanes,
            "key": self.key,
            "fields": [dataclasses.asdict(field) for field in self.fields],
        }

    @cached_property
    def modified(self) -> str:
        """A hash of when the inputs were last written: a run is not resumed on inputs that were written anew."""
        return xxhash.xxh3_128_hexdigest(orjson.dumps([file.modified_ns for file in self.inputs]))

    @cached_property
    def hash(self) -> str:
        """What names the run: a hash of all that decides the dataset.

        Files count by base name, size and footer, so that a run can be resumed from another folder.
        """
        content = {
            "format": FORMAT_VERSION,
            "inputs": [
                (file.path.rpartition("/")[2], file.num_bytes, file.num_rows, file.row_groups, file.footer)
                for file in self.inputs
            ],
            "fields": [dataclasses.asdict(field) for field in self.fields],
            "key": self.key,
            "null": self.options.null,
            "pad": self.options.pad,
            "shards": self.num_shards,
            "lanes": self.lanes,
            "window": self.options.window,
            "shuffle": self.options.seed if self.options.shuffle else None,
        }
        return xxhash.xxh3_128_hexdigest(orjson.dumps(content))


def make_plan(inputs: Sequence[InputFile], fields: Sequence[Field], key: str | None, options: PlanOptions) -> Plan:
    """Decide a conversion.

    Raises:
        InputError: There are no rows, or the options cannot be met.
    """
    num_rows = sum(file.num_rows for file in inputs)
    if not num_rows:
        raise InputError(
            "the input has no rows",
            place=", ".join(file.path for file in inputs[:3]) + (", ..." if len(inputs) > 3 else ""),
            expected="at least one row",
            remedy="check the input; an empty dataset cannot be trained on",
        )
    readers = options.readers
    lanes = options.lanes or readers * -(-MIN_LANES // readers)
    if options.shards is not None:
        num_shards = _given_shards(options.shards, readers)
    else:
        num_shards = _derived_shards(inputs, len(fields), options, lanes)
    if options.lanes is None:
        lanes = _lanes_for(num_shards, readers, lanes)
    if options.pad != "repeat" and num_shards > num_rows:
        if options.shards is not None or readers > num_rows:
            raise InputError(
                f"there are more shards than rows, and --pad {options.pad} cannot fill them",
                expected=f"at most {num_rows} shards",
                found=f"{num_shards if options.shards is not None else readers}",
                remedy="use --pad repeat, fewer --shards, or a smaller --world-size x --workers",
            )
        num_shards = num_rows // readers * readers
        lanes = options.lanes or num_shards
    return Plan(tuple(inputs), tuple(fields), key, options, num_shards, lanes)


def _given_shards(shards: int, readers: int) -> int:
    if shards % readers:
        near = [n for n in (shards // readers * readers, (shards // readers + 1) * readers) if n]
        raise InputError(
            "the number of shards is not a multiple of world_size x workers",
            expected=f"a multiple of {readers}, such as {' or '.join(map(str, near))}",
            found=str(shards),
            remedy="change --shards, or --world-size and --workers",
        )
    return shards


def _lanes_for(num_shards: int, readers: int, default: int) -> int:
    """Return lanes that divide the shards, so that lanes are whole shards, if there are such near the default."""
    for lanes in range(default, max(default, _MAX_LANES) + 1, readers):
        if num_shards % lanes == 0:
            return lanes
    return num_shards if num_shards < default else default


def _derived_shards(inputs: Sequence[InputFile], num_fields: int, options: PlanOptions, lanes: int) -> int:
    num_rows = sum(file.num_rows for file in inputs)
    if options.samples_per_shard is not None:
        return _round_up(-(-num_rows // options.samples_per_shard), options.readers)
    data_bytes = sum(file.data_bytes for file in inputs) + num_rows * num_fields * _MEMBER_OVERHEAD_BYTES
    shards = -(-data_bytes // (options.shard_size or DEFAULT_SHARD_BYTES))
    return _round_up(shards, math.lcm(lanes, options.readers) if options.shard_size is None else options.readers)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def default_window(num_bytes: int, num_samples: int) -> int:
    """Return the samples of a window (Q) that make about 8 MiB, one ranged read: 16 to 1,024 of them."""
    sample_bytes = max(1, num_bytes // max(1, num_samples))
    return min(_MAX_WINDOW, max(_MIN_WINDOW, _WINDOW_BYTES // sample_bytes))


def task_spans(plan: Plan, jobs: int, shards: Sequence[int]) -> list[Span]:
    """Group the shards that are still to be written into tasks.

    A task reads its row groups from their beginning. Where row groups are larger than shards, neighbours share a task,
    so that little is read twice; but each job has something to do. What is written does not depend on it.

    Args:
        plan: The plan.
        jobs: Processes, at least 1.
        shards: The shards still to be written, rising.
    """
    largest = max(max(file.row_groups, default=0) for file in plan.inputs)
    each = max(1, plan.num_samples // plan.num_shards)
    want = max(1, -(-_REREAD_GROUPS * largest // each)) if largest > each else 1
    length = min(want, -(-len(shards) // jobs)) if shards else 1
    spans: list[Span] = []
    for shard in shards:
        if spans and spans[-1].stop == shard and shard - spans[-1].first < length:
            spans[-1] = Span(spans[-1].first, shard + 1)
        else:
            spans.append(Span(shard, shard + 1))
    return spans
