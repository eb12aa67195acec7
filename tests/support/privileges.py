"""Folders that may not be read: nothing is forbidden to root, so it becomes another user for a while."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 65534


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """Have only the rights of a user who owns nothing, if this process has those of root."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """Give a folder that every user may reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
