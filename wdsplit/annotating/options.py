"""The options of `wdsplit annotate` and `wdsplit map`: their names, defaults and checks. Pure (no I/O)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wdsplit.conversion.plan.options import ConvertOptions, invalid_values, raise_if_any, same_as

__all__ = ["DUPLICATES", "ON_ERROR", "AnnotateOptions", "Duplicates", "MapOptions", "OnError"]

Duplicates = Literal["first", "last"]
DUPLICATES: tuple[Duplicates, ...] = ("first", "last")
OnError = Literal["raise", "skip"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip")


@dataclass(frozen=True, kw_only=True)
class AnnotateOptions:
    """How to join a table to a dataset.

    Attributes:
        mapping: Column name in the table by column name in the dataset.
        columns: Columns to join under their own names. If this and `mapping` are empty: all but the key.
        hive: Read folder names such as `year=2024` as columns; not for tars.
        allow_missing: Allow samples without a row in the table; their values are null.
        allow_extra: Allow rows without a matching sample; they are left out.
        allow_duplicates: Allow several rows with the same key, and use the first or the last.
        jobs: Number of parallel tasks.
        memory: Bytes of memory to use, shared by all jobs of a machine. Default: a quarter of what this process may
            use; 1 GiB on Ray.
        overwrite: Replace the annotation or unfinished run of this name.
        resume: Continue an unfinished run; a finished one is left as it is.
    """

    mapping: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    hive: bool = True
    allow_missing: bool = False
    allow_extra: bool = False
    allow_duplicates: Duplicates | None = field(default=None, metadata={"choices": DUPLICATES})
    jobs: int = same_as(ConvertOptions, "jobs")
    memory: int | None = same_as(ConvertOptions, "memory")
    overwrite: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        raise_if_any(invalid_values(self))


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """How to call a function with the samples of a dataset.

    Attributes:
        fields: Read only these fields. Default: all.
        join: Read the fields of these annotations too. Default: none.
        decode: How to decode fields, besides labels, numbers, texts, JSON and arrays: names of image decoders such as
            rgb8 or pil, or functions, as for `Dataset.decode`. Default: images stay bytes.
        batch_size: Call the function with a list of up to this many samples of a shard. Default: with one sample.
        on_error: What to do with a sample that cannot be decoded, or for which the function raises an error: raise it,
            or skip the sample, which is counted and listed.
        jobs: Number of parallel tasks.
        overwrite: Replace the annotation or unfinished run of this name.
        resume: Continue an unfinished run, whose finished shards are kept; a finished one is left as it is.
        update: Extend the annotation of this name to the shards that were added since it was made. Earlier versions of
            the dataset keep theirs.
    """

    fields: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    decode: tuple[Any, ...] = ()
    batch_size: int | None = field(default=None, metadata={"low": 1, "high": 2**31})
    on_error: OnError = field(default="raise", metadata={"choices": ON_ERROR})
    jobs: int = same_as(ConvertOptions, "jobs")
    overwrite: bool = False
    resume: bool = False
    update: bool = False

    def __post_init__(self) -> None:
        raise_if_any(invalid_values(self))
        for name in ("fields", "join", "decode"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
