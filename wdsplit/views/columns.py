"""The columns of a dataset's samples: those of the sample tables, and those of annotations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from wdsplit.conditions.parse import UnknownColumnError, Where, parse_where
from wdsplit.errors import InputError, WdsplitError, did_you_mean
from wdsplit.shards.annotations import ANNOTATIONS, Annotation, read_annotation
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.sample_tables import KEY, names_of, read_samples
from wdsplit.storage.interface import ReadableStorage
from wdsplit.urls import is_web

__all__ = ["SampleColumns"]


@dataclass(frozen=True, eq=False)
class SampleColumns:
    """The columns of a dataset's samples.

    Attributes:
        storage: The storage of the dataset.
        manifest: Its manifest, of all samples.
    """

    storage: ReadableStorage
    manifest: Manifest

    @cached_property
    def _scanned(self) -> tuple[dict[str, Annotation], dict[str, WdsplitError]]:
        """All annotations of the dataset, including stale ones, and the errors of unreadable ones."""
        return ANNOTATIONS.scan(self.storage, self.manifest)

    @cached_property
    def annotations(self) -> tuple[Annotation, ...]:
        """The annotations that were made for the current shards."""
        found, _ = self._scanned
        return tuple(each for each in found.values() if each.fingerprint == self.manifest.fingerprint)

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns.

        Raises:
            InputError: The dataset has no sample tables.
        """
        return pa.schema([*self._samples, *(field for each in self.annotations for field in each.schema)])

    @property
    def _samples(self) -> pa.Schema:
        """The columns of the sample tables."""
        if self.manifest.samples is None:
            raise InputError(
                "the dataset has no sample tables, which views need",
                place=self.storage.url,
                remedy="make a dataset of the tars with `wdsplit index`",
            )
        return self.manifest.samples

    @cached_property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The class names of each column of classes, by their numbers."""
        return names_of(self.schema)

    def parse(self, where: str) -> Where:
        """Parse a condition on the columns.

        Raises:
            InputError: It is invalid, or names a column of a stale annotation.
            CorruptDataError: It names an unknown column, and an annotation that may have it is damaged.
        """
        schema = self.schema
        try:
            return parse_where(where, schema, self.class_names, KEY, self._hints())
        except InputError as error:
            found, damaged = self._scanned
            for name, each in found.items():
                joined = [re.escape(column) for column in each.schema.names if column not in schema.names]
                if any(re.search(rf"\b{column}\b", where) for column in joined):
                    raise ANNOTATIONS.missing(self.storage, name, self.manifest) from error
            if damaged and isinstance(error, UnknownColumnError):
                raise next(iter(damaged.values())) from error
            if is_web(self.storage.url) and isinstance(error, UnknownColumnError):
                error.remedy = (
                    "make a view of it where files can be listed, and open the URL with view=: "
                    "a web server lists no annotations, whose columns conditions may use elsewhere"
                )
            raise

    def _hints(self) -> dict[str, str]:
        """Return a remedy for each name that is a field but not a column, by field name and column name."""
        hints, names = {}, self.schema.names
        for one in self.manifest.fields:
            hint = f"it is a field ({one.name}): join it with wdsplit annotate"
            if "<" in one.type or "binary" in one.type:  # a list of tokens, an image: annotate makes no column of it
                hint = f"it is a field ({one.name}): `wdsplit map` makes a column of it, such as its length"
            elif "string" in one.type:
                hint = f"it is a field ({one.name}): convert with --keep {one.column}, or join it with wdsplit annotate"
            if one.column in names:
                hint = f"use {one.column}, the column of the field {one.name}"
            hints.update({name: hint for name in (one.name, one.column) if name not in names})
        return hints

    def refuse_unknown(self, names: Sequence[str]) -> None:
        """Refuse names that are no columns.

        Raises:
            InputError: There is no such column.
        """
        unknown = [name for name in names if name not in self.schema.names]
        if unknown:
            raise InputError(
                f"samples have no column {unknown[0]!r}",
                place=self.storage.url,
                expected=f"one of {', '.join(self.schema.names)}",
                remedy=did_you_mean(unknown, self.schema.names) or self._hints().get(unknown[0], ""),
            )

    def read(self, shard: int, names: Sequence[str]) -> pa.Table:
        """Read columns of a shard: a row for each sample, without pads, in the tar's order.

        Args:
            shard: The shard's number.
            names: The columns, without duplicates. Only tables with some of them are read.

        Raises:
            InputError: There is no such column.
            CorruptDataError: A table is missing or damaged.
        """
        samples = self._samples
        self.refuse_unknown(names)
        listed, parts = self.manifest.shards[shard], []
        own = [name for name in names if name in samples.names]
        if own:
            parts.append(read_samples(self.storage, listed, own, samples))
        for each in self.annotations:
            joined = [name for name in names if name in each.schema.names]
            if joined:
                parts.append(read_annotation(self.storage, each, listed, joined))
        columns = {name: part.column(name) for part in parts for name in part.column_names}
        return pa.table({name: columns[name] for name in names})
