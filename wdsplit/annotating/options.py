"""The options of `wdsplit annotate`: their names, defaults and checks. Pure (no I/O)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from wdsplit.conversion.plan.options import ConvertOptions, invalid_values, raise_if_any, same_as

__all__ = ["DUPLICATES", "AnnotateOptions", "Duplicates"]

Duplicates = Literal["first", "last"]
DUPLICATES: tuple[Duplicates, ...] = ("first", "last")


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
    allow_duplicates: Duplicates | None = None
    jobs: int = same_as(ConvertOptions, "jobs")
    memory: int | None = same_as(ConvertOptions, "memory")
    overwrite: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        problems = invalid_values(self)
        if isinstance(self.columns, str):
            problems.append(f"columns = {self.columns!r}: expected a sequence of names, not a string")
        if self.allow_duplicates not in (None, *DUPLICATES):
            problems.append(f"allow_duplicates = {self.allow_duplicates!r}: expected one of {', '.join(DUPLICATES)}")
        if self.overwrite and self.resume:
            problems.append("overwrite and resume contradict each other: give one")
        raise_if_any(problems)
