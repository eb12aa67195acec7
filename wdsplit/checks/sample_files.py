"""Payloads of samples written as files, named by key and field."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wdsplit.errors import OutputExistsError, StorageError
from wdsplit.storage.local import write_whole
from wdsplit.tar.names import RESERVED_FIELDS

__all__ = ["payloads", "save_samples", "write_files"]

_UNSAFE_PARTS = {"": "%2F", ".": "%2E", "..": "%2E%2E"}
"""Replacements for the parts of a key that would lead out of the folder, or be lost."""


def payloads(sample: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the fields of a sample that are stored, without `__key__` and the like."""
    return {name: value for name, value in sample.items() if name not in RESERVED_FIELDS and value is not None}


def save_samples(samples: Iterable[Mapping[str, Any]], folder: Path, overwrite: bool = False) -> list[str]:
    """Write the payloads of samples as FOLDER/KEY.FIELD and return the paths; the folders in a key are kept.

    Args:
        samples: The fields as bytes, with `__key__`.
        folder: The folder; created if missing.
        overwrite: Replace files that exist.

    Raises:
        OutputExistsError: A file exists already.
        StorageError: A file cannot be written.
    """
    written: list[str] = []
    for sample in samples:
        *parents, name = (_UNSAFE_PARTS.get(part, part) for part in sample["__key__"].split("/"))
        place = folder.joinpath(*parents)
        files = {place / f"{name}.{field}": payload for field, payload in payloads(sample).items()}
        write_files(files, overwrite)
        written += map(str, files)
    return written


def write_files(files: Mapping[Path, bytes], overwrite: bool = False) -> None:
    """Write files and make their folders.

    Raises:
        OutputExistsError: A file exists already.
        StorageError: A file cannot be written.
    """
    for file, payload in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if not overwrite and os.path.lexists(file):
                raise FileExistsError(errno.EEXIST, "", str(file))
        except FileExistsError as error:
            raise OutputExistsError(
                "the file exists already", place=str(error.filename), remedy="choose another folder or file"
            ) from error
        except OSError as error:
            raise StorageError("a file cannot be written", place=str(file), found=str(error.strerror)) from error
        write_whole(file, payload)
