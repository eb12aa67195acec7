"""The options of a conversion: their names, defaults, checks and descriptions.

Pure (no I/O). The command line makes its options from these fields and its help from their docstrings, in which
`name` refers to another option. Contradicting options are refused here, before any input is opened.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from wdsplit.errors import InputError, refuse_unknown
from wdsplit.fields.nulls import NULLS, Null
from wdsplit.order.limits import MAX_LANES, MAX_SEED, MAX_WINDOW

__all__ = [
    "PADS",
    "PASSES",
    "ConvertOptions",
    "IndexOptions",
    "Pad",
    "PassName",
    "PlanOptions",
    "attribute_texts",
    "chosen",
    "invalid_values",
    "raise_if_any",
    "same_as",
]

Options = TypeVar("Options")

Pad = Literal["repeat", "drop", "none"]
PADS: tuple[Pad, ...] = ("repeat", "drop", "none")

PassName = Literal["scatter", "merge", "write"]
PASSES: tuple[PassName, ...] = ("scatter", "merge", "write")
"""The passes of a conversion, in order; rows that keep their order need only the last."""

SIDECARS = ("dali", "energon", "wids")
"""Names of files that can be written beside the shards; `shards.sidecars` defines them."""

_OF_DATASET = (
    *("world_size", "workers", "lanes", "window", "pad", "allow_pads", "keep", "no_keep"),
    *("mapping", "columns", "splits", "overwrite", "emit", "classes"),
)
"""What a dataset decides for the rows that are appended to it."""
_MAX_COUNT = 2**53
"""JSON readers may round larger integers."""


def _integer(default: int | None, low: int, high: int = _MAX_COUNT) -> Any:
    """Return a field that holds an integer from low to high, or its default."""
    return field(default=default, metadata={"low": low, "high": high})


def same_as(options: type, name: str) -> Any:
    """Return a field with the default and the checks of another class's field."""
    (one,) = (each for each in dataclasses.fields(options) if each.name == name)
    return field(default=one.default, metadata=one.metadata)


def invalid_values(options: Any) -> list[str]:
    """Return a message for each field whose value is invalid, with what was expected."""
    problems = []
    if getattr(options, "overwrite", False) and getattr(options, "resume", False):
        problems.append("overwrite and resume contradict each other: give one")
    for one in dataclasses.fields(options):
        value, choices = getattr(options, one.name), one.metadata.get("choices")
        if value is None and one.default is None:
            continue
        if choices is not None and value not in choices:
            problems.append(f"{one.name} = {value!r}: expected one of {', '.join(choices)}")
        if one.default == () and isinstance(value, str):
            problems.append(f"{one.name} = {value!r}: expected a sequence of names, not a string")
        if "low" not in one.metadata:
            continue
        low, high = one.metadata["low"], one.metadata["high"]
        if not isinstance(value, int):
            problems.append(f"{one.name} = {value!r}: expected an integer")
        elif not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            problems.append(f"{one.name} = {value}: expected {bound}")
    return problems


def raise_if_any(problems: list[str]) -> None:
    """Raise one error that lists all problems, if there are any."""
    if problems:
        raise InputError("invalid options", found="; ".join(problems))


def chosen(kind: type[Options], options: Options | None, keywords: Mapping[str, Any]) -> Options:
    """Return the options of a call: the given ones or the defaults, with what the keywords change.

    Raises:
        InputError: The options are of another class, or a value is invalid.
        TypeError: There is no such keyword.
    """
    if not isinstance(options, kind | None):
        raise InputError(
            f"options are not {kind.__name__}",
            expected=f"keywords such as key='id', or wdsplit.{kind.__name__}(...)",
            found=type(options).__name__,
        )
    refuse_unknown(keywords, [one.name for one in dataclasses.fields(kind)])  # type: ignore[arg-type]
    return dataclasses.replace(options or kind(), **keywords)  # type: ignore[type-var]


