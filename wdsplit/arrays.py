"""Types of numpy arrays, for annotations. Pure (no I/O)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Float64", "Int64", "UInt64"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
