"""The options of a conversion: the one definition of their names, defaults and checks, and of what they mean.

Pure (no I/O). The command line takes its options from these fields: its help is what the docstrings say of them, where
`name` is another option. What contradicts itself is refused here, before any input is opened.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from wdsplit.errors import InputError
from wdsplit.fields.nulls import NULLS, Null
from wdsplit.order.limits import MAX_LANES, MAX_SEED, MAX_WINDOW
from wdsplit.shards.emit import check_emit

__all__ = [
    "PADS",
    "PASSES",
    "ConvertOptions",
    "IndexOptions",
    "Pad",
    "Pass",
    "PlanOptions",
    "attribute_texts",
    "invalid_values",
    "raise_if_any",
    "same_as",
]

Pad = Literal["repeat", "drop", "none"]
PADS: tuple[Pad, ...] = ("repeat", "drop", "none")

Pass = Literal["scatter", "merge", "write"]
PASSES: tuple[Pass, ...] = ("scatter", "merge", "write")
"""The passes of a conversion in their order; rows that keep their order need the last alone."""

_MAX_COUNT = 2**53
"""What JSON numbers hold exactly."""


def _integer(default: int | None, low: int, high: int = _MAX_COUNT) -> Any:
    """Return a field that holds an integer from low to high, or its default."""
    return field(default=default, metadata={"low": low, "high": high})


def same_as(options: type, name: str) -> Any:
    """Return a field with the default and the checks of another class's field."""
    (one,) = (each for each in dataclasses.fields(options) if each.name == name)
    return field(default=one.default, metadata=one.metadata)


def invalid_values(options: Any) -> list[str]:
    """Say which fields of options hold a value that their definition excludes, and what was expected."""
    problems = []
    for one in dataclasses.fields(options):
        value, choices = getattr(options, one.name), one.metadata.get("choices")
        if choices is not None and value not in choices:
            problems.append(f"{one.name} = {value!r}: expected one of {', '.join(choices)}")
        if "low" not in one.metadata or (value is None and one.default is None):
            continue
        low, high = one.metadata["low"], one.metadata["high"]
        if not isinstance(value, int):
            problems.append(f"{one.name} = {value!r}: expected an integer")
        elif not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            problems.append(f"{one.name} = {value}: expected {bound}")
    return problems


def _not_sequences(**options: Any) -> list[str]:
    """Say which options are one text, where several names are expected."""
    return [
        f"{name} = {names!r}: expected a sequence of names, not one text"
        for name, names in options.items()
        if isinstance(names, str)
    ]


def raise_if_any(problems: list[str]) -> None:
    """Refuse options with problems, all of them together."""
    if problems:
        raise InputError("invalid options", found="; ".join(problems))


def attribute_texts(options: type) -> dict[str, str]:
    """Return what the docstring of a class of options says of each of them."""
    attributes = (inspect.getdoc(options) or "").partition("Attributes:\n")[2]
    texts = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in texts}


