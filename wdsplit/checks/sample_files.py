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

__all__ = ["save_samples"]

_UNSAFE_PARTS = {"": "%2F", ".": "%2E", "..": "%2E%2E"}
"""Replacements for the parts of a key that would lead out of the folder, or be lost."""


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
        for field, payload in sample.items():
            if field in RESERVED_FIELDS or payload is None:
                continue
            file = folder.joinpath(*parents, f"{name}.{field}")
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                if not overwrite and os.path.lexists(file):
                    raise FileExistsError(errno.EEXIST, "", str(file))
            except FileExistsError as error:
                remedy = "choose another folder"
                raise OutputExistsError("the file exists already", str(error.filename), remedy=remedy) from error
            except OSError as error:
                raise StorageError("a file cannot be written", place=str(file), found=str(error.strerror)) from error
            write_whole(file, payload)
            written.append(str(file))
    return written
