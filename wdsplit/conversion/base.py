"""What rows that are appended take from their dataset: options, fields, classes and the numbers of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from wdsplit.conversion.labels import classes_of_texts
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import DEFAULT_SHARD_BYTES, Plan, data_bytes
from wdsplit.errors import InputError, did_you_mean
from wdsplit.fields.arrow_types import field_of
from wdsplit.fields.infer import class_names, refuse_repeated
from wdsplit.fields.keys import numbered_rows
from wdsplit.fields.rules import is_text, unwrap
from wdsplit.shards.manifest import Field, Manifest
from wdsplit.shards.sample_tables import WIDTH, names_of
from wdsplit.shards.versions import NO_NEXT_KEY
from wdsplit.tables.table import Table
from wdsplit.tar.samples import KEY_COLUMN

__all__ = ["Base", "next_key_of"]

Names = tuple[str, ...]

_WIDE = re.compile(r"large_(string|binary|list)|(string|binary|list)_view")
_DICTIONARY = re.compile(r"dictionary<values=([^,<]+), [^>]*>")


def next_key_of(manifest: Manifest) -> int:
    """Return the number that the next generated key of a dataset has; NO_NEXT_KEY if keys come from columns."""
    if manifest.history:
        return manifest.history[-1].next_key
    num_rows = numbered_rows(manifest.provenance)
    return NO_NEXT_KEY if num_rows is None else num_rows


@dataclass(frozen=True)
class Base:
    """The version of a dataset that rows are appended to.

    Attributes:
        manifest: Its manifest.
        url: Its name in messages.
    """

    manifest: Manifest
    url: str

    @property
    def has_sizes(self) -> bool:
        """Whether the sample tables have the sizes of images, as those of indexed tars without images have, too."""
        return self.manifest.samples is not None and WIDTH in self.manifest.samples.names

    def names_of(self, column: str) -> Names:
        """Return the names of the classes of a column; none if it has none."""
        return next((one.names for one in self.manifest.fields if one.column == column), ())

    def options(self, options: ConvertOptions) -> ConvertOptions:
        """Return the options of an append: those of the dataset, for rows that the user's options select."""
        given, manifest = self.manifest.provenance, self.manifest
        before = given.get("options") or {}
        key = options.key
        if key is None and not options.number_keys and next_key_of(self.manifest) == NO_NEXT_KEY:
            key = given.get("key")
        return replace(
            options,
            mapping={one.name: one.column for one in manifest.fields},
            key=key if key != KEY_COLUMN else options.key,  # samples of tars keep their keys anyway
            lanes=manifest.lanes,
            window=manifest.window,
            pad="none",
            emit=manifest.emit,
            keep=tuple(before.get("keep", ())),
            no_keep=tuple(before.get("no_keep", ())),
            append=False,
            allow_erased=False,
            resume=False,
        )

    def sized(self, options: ConvertOptions, table: Table) -> ConvertOptions:
        """Return options with the dataset's shard size, or a larger one for much more data, unless one is given."""
        if options.shards or options.samples_per_shard or options.shard_size:
            return options
        manifest = self.manifest
        usual = manifest.num_bytes // max(1, len(manifest.shards))
        alone = min(DEFAULT_SHARD_BYTES, data_bytes(table, len(manifest.fields)) // manifest.lanes)
        return replace(options, shard_size=max(1, usual, alone))

    def fields(self, table: Table, options: ConvertOptions) -> tuple[tuple[Field, ...], str | None]:
        """Return the fields of the dataset, with the classes that the rows add to them, and the label.

        Raises:
            InputError: The table lacks a column, or one has another type, or there is no key.
        """
        schema, fields = table.schema, self.manifest.fields
        refuse_repeated(schema)
        if options.key is None and next_key_of(self.manifest) == NO_NEXT_KEY:
            raise self._refused(
                "the keys of the dataset come from its tables, so rows cannot be numbered",
                "a column of keys that no sample of the dataset has",
                "no key",
                "give --key COLUMN" if not options.number_keys else "leave out --number-keys",
            )
        needed = [*(one.column for one in fields), *([options.key] if options.key is not None else [])]
        missing = [name for name in dict.fromkeys(needed) if name not in schema.names]
        if missing:
            raise self._refused(
                f"the rows lack the column {missing[0]!r}",
                f"the columns {', '.join(dict.fromkeys(needed))}, as the dataset was made of",
                ", ".join(schema.names),
                did_you_mean(missing[:1], schema.names) or "append tables with the columns of the first ones",
            )
        for one in fields:
            kind = schema.field(one.column).type
            found = field_of(one.name, one.column, "", kind).type  # its encoding may not fit this type
            if _plain(found) != _plain(one.type):
                raise self._refused(
                    f"column {one.column!r} has another type than in the dataset",
                    f"{one.type}, for the field {one.name!r}",
                    found,
                    "convert the values to that type first",
                )
        grown = self._classes(table, {one.column: one.names for one in fields if one.names})
        made = tuple(replace(one, names=grown.get(one.column, ())) for one in fields)
        return made, self.manifest.provenance.get("label")

    def _classes(self, table: Table, before: dict[str, Names]) -> dict[str, Names]:
        """Return the classes of each column: those of the dataset with their numbers, then new ones."""
        declared = class_names(table.schema)
        texts = [name for name in before if is_text(unwrap(table.schema.field(name).type))]
        found = classes_of_texts(table, texts)
        grown = {}
        for column, names in before.items():
            own = found.get(column, ()) if column in texts else declared.get(column, ())
            if column not in texts and own[: len(names)] != names[: len(own)]:
                number = next(n for n, pair in enumerate(zip(names, own, strict=False)) if pair[0] != pair[1])
                raise self._refused(
                    f"class {number} of column {column!r} has another name than in the dataset",
                    f"{number} = {names[number]!r}",
                    f"{number} = {own[number]!r}",
                    "number the classes as in the dataset: new ones come after them",
                )
            if column in texts and column not in found:
                raise self._refused(
                    f"column {column!r} cannot be the label",
                    f"the {len(names):,} classes of the dataset, or few more",
                    "too many different values, or long ones",
                    "check the column",
                )
            grown[column] = (*names, *(name for name in own if name not in names))
        return grown

    def refuse_other_samples(self, plan: Plan) -> None:
        """Refuse a plan whose sample tables would have other columns than those of the dataset.

        Raises:
            InputError: They would.
        """
        expected = self.manifest.samples or pa.schema([])
        columns, wanted = _columns(plan.samples), _columns(expected)
        if columns != wanted:
            gone = [each for each in wanted if each not in columns]
            new = [each for each in columns if each not in wanted]
            raise self._refused(
                "the sample tables of the rows would have other columns than those of the dataset",
                ", ".join(gone or wanted),
                ", ".join(new or columns),
                "append tables with the same columns and types"
                if gone
                else "convert the dataset again: sample tables have these columns by default now",
            )
        grown = names_of(plan.samples)
        for column, names in names_of(expected).items():
            if grown.get(column, ())[: len(names)] != names:
                raise self._refused(
                    f"column {column!r} has other classes than in the dataset",
                    ", ".join(names[:5]),
                    ", ".join(grown.get(column, ())[:5]) or "none",
                    "number the classes as in the dataset: new ones come after them",
                )

    def _refused(self, cause: str, expected: str, found: str, remedy: str) -> InputError:
        return InputError(cause, expected=expected, found=found, remedy=remedy, url=self.url)


def _plain(kind: str) -> str:
    """Return the text of a type without what does not change payloads: wide offsets, views and dictionaries."""
    return _DICTIONARY.sub(r"\1", _WIDE.sub(lambda match: match[1] or match[2], kind))


def _columns(schema: pa.Schema) -> Sequence[str]:
    return [f"{one.name}: {one.type}" for one in schema]
