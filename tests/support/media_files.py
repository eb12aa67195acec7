"""Folders of small media files: bytes that begin as images do, each file different."""

from __future__ import annotations

import os
from pathlib import Path

from wdsplit.tables.find import find_inputs
from wdsplit.tables.media import open_media

JPG = b"\xff\xd8\xff"


def write_files(folder, *names) -> str:
    """Write a file for each name, with the name in it, and return the folder."""
    for name in names:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPG + name.encode() + bytes(len(name) * 37))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return str(folder)


def listed(*inputs):
    """Return the table that inputs give."""
    return open_media(find_inputs(list(inputs)))


def names_of(table):
    """Return the file names of a table, in order."""
    return [name for file in table.files for name in file.members["file_name"].to_pylist()]
