"""Limits of an order's options: the largest numbers, and the ways an epoch ends.

Pure (no I/O), and without numpy: the help of the command line needs no more.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["MAX_LANES", "MAX_SEED", "MAX_WINDOW", "TAILS", "Tail"]

Tail = Literal["pad", "drop", "uneven"]
TAILS: tuple[Tail, ...] = ("pad", "drop", "uneven")

MAX_SEED = 2**63 - 1
MAX_LANES = 2**20
MAX_WINDOW = 2**40
