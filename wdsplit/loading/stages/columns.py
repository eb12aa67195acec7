"""Stages that work on whole columns: what webdataset's stages of the same names do, many samples at a time.

No I/O. A stage here gives one sample for each input. It runs on single samples like any stage of webdataset, and on the
columns of a block if all stages before it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from wdsplit.errors import noted
from wdsplit.loading.reading.block import Columns

__all__ = ["ColumnStage", "Memory", "Rename", "ToTuple", "only_names", "requested_fields"]


class Memory(Protocol):
    """The memory of the batch that samples will be in."""

    def memory(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
        """Return the samples' rows for one more column, given shape and dtype of a row; None if there is none."""


@runtime_checkable
class ColumnStage(Protocol):
    """A stage that can work on columns."""

    @property
    def is_columnar(self) -> bool:
        """Whether it can, with its arguments."""

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Give the result for each sample."""

    def columns(self, columns: Columns, room: Memory | None = None) -> Columns | None:
        """Return the results for all samples, made in the memory of their batch; None to process them one by one."""


@dataclass(frozen=True)
class ToTuple:
    """Makes samples tuples of the named fields, as webdataset's `to_tuple` does."""

    names: tuple[str, ...]

    @property
    def is_columnar(self) -> bool:
        """Whether each name is that of one field."""
        return all(isinstance(name, str) and not set(name) & {" ", ";"} for name in self.names)

    def __call__(self, samples: Iterable[dict[str, Any]]) -> Iterator[Any]:
        """Give a tuple for each sample."""
        from webdataset import filters  # here, because only single samples need it

        stream: Iterator[Any] = filters.to_tuple(*self.names, handler=_with_remedy)(samples)
        return stream

    def columns(self, columns: Columns, room: Memory | None = None) -> Columns | None:
        """Return the columns of the names, in their order; None where a value is missing."""
        if not isinstance(columns, dict) or any(name not in columns for name in self.names):
            return None
        chosen = tuple(columns[name] for name in self.names)
        if any(isinstance(column, list) and type(None) in set(map(type, column)) for column in chosen):
            return None
        return chosen


def _with_remedy(error: Exception) -> bool:
    """Raise an error of `to_tuple` with a note of what to do."""
    raise noted(
        error,
        "to_tuple takes fields of a sample, which `wdsplit inspect DATASET` lists; those of an annotation need join=, "
        'as in Dataset(..., join=["latents"])',
    )


@dataclass(frozen=True)
class Rename:
    """Renames fields, as webdataset's `rename` does."""

    names: dict[str, str]

    @property
    def is_columnar(self) -> bool:
        """Whether each old name is that of one field."""
        return all(isinstance(old, str) and not set(old) & {" ", ";"} for old in self.names.values())

    def __call__(self, samples: Iterable[dict[str, Any]]) -> Iterator[Any]:
        """Give each sample with its fields renamed."""
        from webdataset import filters

        stream: Iterator[Any] = filters.rename(**self.names)(samples)
        return stream

    def columns(self, columns: Columns, room: Memory | None = None) -> Columns | None:
        """Return the columns under their new names; None where one is missing."""
        if not isinstance(columns, dict) or any(old not in columns for old in self.names.values()):
            return None
        kept = {name: column for name, column in columns.items() if name not in self.names.values()}
        return kept | {new: columns[old] for new, old in self.names.items()}


def requested_fields(stages: Iterable[ColumnStage]) -> tuple[str, ...] | None:
    """Return the fields that the stages leave, if that is known before they run; None for all."""
    for stage in stages:
        if isinstance(stage, Rename):
            return None
        if isinstance(stage, ToTuple):
            return stage.names
    return None


def only_names(stages: Iterable[ColumnStage]) -> bool:
    """Tell whether the stages only rename or choose fields, and need no payload."""
    return all(isinstance(stage, (Rename, ToTuple)) for stage in stages)