def attribute_texts(options: type) -> dict[str, str]:
    """Return the description of each option, from the class's docstring."""
    attributes = (inspect.getdoc(options) or "").partition("Attributes:\n")[2]
    texts = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in texts}


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of a conversion that decide its shards; `ConvertOptions` describes them."""

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
    keep: tuple[str, ...] = ()
    no_keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        raise_if_any(self._problems())
        for name in ("keep", "no_keep"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))

    def _problems(self) -> list[str]:
        problems = invalid_values(self)
        sizings = [name for name in ("shards", "samples_per_shard", "shard_size") if getattr(self, name) is not None]
        if len(sizings) > 1:
            problems.append(f"{' and '.join(sizings)} contradict each other: give one")
        return problems

    @property
    def readers(self) -> int:
        """Total number of readers: world_size x workers."""
        return self.world_size * max(1, self.workers)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(PlanOptions):
    """How to convert tables into shards.

    Attributes:
        world_size: Ranks of the largest training job. Shards and lanes become a multiple of `world_size` x `workers`;
            needed only if that does not divide 192.
        workers: Loader workers per rank; 0 counts as 1.
        shards: Number of shards, a multiple of `world_size` x `workers`. Default: derived from `shard_size`.
        samples_per_shard: Maximum number of samples per shard.
        shard_size: Approximate bytes per shard. Default: 256 MB, or less so that each lane has a shard.
        lanes: Number of sequences of shards that the loader reads in parallel. Default: 192, or 96, 48 or 16 for less
            data; rounded up to a multiple of `world_size` x `workers`.
        window: Number of samples that the loader reads and shuffles together. Default: sized so that 192 windows take
            256 MiB, up to 1,024 samples and 8 MiB each.
        pad: How to make shards equal: repeat samples, flagged as pads (repeat), leave rows out (drop), or allow a
            difference of one sample (none).
        allow_pads: Allow `world_size` x `workers`, `shards` or `lanes` of more than ten times the rows with `pad`
            repeat, although most shards will hold only pads.
        null: What to do with null values: refuse them (error), leave the member out (omit), or write an empty member
            (empty).
        shuffle: Shuffle the rows of the whole table, or keep their order. Default: shuffle; tars keep their order.
        seed: Seed of the shuffle.
        keep: Additional columns for the sample tables; they need not become fields. Numbers, booleans, dates, times and
            classes that become fields are included by default, and the file names of image folders.
        no_keep: Columns to leave out of the sample tables.
        mapping: Column name by field name.
        columns: Columns to write under inferred field names. If this and `mapping` are empty: all but the key.
        key: Column with the sample keys. Default: number the rows; samples of tars keep their keys.
        number_keys: Number the samples of tars instead of keeping their keys.
        where: Use only the rows that meet a condition, such as "label < 10 and width >= 256".
        limit: Use only the first N rows; with `where`, the first N matching rows.
        hive: Read folder names such as `year=2024` as columns; not for tars.
        splits: Fraction by split name. Each split is a dataset; a hash of the key, or of `split_by`, assigns the rows.
        split_by: Keep rows with the same value in this column in one split.
        jobs: Number of parallel tasks.
        overwrite: Replace the dataset or unfinished run in the output.
        resume: Continue the unfinished run in the output; a finished one is left as it is.
        append: Add the rows to the dataset in the output, as a new version. The dataset decides fields, lanes and
            window; keys must be new. A stopped append continues if it is run again.
        allow_erased: With `append`, allow rows with keys that were erased from the dataset.
        memory: Bytes of memory for shuffling, shared by all jobs of a machine. Default: a quarter of what this process
            may use; 1 GiB on Ray and in shares.
        emit: Index files to write for other readers: any of dali, energon and wids.
        classes: Column with the classes, which becomes the field cls: numbers, whose names the manifest keeps. Default:
            the column called label, labels, class, target, category or cls, else the only ClassLabel.
    """

    mapping: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    key: str | None = None
    number_keys: bool = False
    where: str = ""
    limit: int | None = _integer(None, 1)
    hive: bool = True
    splits: Mapping[str, float] = field(default_factory=dict)
    split_by: str | None = None
    jobs: int = _integer(1, 1)
    overwrite: bool = False
    resume: bool = False
    append: bool = False
    allow_erased: bool = False
    memory: int | None = _integer(None, 1)
    emit: tuple[str, ...] = ()
    classes: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "emit", tuple(sorted(set(self.emit))))

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if self.append:
            default = ConvertOptions()
            given = [name for name in _OF_DATASET if getattr(self, name) != getattr(default, name)]
            if given:
                problems.append(f"append and {', '.join(given)} contradict each other: the dataset decides these")
        if self.allow_erased and not self.append:
            problems.append("allow_erased needs append")
        if self.number_keys and self.key is not None:
            problems.append("key and number_keys contradict each other: give one")
        if self.classes is not None and self.mapping.get("cls", self.classes) != self.classes:
            problems.append("classes and the mapping of cls contradict each other: give one")
        if self.split_by is not None and not self.splits:
            problems.append("split_by needs splits")
        unknown = [] if isinstance(self.emit, str) else [name for name in self.emit if name not in SIDECARS]
        if unknown:
            problems.append(f"emit = {', '.join(map(repr, unknown))}: expected some of {', '.join(SIDECARS)}")
        for name in self.splits:
            if not re.fullmatch("[A-Za-z0-9_-]+", name):
                problems.append(f"split {name!r}: expected letters, digits, '_' and '-', because it names a folder")
        folders: dict[str, list[str]] = {}
        for name in self.splits:
            folders.setdefault(name.lower(), []).append(name)
        problems += [
            f"splits {' and '.join(map(repr, names))} differ only in case: on macOS and Windows, they are one folder"
            for names in folders.values()
            if len(names) > 1
        ]
        return problems

    @property
    def plan(self) -> PlanOptions:
        """Those of the options that decide the shards."""
        return PlanOptions(**{one.name: getattr(self, one.name) for one in dataclasses.fields(PlanOptions)})


@dataclass(frozen=True)
class IndexOptions:
    """How to adopt tars.

    Attributes:
        world_size: Ranks of the largest training job. Lanes become a multiple of `world_size` x `workers`; needed only
            if that does not divide 192.
        workers: Loader workers per rank; 0 counts as 1.
        lanes: Number of sequences of shards that the loader reads in parallel. Default: 192, or 96, 48 or 16 for less
            data; rounded up to a multiple of `world_size` x `workers`.
        window: Number of samples that the loader reads and shuffles together. Default: sized so that 192 windows take
            256 MiB, up to 1,024 samples and 8 MiB each.
        jobs: Number of parallel tasks.
        overwrite: Replace existing indexes and the manifest; tars are never changed.
    """

    world_size: int = same_as(PlanOptions, "world_size")
    workers: int = same_as(PlanOptions, "workers")
    lanes: int | None = same_as(PlanOptions, "lanes")
    window: int | None = same_as(PlanOptions, "window")
    jobs: int = same_as(ConvertOptions, "jobs")
    overwrite: bool = False

    def __post_init__(self) -> None:
        raise_if_any(invalid_values(self))
