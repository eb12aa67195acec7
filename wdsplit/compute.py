"""The functions of `pyarrow.compute`, which is imported with the first of them that is used.

The import takes about as long as it takes to open a dataset and read its first batch, which need none of them.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    function = getattr(importlib.import_module("pyarrow.compute"), name)
    globals()[name] = function
    return function
