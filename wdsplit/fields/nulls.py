"""The ways to handle null values.

Pure (no I/O), and without pyarrow, because the command line's help needs only this.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["NULLS", "Null"]

Null = Literal["error", "omit", "empty"]
NULLS: tuple[Null, ...] = ("error", "omit", "empty")
