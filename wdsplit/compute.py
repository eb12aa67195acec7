"""The functions of `pyarrow.compute`, which is imported when the first of them is used.

The import takes 22 ms, a third of what a first batch imports besides torch, and a first batch uses none of these
functions. Only `tar` imports them from here: its modules write tars by them, and parse tars for the loader without.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    function = getattr(importlib.import_module("pyarrow.compute"), name)
    globals()[name] = function
    return function
