"""The rows of a batch that meet a condition.

Pure (no I/O).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.conditions.parse import Where
from wdsplit.errors import InputError

__all__ = ["rows_meeting"]

_ROW_NAME = "wdsplit row number"


def rows_meeting(where: Where, columns: Sequence[Any], num_rows: int, text: str) -> npt.NDArray[np.int64]:
    """Return the rows that meet a condition: int64, in ascending order.

    Args:
        where: The condition.
        columns: Its columns, in order, as Arrow arrays.
        num_rows: Number of rows of the batch.
        text: The text of the condition, for errors.

    Raises:
        InputError: The condition fails for some row.
    """
    rows = pa.table([*columns, pa.array(np.arange(num_rows))], names=[*where.columns, _ROW_NAME])
    try:
        kept: npt.NDArray[np.int64] = rows.filter(where.expression).column(_ROW_NAME).to_numpy()
    except pa.ArrowInvalid as error:
        raise InputError(
            "the condition fails for some row",
            place=text,
            found=str(error),
            remedy="keep integers within 64 bits, and integers that are combined with floats below 2**53",
        ) from error
    return kept
