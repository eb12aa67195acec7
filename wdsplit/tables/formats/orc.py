"""ORC: stripes are the row groups; each is read at once, with the requested columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.orc as orc
import xxhash

from wdsplit.tables.formats.common import check_names, sliced
from wdsplit.tables.formats.opening import changed, described, open_input, open_unchanged
from wdsplit.tables.table import InputFile, Remote

__all__ = ["WHAT", "open_file", "read_batches"]

WHAT = "ORC"

_UNCOMPRESSED = "UNCOMPRESSED"
_AHEAD_BYTES = 1024**2
"""Minimum bytes of a request for a remote file: the parts of a stripe's columns are adjacent."""


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Read the footer; if there are several stripes, count their rows by decoding the cheapest column."""
    with open_input(path, remote, _AHEAD_BYTES) as source:
        table = orc.ORCFile(source.as_arrow())
        check_names(table.schema)
        rows = _stripe_rows(table)
        tail = table.file_footer_length + table.file_postscript_length + table.stripe_statistics_length + 1
        footer = xxhash.xxh3_128_hexdigest(source.read_at(max(0, source.size - tail), tail))
        data_bytes = int(table.content_length)
        if table.compression != _UNCOMPRESSED and table.nrows:  # estimated from the first stripe
            data_bytes = int(table.read_stripe(0).nbytes * table.nrows // max(1, rows[0]))
        return described(source, "orc", rows, data_bytes, footer), table.schema


def _stripe_rows(table: orc.ORCFile) -> tuple[int, ...]:
    """Return the rows of each stripe; pyarrow knows them only after reading the stripe."""
    if table.nstripes <= 1:
        return (int(table.nrows),) * int(table.nstripes)
    column = min(table.schema, key=_cost).name
    rows = tuple(int(table.read_stripe(stripe, columns=[column]).num_rows) for stripe in range(table.nstripes))
    if sum(rows) != table.nrows:
        raise ValueError(f"the stripes have {sum(rows)} rows, the footer says {table.nrows}")
    return rows


def _cost(field: pa.Field) -> int:
    """Return the relative cost of decoding a column: the bits of a value, and more if they vary."""
    try:
        return int(field.type.bit_width)
    except ValueError:
        return 10_000 if pa.types.is_nested(field.type) else 1000


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some stripes, cut into batches."""
    with open_unchanged(file, _AHEAD_BYTES) as source:
        table = orc.ORCFile(source.as_arrow())
        for group in groups:
            stripe = table.read_stripe(group, columns=list(columns))
            if not {*columns} <= {*stripe.schema.names}:  # pyarrow took a name with a dot for a struct's field
                stripe = table.read_stripe(group)
            if len(stripe) != file.row_groups[group]:
                raise changed(file, f"{len(stripe)} rows in stripe {group}")
            stripe.validate(full=True)
            yield from sliced(stripe.select(list(columns)))
