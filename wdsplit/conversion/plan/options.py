"""What can be asked of a conversion.

Pure (no I/O). Two values: how to cut a table into shards, and all the rest. What contradicts itself is refused here,
before anything is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from wdsplit.errors import InputError
from wdsplit.fields.encode import NULLS, Null
from wdsplit.order.epoch import MAX_LANES, MAX_SEED, MAX_WINDOW
from wdsplit.shards.sidecars import check_emit

__all__ = ["PADS", "ConvertOptions", "Pad", "PlanOptions"]

Pad = Literal["repeat", "drop", "none"]
PADS: tuple[Pad, ...] = ("repeat", "drop", "none")

_MAX_COUNT = 2**53
"""What JSON numbers hold exactly."""


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
        group_by: The column whose equal values stand together in one shard, or None.
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
    group_by: str | None = None

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
            if not isinstance(value, (int, type(None))):
                problems.append(f"{name} = {value!r}: expected a whole number")
            elif value is not None and not low <= value <= high:
                bound = f"at least {low}" if value < low else f"at most {high}"
                problems.append(f"{name} = {value}: expected {bound}")
        sizings = [name for name in ("shards", "samples_per_shard", "shard_size") if getattr(self, name) is not None]
        if len(sizings) > 1:
            problems.append(f"{' and '.join(sizings)} contradict each other: give one")
        if self.pad not in PADS:
            problems.append(f"pad = {self.pad!r}: expected one of {', '.join(PADS)}")
        if self.group_by is not None and self.pad == "drop":
            problems.append("group_by and pad = 'drop' contradict each other: rows left out would tear groups apart")
        if self.null not in NULLS:
            problems.append(f"null = {self.null!r}: expected one of {', '.join(NULLS)}")
        if problems:
            raise InputError("the options cannot be", found="; ".join(problems))

    @property
    def readers(self) -> int:
        """Readers in all: world_size x workers."""
        return self.world_size * max(1, self.workers)


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert tables into shards.

    Attributes:
        plan: How many shards there shall be, and what goes into them.
        mapping: Field name to column name.
        columns: Columns whose fields are inferred; if there are none, and no mapping, all but the key.
        key: The column that holds the keys; None numbers the rows, but for tars, whose samples keep their keys.
        number_keys: Number the rows of tars too.
        where: A condition on rows, such as "label < 10 and width >= 256"; empty for all rows.
        limit: How many of the rows that meet it to convert: the first ones; None for all.
        splits: Name to fraction: a dataset for each, drawn by a hash of `plan.group_by`, else of the key.
        jobs: Tasks at a time.
        overwrite: Remove a dataset, or an unfinished run, that is in the output already.
        resume: Continue an unfinished run of the same plan; one that is finished is left as it is.
        memory: Bytes that all jobs together may hold while they put rows into another order.
        emit: What to write for other readers beside the shards: some of dali, energon and wids.
        class_names: Write the names of classes beside their numbers, where the table has them.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    _: KW_ONLY
    mapping: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    key: str | None = None
    number_keys: bool = False
    where: str = ""
    limit: int | None = None
    splits: Mapping[str, float] = field(default_factory=dict)
    jobs: int = 1
    overwrite: bool = False
    resume: bool = False
    memory: int = 1024**3
    emit: tuple[str, ...] = ()
    class_names: bool = False

    def __post_init__(self) -> None:
        for name, names in (("columns", self.columns), ("emit", self.emit)):
            if isinstance(names, str):
                raise InputError(f"{name} = {names!r} cannot be", expected="a sequence of names", found="one text")
        for name, value in (("jobs", self.jobs), ("limit", self.limit), ("memory", self.memory)):
            if not isinstance(value, (int, type(None))):
                raise InputError(f"{name} = {value!r} cannot be", expected="a whole number", found=repr(value))
            if value is not None and value < 1:
                raise InputError(f"{name} = {value} cannot be", expected="at least 1", found=str(value))
        if self.overwrite and self.resume:
            raise InputError("overwrite and resume contradict each other", remedy="give one of the two")
        if self.number_keys and self.key is not None:
            raise InputError("key and number_keys contradict each other", remedy="give one of the two")
        odd = [name for name in self.splits if not re.fullmatch("[A-Za-z0-9_-]+", name)]
        if odd:
            raise InputError(
                "a split cannot be named so",
                expected="letters, digits, '_' and '-': it becomes a folder",
                found=", ".join(map(repr, odd)),
            )
        object.__setattr__(self, "emit", check_emit(self.emit))
