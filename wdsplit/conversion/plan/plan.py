"""The plan of a conversion: the number of shards, and the rows of each.

Pure (no I/O). A plan depends only on the footers of the inputs and the options. Its hash names the run: a resumed run
keeps only shards of the same plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa
import xxhash

from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.errors import InputError
from wdsplit.fields.sample_columns import kept_columns, sample_columns
from wdsplit.notebook import html_table
from wdsplit.order.defaults import default_lanes, default_window, lanes_of_shards, round_up
from wdsplit.shards.manifest import FORMAT_VERSION, MAX_SHARD_SAMPLES, MAX_SHARDS, Field, fields_table
from wdsplit.tables.table import Table
from wdsplit.texts import counted, human_bytes, listed

__all__ = ["DEFAULT_SHARD_BYTES", "Plan", "data_bytes", "make_plan", "task_shards"]

DEFAULT_SHARD_BYTES = 256_000_000
_MAX_SHARDS_PER_ROW = 10
"""More need `allow_pads`, because a number is probably mistyped."""
_MEMBER_OVERHEAD_BYTES = 512 + 256
"""The header, and on average half a block of padding."""
_REREAD_GROUPS = 4
_GATHERS_PER_JOB = 16
"""Minimum number of tasks per job that gather rows, so that jobs finish together and progress is visible."""


@dataclass(frozen=True)
class Plan:
    """The plan of a conversion.

    Attributes:
        table: The input, with its selected rows.
        fields: The fields of each sample, in order.
        key: The key column, or None to number the rows.
        options: The options; `shuffle` is never None.
        num_shards: Number of shards (S).
        lanes: Number of lanes (C).
        label: The column of classes; None if there is none.
        first_key: The number of the first row's key, if rows are numbered.
        has_sizes: Whether sample tables have the sizes of images in any case, as those of an indexed dataset.
    """

    table: Table
    fields: tuple[Field, ...]
    key: str | None
    options: PlanOptions
    num_shards: int
    lanes: int
    label: str | None = field(default=None, compare=False)
    first_key: int = 0
    has_sizes: bool = False

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.type}" for field in self.fields)
        return f"<Plan: {self._counts()}; {fields}; lanes {self.lanes}>"

    def _repr_html_(self) -> str:
        order = "shuffled" if self.options.shuffle else "in the table's order"
        facts = [
            ("plan", self._counts()),
            ("rows are", order),
            ("lanes", self.lanes),
            *(("note", note) for note in self.table.notes),
        ]
        return html_table("Plan", facts) + fields_table(self.fields)

    def _counts(self) -> str:
        most = f"{counted(self.num_shards, 'shard')} of up to {counted(self.max_samples, 'sample')}"
        rest = f", {counted(self.num_pads, 'pad')}, {self.num_dropped:,} dropped"
        return f"{counted(self.num_rows, 'row')} -> {most}, about {human_bytes(self.shard_bytes)}{rest}"

    @property
    def columns(self) -> list[str]:
        """The distinct columns to read."""
        names = [one.column for one in self.fields] + ([self.key] if self.key else [])
        return list(dict.fromkeys([*names, *self.kept]))

    @cached_property
    def kept(self) -> list[str]:
        """The columns that the sample tables keep."""
        return kept_columns(self.table.schema, self.fields, self.options.keep, self.options.no_keep)

    @cached_property
    def samples(self) -> pa.Schema:
        """The columns of the sample tables."""
        return sample_columns(self.table.schema, self.fields, self.kept, self.has_sizes)

    @property
    def scatters(self) -> bool:
        """Whether the plan reorders rows."""
        return bool(self.options.shuffle)

    @property
    def num_rows(self) -> int:
        """Number of selected rows."""
        return self.table.num_rows

    @cached_property
    def num_samples(self) -> int:
        """Number of samples to write, without pads."""
        if self.options.pad == "drop":
            return self.num_rows // self.num_shards * self.num_shards
        return self.num_rows

    @property
    def num_dropped(self) -> int:
        """Number of rows at the end of the table that are left out to make the shards equal."""
        return self.num_rows - self.num_samples

    @cached_property
    def max_samples(self) -> int:
        """Number of samples of the largest shard, which has no pads."""
        return -(-self.num_samples // self.num_shards)

    @property
    def num_pads(self) -> int:
        """Number of pads to write."""
        return self.max_samples * self.num_shards - self.num_samples if self.options.pad == "repeat" else 0

    @property
    def shard_bytes(self) -> int:
        """Approximate bytes of all shards."""
        return data_bytes(self.table, len(self.fields))

    @cached_property
    def window(self) -> int:
        """Samples per window: as given, or estimated from the table's bytes. The manifest uses the shards' bytes."""
        return self.options.window or default_window(self.shard_bytes, self.num_rows, self.lanes)

    def rows(self, shard: int) -> tuple[int, int]:
        """Return the place of a shard's first row, and the place after its last; the first shards have one more row.

        If rows are shuffled, these are places in the reordered table.
        """
        each, rest = divmod(self.num_samples, self.num_shards)
        first = shard * each + min(shard, rest)
        return first, first + each + (shard < rest)

    def num_pads_of(self, shard: int) -> int:
        """Return the number of pads of a shard, 0 or 1: shards differ by one row."""
        first, stop = self.rows(shard)
        return self.max_samples - (stop - first) if self.options.pad == "repeat" else 0

    def summary(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return {
            "plan": self.hash,
            "modified": self.modified,
            "inputs": len(self.table.files),
            "rows": self.num_rows,
            "input_rows": self.table.total_rows,
            **({"snapshot": self.table.snapshot} if self.table.snapshot else {}),
            "notes": list(self.table.notes),
            "shards": self.num_shards,
            "samples_per_shard": self.max_samples,
            "pads": self.num_pads,
            "dropped": self.num_dropped,
            "lanes": self.lanes,
            "window": self.window,
            "key": self.key,
            "label": self.label,
            "fields": [dataclasses.asdict(one) for one in self.fields],
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """What the manifest says of the dataset's origin, as plain JSON values."""
        table, options = self.table, dataclasses.asdict(self.options)
        return {
            "plan": self.hash,
            "inputs": [
                {"path": file.path, "num_bytes": file.num_bytes, "num_rows": file.num_rows} for file in table.files
            ],
            **({"snapshot": table.snapshot} if table.snapshot else {}),
            "num_rows": table.total_rows,
            "num_selected": self.num_rows,
            "selection": table.selection.to_json(),
            "num_dropped": self.num_dropped,
            "key": self.key,
            **({"label": self.label} if self.label else {}),
            "options": {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()},
        }

    @cached_property
    def modified(self) -> str:
        """A hash of the modification times of the inputs: a run is not resumed if they were written again."""
        return xxhash.xxh3_128_hexdigest(orjson.dumps([file.modified_ns for file in self.table.files]))

    @property
    def _rows(self) -> dict[str, Any]:
        files = [
            (file.path.rpartition("/")[2], file.num_bytes, file.num_rows, file.counts, file.footer)
            for file in self.table.files
        ]
        return {"inputs": files, "selection": self.table.selection.to_json()}

    @cached_property
    def source(self) -> str:
        """A hash of the selected rows of the inputs, whatever becomes of them."""
        return xxhash.xxh3_64_hexdigest(orjson.dumps([self._rows, self.key]))

    @cached_property
    def hash(self) -> str:
        """The name of the run: a hash of everything that determines the dataset.

        Files count by base name, size, footer and the values in folder names, so that a run can be resumed from
        another folder.
        """
        options = self.options
        values = [[(name, value) for name, value in file.constants if value is not None] for file in self.table.files]
        content = {
            "format": FORMAT_VERSION,
            **self._rows,
            "fields": [dataclasses.asdict(one) for one in self.fields],
            "key": self.key,
            "null": self.options.null,
            "pad": self.options.pad,
            "shards": self.num_shards,
            "lanes": self.lanes,
            "window": self.options.window,
            "shuffle": self.options.seed if self.options.shuffle else None,
            **({"partitions": values} if any(values) else {}),
            **({"keep": options.keep, "no_keep": options.no_keep} if options.keep or options.no_keep else {}),
            **({"first_key": self.first_key} if self.first_key else {}),
        }
        return xxhash.xxh3_128_hexdigest(orjson.dumps(content))


