"""The scan of a table for duplicate keys, before it is converted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.task import keys_of
from wdsplit.engines.watching import watched
from wdsplit.errors import InputError
from wdsplit.fields.duplicate_keys import Place, find_duplicate_keys
from wdsplit.fields.keys import hash_keys
from wdsplit.tables.read import read_rows

__all__ = ["check_unique_keys"]

_HASHES_AT_ONCE = 32_000_000


def check_unique_keys(plan: Plan) -> None:
    """Refuse duplicate keys in the whole dataset, before anything is written.

    The key column is read once for every 32 million rows.

    Raises:
        InputError: A key is duplicate or invalid.
    """

    def key_batches() -> Iterator[tuple[pa.LargeStringArray, Place]]:
        for rows in read_rows(plan.table, 0, plan.num_rows, [plan.key] if plan.key else []):
            yield keys_of(plan, rows), rows.where

    num_passes = -(-plan.num_rows // _HASHES_AT_ONCE)  # each hash belongs to one pass
    for number in watched("checking keys", range(num_passes), num_passes):
        hashes = []
        for keys, _ in key_batches():
            found = hash_keys(keys)
            hashes.append(found[found % np.uint64(num_passes) == number] if num_passes > 1 else found)
        for duplicate in find_duplicate_keys(hashes, lambda _: key_batches()):
            remedy = "choose another key column, remove the duplicate, or number the rows: leave out --key"
            raise duplicate.error(InputError, f"{remedy}, or give --number-keys for tars")
