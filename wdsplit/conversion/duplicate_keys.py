"""Keys that stand twice: found before anything is written.

Eight bytes a row are held, in as many passes over the key column as memory asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.task import keys_of
from wdsplit.errors import InputError
from wdsplit.fields.keys import hash_keys
from wdsplit.tables.read import Rows, read_rows

__all__ = ["check_unique_keys", "repeated"]

_HASHES_AT_ONCE = 32_000_000


def repeated(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the hashes that stand more than once, rising."""
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def check_unique_keys(plan: Plan) -> None:
    """Refuse a key that stands twice in the whole dataset, before anything is written.

    Keys are compared by 64-bit hashes, in as many passes as memory asks for; where two hashes are equal, the keys
    themselves are looked at.
    """
    passes = -(-plan.num_rows // _HASHES_AT_ONCE)
    for number in range(passes):
        hashes = [_hashes_of_pass(plan, rows, passes, number) for rows in _key_rows(plan)]
        equal = repeated(np.concatenate(hashes))
        if len(equal):
            _look_at_keys(plan, equal)


def _key_rows(plan: Plan) -> Iterator[Rows]:
    return read_rows(plan.table, 0, plan.num_rows, [plan.key] if plan.key else [])


def _hashes_of_pass(plan: Plan, rows: Rows, passes: int, number: int) -> npt.NDArray[np.uint64]:
    hashes = hash_keys(keys_of(plan, rows))
    return hashes[hashes % np.uint64(passes) == number] if passes > 1 else hashes


def _look_at_keys(plan: Plan, suspects: npt.NDArray[np.uint64]) -> None:
    """Read the keys whose hashes stand twice, and refuse the first that really does."""
    seen: dict[str, str] = {}
    for rows in _key_rows(plan):
        keys = keys_of(plan, rows)
        for row in np.flatnonzero(np.isin(hash_keys(keys), suspects)).tolist():
            key = keys[row].as_py()
            if key in seen:
                raise InputError(
                    "a key stands twice",
                    place=rows.where(row),
                    expected="each key once in the whole dataset",
                    found=f"{key!r}, which is also the key of {seen[key]}",
                    remedy="choose another key column, remove the duplicate, or number the rows: leave out --key, "
                    "or give --number-keys for tars",
                    key=key,
                )
            seen[key] = rows.where(row)