def make_plan(
    table: Table,
    fields: Sequence[Field],
    key: str | None,
    options: PlanOptions,
    label: str | None = None,
) -> Plan:
    """Make the plan of a conversion.

    Args:
        table: The input, with its selected rows.
        fields: The fields of each sample.
        key: The key column, or None to number the rows.
        options: The options.
        label: The column of classes, if there is one.

    Raises:
        InputError: There are no rows, or the options cannot be met.
    """
    if not table.num_rows:
        is_empty = not table.total_rows
        raise InputError(
            "the input has no rows" if is_empty else "no rows are selected",
            place=listed([file.path for file in table.files], 3),
            expected="at least one row",
            found="" if is_empty else f"none of {table.total_rows} rows matches",
            remedy="check the input" if is_empty else "check --where, --limit and --split",
        )
    if options.shuffle is None:  # tables are usually sorted; tars were shuffled when they were written
        options = replace(options, shuffle=table.files[0].format != "tar")
    columns = {*(one.column for one in fields), *([key] if key is not None else []), *options.keep}
    table = replace(table, files=tuple(file.narrowed(columns) for file in table.files))
    num_rows, readers = table.num_rows, options.readers
    lanes = options.lanes or default_lanes(num_rows, data_bytes(table, len(fields)), readers)
    num_shards = _num_shards(table, len(fields), options, lanes)
    _check_shards(num_shards, num_rows, options)
    if options.pad != "repeat" and num_shards > num_rows:
        if options.shards is not None or readers > num_rows:
            raise InputError(
                f"more shards than rows, and --pad {options.pad} cannot fill them",
                expected=f"at most {num_rows} shards",
                found=str(num_shards if options.shards is not None else readers),
                remedy="use --pad repeat, fewer --shards, or a smaller --world-size x --workers",
            )
        num_shards = num_rows // readers * readers
    if options.lanes is None:
        lanes = lanes_of_shards(num_shards, lanes, readers)
    return Plan(table, tuple(fields), key, options, num_shards, lanes, label)


