"""The functions of `pyarrow.compute`, which is imported when the first of them is used.

The import takes about as long as opening a dataset and reading its first batch, which need none of these functions.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    function = getattr(importlib.import_module("pyarrow.compute"), name)
    globals()[name] = function
    return function
