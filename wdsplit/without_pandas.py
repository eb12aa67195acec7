"""Keeps pyarrow from importing pandas in commands and their worker processes.

The import takes 0.12 s in each process, and any `pyarrow.array` of Python or numpy values starts it. A conversion of
1,000 rows takes 0.3 s without it, so importing less elsewhere cannot make up for it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["do_without_pandas"]


class _NoPandas:
    """A module finder that makes `import pandas` fail as if pandas were not installed.

    None in `sys.modules` does so too, but not for pyarrow: Cython's import returns the None.
    """

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is disabled in this command", name=name)


def do_without_pandas() -> None:
    """Keep pyarrow from importing pandas in this process.

    pyarrow imports pandas, if installed, when it converts its first Python or numpy value, to recognise pandas objects.
    It tries only once, so this makes that attempt fail. Other code can still import pandas afterwards. Call this only
    in processes where pyarrow converts no pandas objects.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(1)
    finally:
        sys.meta_path.remove(finder)
