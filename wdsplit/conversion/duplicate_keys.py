"""The scan of a table for duplicate keys, before it is converted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.task import keys_of
from wdsplit.engines.watching import watched
from wdsplit.errors import InputError
from wdsplit.fields.duplicate_keys import Hashes, Place, find_duplicate_keys
from wdsplit.fields.keys import hash_keys
from wdsplit.tables.read import Rows, read_rows

__all__ = ["check_unique_keys"]

_HASHES_AT_ONCE = 32_000_000


def check_unique_keys(plan: Plan) -> None:
    """Refuse duplicate keys in the whole dataset, before anything is written.

    The key column is read once for every 32 million rows.

    Raises:
        InputError: A key is duplicate or invalid.
    """
    num_passes = -(-plan.num_rows // _HASHES_AT_ONCE)
    for number in watched("checking keys", range(num_passes), num_passes):
        hashes = [_hashes_of_pass(plan, rows, num_passes, number) for rows in _key_rows(plan)]
        for duplicate in find_duplicate_keys(hashes, lambda _: _key_batches(plan)):
            remedy = "choose another key column, remove the duplicate, or number the rows: leave out --key"
            raise duplicate.error(InputError, f"{remedy}, or give --number-keys for tars")


def _key_rows(plan: Plan) -> Iterator[Rows]:
    return read_rows(plan.table, 0, plan.num_rows, [plan.key] if plan.key else [])


def _key_batches(plan: Plan) -> Iterator[tuple[pa.LargeStringArray, Place]]:
    for rows in _key_rows(plan):
        yield keys_of(plan, rows), rows.where


def _hashes_of_pass(plan: Plan, rows: Rows, num_passes: int, number: int) -> Hashes:
    """Return the hashes of rows that a pass compares; each hash belongs to one pass."""
    hashes = hash_keys(keys_of(plan, rows))
    return hashes[hashes % np.uint64(num_passes) == number] if num_passes > 1 else hashes
