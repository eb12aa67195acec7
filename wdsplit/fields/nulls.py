"""What may be done with null values.

Pure (no I/O), and without pyarrow: the help of the command line needs no more.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["NULLS", "Null"]

Null = Literal["error", "omit", "empty"]
NULLS: tuple[Null, ...] = ("error", "omit", "empty")