@dataclass(frozen=True)
class PlanOptions:
    """How to cut a table into shards.

    Attributes:
        world_size: Ranks of the largest job, if 192 lanes do not suit it: shards and lanes become a multiple of
            `world_size` x `workers`.
        workers: Worker processes of each rank; 0 counts as 1.
        shards: Number of shards, a multiple of `world_size` x `workers`. Default: as `shard_size` asks for.
        samples_per_shard: Samples of a shard, at most; about as many with `group_by`.
        shard_size: Bytes of a shard, about. Default: 256 MB.
        lanes: Sequences of shards that the loader reads side by side. Default: 192, or 96, 48 or 16 for less data; if
            need be, rounded up to a multiple of `world_size` x `workers`.
        window: Samples that the loader reads and shuffles together. Default: as many as let 192 lanes hold 256 MiB, up
            to 1,024 samples and 8 MiB.
        pad: Make all shards equal by repeating samples, flagged (repeat), or by leaving rows out (drop), or let shards
            differ by one sample (none).
        allow_pads: Accept `world_size` x `workers`, `shards` or `lanes` of more than ten times the rows with `pad`
            repeat: most shards will hold nothing but pads.
        null: Refuse null values (error), leave the member out (omit), or write it with no bytes (empty).
        shuffle: Put the rows of the whole table into a random order, or keep their order. Default: shuffle; tars keep
            their order.
        seed: Seed of the random order.
        group_by: Column whose equal values stay together, in one split and one shard.
        keep: Columns for the sample tables, for conditions on samples, besides the numbers, booleans and classes that
            become fields; also columns that do not.
        no_keep: Columns to leave out of the sample tables.
    """

    world_size: int = _integer(1, 1, MAX_LANES)
    workers: int = _integer(1, 0, MAX_LANES)
    shards: int | None = _integer(None, 1)
    samples_per_shard: int | None = _integer(None, 1)
    shard_size: int | None = _integer(None, 1)
    lanes: int | None = _integer(None, 1, MAX_LANES)
    window: int | None = _integer(None, 1, MAX_WINDOW)
    pad: Pad = field(default="repeat", metadata={"choices": PADS})
    allow_pads: bool = False
    null: Null = field(default="error", metadata={"choices": NULLS})
    shuffle: bool | None = None
    seed: int = _integer(0, 0, MAX_SEED)
    group_by: str | None = None
    keep: tuple[str, ...] = ()
    no_keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = invalid_values(self)
        problems += _not_sequences(keep=self.keep, no_keep=self.no_keep)
        sizings = [name for name in ("shards", "samples_per_shard", "shard_size") if getattr(self, name) is not None]
        if len(sizings) > 1:
            problems.append(f"{' and '.join(sizings)} contradict each other: give one")
        if self.group_by is not None and self.pad == "drop":
            problems.append("group_by and pad = 'drop' contradict each other: rows left out would tear groups apart")
        raise_if_any(problems)
        for name in ("keep", "no_keep"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))

    @property
    def readers(self) -> int:
        """Readers in all: world_size x workers."""
        return self.world_size * max(1, self.workers)


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert tables into shards.

    Attributes:
        plan: How many shards to make, and what goes into them.
        mapping: Field name to column name.
        columns: Columns whose fields are inferred; if there are none, and no `mapping`, all but the key.
        key: Column that holds the keys. Default: number the rows; samples of tars keep their keys.
        number_keys: Number the samples of tars instead of keeping their keys.
        where: Use only the rows that meet a condition, as in "label < 10 and width >= 256".
        limit: Use only the first N rows; with `where` the first that meet it.
        skip_empty: Leave out rows in which every value is null; they are counted.
        hive: Read the names of folders such as `year=2024` as columns; not for tars.
        splits: Name to fraction: a dataset for each, drawn by a hash of `group_by`, else of the key.
        jobs: Tasks at a time.
        overwrite: Replace the dataset, or the unfinished run, that is in the output.
        resume: Continue the unfinished run that is in the output; one that is finished is left as it is.
        memory: Bytes of memory to use while rows are shuffled or grouped, for all jobs of a machine together. Default:
            a quarter of what this process may use; 1 GiB on Ray, and in shares.
        emit: What to write for other readers beside the shards: some of dali, energon and wids.
        class_names: Write the names of classes beside their numbers, as cls.txt; for Hugging Face's ClassLabel columns.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    _: KW_ONLY
    mapping: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    key: str | None = None
    number_keys: bool = False
    where: str = ""
    limit: int | None = _integer(None, 1)
    skip_empty: bool = False
    hive: bool = True
    splits: Mapping[str, float] = field(default_factory=dict)
    jobs: int = _integer(1, 1)
    overwrite: bool = False
    resume: bool = False
    memory: int | None = _integer(None, 1)
    emit: tuple[str, ...] = ()
    class_names: bool = False

    def __post_init__(self) -> None:
        problems = invalid_values(self)
        problems += _not_sequences(columns=self.columns, emit=self.emit)
        if self.overwrite and self.resume:
            problems.append("overwrite and resume contradict each other: give one")
        if self.number_keys and self.key is not None:
            problems.append("key and number_keys contradict each other: give one")
        for name in self.splits:
            if not re.fullmatch("[A-Za-z0-9_-]+", name):
                problems.append(f"split {name!r}: expected letters, digits, '_' and '-', as it becomes a folder")
        folders: dict[str, list[str]] = {}
        for name in self.splits:
            folders.setdefault(name.lower(), []).append(name)
        problems += [
            f"splits {' and '.join(map(repr, names))} are one folder where case does not count, as on macOS: "
            "expected names that differ in more than case"
            for names in folders.values()
            if len(names) > 1
        ]
        raise_if_any(problems)
        object.__setattr__(self, "emit", check_emit(self.emit))


@dataclass(frozen=True)
class IndexOptions:
    """How to adopt tars.

    Attributes:
        world_size: Ranks of the largest job, if 192 lanes do not suit it: lanes become a multiple of `world_size` x
            `workers`.
        workers: Worker processes of each rank; 0 counts as 1.
        lanes: Sequences of shards that the loader reads side by side. Default: 192, or 96, 48 or 16 for less data; if
            need be, rounded up to a multiple of `world_size` x `workers`.
        window: Samples that the loader reads and shuffles together. Default: as many as let 192 lanes hold 256 MiB, up
            to 1,024 samples and 8 MiB.
        jobs: Processes.
        overwrite: Replace the indexes and the manifest that are there; never a tar. Of the same tars, fields, classes
            and sample tables stay.
        samples: Make the sample tables of the tars too, from what is in them; of a dataset that is there already, only
            these. Tables that are right are left as they are, and keep their columns.
        keep: Columns for the sample tables besides numbers, booleans and classes: texts of the field json, by their
            keys, and fields of texts.
        no_keep: Columns to leave out of the sample tables.
    """

    world_size: int = same_as(PlanOptions, "world_size")
    workers: int = same_as(PlanOptions, "workers")
    lanes: int | None = same_as(PlanOptions, "lanes")
    window: int | None = same_as(PlanOptions, "window")
    jobs: int = same_as(ConvertOptions, "jobs")
    overwrite: bool = False
    samples: bool = False
    keep: tuple[str, ...] = ()
    no_keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = invalid_values(self) + _not_sequences(keep=self.keep, no_keep=self.no_keep)
        if (self.keep or self.no_keep) and not self.samples:
            problems.append("keep and no_keep concern the sample tables: give samples too")
        raise_if_any(problems)
        for name in ("keep", "no_keep"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
