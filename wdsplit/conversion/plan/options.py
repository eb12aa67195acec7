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
from wdsplit.fields.encode import NULLS, Null
from wdsplit.order.epoch import MAX_LANES, MAX_SEED, MAX_WINDOW
from wdsplit.shards.sidecars import check_emit

__all__ = [
    "PADS",
    "ConvertOptions",
    "Pad",
    "PlanOptions",
    "attribute_texts",
    "invalid_values",
    "raise_if_any",
    "same_as",
]

Pad = Literal["repeat", "drop", "none"]
PADS: tuple[Pad, ...] = ("repeat", "drop", "none")

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
        null: Refuse null values (error), leave the member out (omit), or write it with no bytes (empty).
        shuffle: Put the rows of the whole table into a random order.
        seed: Seed of that order.
        group_by: Column whose equal values stay together, in one split and one shard.
    """

    world_size: int = _integer(1, 1, MAX_LANES)
    workers: int = _integer(1, 0, MAX_LANES)
    shards: int | None = _integer(None, 1)
    samples_per_shard: int | None = _integer(None, 1)
    shard_size: int | None = _integer(None, 1)
    lanes: int | None = _integer(None, 1, MAX_LANES)
    window: int | None = _integer(None, 1, MAX_WINDOW)
    pad: Pad = field(default="repeat", metadata={"choices": PADS})
    null: Null = field(default="error", metadata={"choices": NULLS})
    shuffle: bool = False
    seed: int = _integer(0, 0, MAX_SEED)
    group_by: str | None = None

    def __post_init__(self) -> None:
        problems = invalid_values(self)
        sizings = [name for name in ("shards", "samples_per_shard", "shard_size") if getattr(self, name) is not None]
        if len(sizings) > 1:
            problems.append(f"{' and '.join(sizings)} contradict each other: give one")
        if self.group_by is not None and self.pad == "drop":
            problems.append("group_by and pad = 'drop' contradict each other: rows left out would tear groups apart")
        raise_if_any(problems)

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
        splits: Name to fraction: a dataset for each, drawn by a hash of `group_by`, else of the key.
        jobs: Tasks at a time.
        overwrite: Replace the dataset, or the unfinished run, that is in the output.
        resume: Continue the unfinished run that is in the output; one that is finished is left as it is.
        memory: Bytes that `shuffle` and `group_by` keep to, in all jobs of a machine together.
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
    splits: Mapping[str, float] = field(default_factory=dict)
    jobs: int = _integer(1, 1)
    overwrite: bool = False
    resume: bool = False
    memory: int = _integer(1024**3, 1)
    emit: tuple[str, ...] = ()
    class_names: bool = False

    def __post_init__(self) -> None:
        problems = invalid_values(self)
        for name, names in (("columns", self.columns), ("emit", self.emit)):
            if isinstance(names, str):
                problems.append(f"{name} = {names!r}: expected a sequence of names, not one text")
        if self.overwrite and self.resume:
            problems.append("overwrite and resume contradict each other: give one")
        if self.number_keys and self.key is not None:
            problems.append("key and number_keys contradict each other: give one")
        for name in self.splits:
            if not re.fullmatch("[A-Za-z0-9_-]+", name):
                problems.append(f"split {name!r}: expected letters, digits, '_' and '-', as it becomes a folder")
        raise_if_any(problems)
        object.__setattr__(self, "emit", check_emit(self.emit))