def _check_shards(num_shards: int, num_rows: int, options: PlanOptions) -> None:
    if num_shards > MAX_SHARDS:
        raise InputError(
            "too many shards",
            expected=f"at most {MAX_SHARDS:,} shards",
            found=f"{num_shards:,}",
            remedy="use a smaller --world-size or --workers, or fewer --shards",
        )
    asked = max(options.readers, options.shards or 0, options.lanes or 0)
    if options.pad == "repeat" and not options.allow_pads and min(num_shards, asked) > _MAX_SHARDS_PER_ROW * num_rows:
        raise InputError(
            "far more shards than rows: nearly all samples would be pads",
            expected=f"at most {_MAX_SHARDS_PER_ROW * num_rows:,} shards for {num_rows:,} rows",
            found=f"{num_shards:,} shards, for world_size {options.world_size:,} x workers {options.workers:,}",
            remedy="use a smaller --world-size or --workers, fewer --shards or --lanes, or --allow-pads to write pads",
        )
    if -(-num_rows // num_shards) > MAX_SHARD_SAMPLES:
        raise InputError(
            "too few shards",
            expected=f"at most {MAX_SHARD_SAMPLES:,} samples in a shard",
            found=f"{num_rows:,} rows in {num_shards:,} shards",
            remedy="use more --shards, or a smaller --shard-size or --samples-per-shard",
        )


def data_bytes(table: Table, num_fields: int) -> int:
    """Return about how many bytes the shards of a table have."""
    return table.payload_bytes + table.num_rows * num_fields * _MEMBER_OVERHEAD_BYTES


def _num_shards(table: Table, num_fields: int, options: PlanOptions, lanes: int) -> int:
    """Return the number of shards: as given, or by their size or samples."""
    readers, given = options.readers, options.shards
    if given is not None and given % readers:
        near = [n for n in (given // readers * readers, (given // readers + 1) * readers) if n]
        raise InputError(
            "the number of shards is not a multiple of world_size x workers",
            expected=f"a multiple of {readers}, such as {' or '.join(map(str, near))}",
            found=str(given),
            remedy="change --shards, or --world-size and --workers",
        )
    if given is not None:
        return given
    if options.samples_per_shard is not None:
        return round_up(-(-table.num_rows // options.samples_per_shard), readers)
    shards = -(-data_bytes(table, num_fields) // (options.shard_size or DEFAULT_SHARD_BYTES))
    each = math.lcm(lanes, readers)
    most = round_up(table.num_rows, each)
    if options.shard_size is not None:
        return min(round_up(shards, readers), most)
    # At most 1 % pads with up to twice as many shards, or else the fewest pads.
    num_shards = min(round_up(shards, each), most)
    pads = {num: -table.num_rows % num for num in range(num_shards, 2 * num_shards + 1, each)}
    return next((num for num in pads if pads[num] * 100 <= table.num_rows), min(pads, key=pads.__getitem__))


def task_shards(plan: Plan, jobs: int, num_left: int, rows: int = 0) -> int:
    """Return how many consecutive shards a task writes; this does not change the shards.

    A task reads its row groups from the start. If row groups are larger than shards, neighbouring shards share a task,
    so that little is read twice, but every job gets work. Tasks that gather rows have several shards too, because a
    small shard gathers from as many places as a large one.

    Args:
        plan: The plan.
        jobs: Number of parallel tasks, at least 1.
        num_left: Number of shards that are not written yet.
        rows: How many rows a task may gather; 0 if it reads them in the order of the table.
    """
    largest = max(max(file.counts, default=0) for file in plan.table.files)
    each = max(1, plan.num_samples // plan.num_shards)
    if rows:
        return max(1, min(rows // each, -(-num_left // (_GATHERS_PER_JOB * jobs))))
    enough = -(-_REREAD_GROUPS * largest // each) if largest > each else 1
    return max(1, min(enough, -(-num_left // jobs)))
