"""Commands do without pandas, whose import takes longer than a short command."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["do_without_pandas"]


class _NoPandas:
    """A finder of modules that makes `import pandas` fail as if it was not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow does without pandas here", name=name)


def do_without_pandas() -> None:
    """Let pyarrow not import pandas in this process.

    Where pandas is installed, pyarrow imports it with the first Python or numpy value that it converts, to recognise
    pandas' objects. It tries once and remembers, so here it tries in vain. Anything else may import pandas afterwards.
    Only call this in a process in which pyarrow converts none of its objects: that of a command.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(1)
    finally:
        sys.meta_path.remove(finder)
