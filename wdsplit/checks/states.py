"""Finds the state of a loader in a file: JSON or a torch checkpoint that contains it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wdsplit.errors import DatasetNotFoundError, MissingDependencyError, StateError, StorageError, first_line
from wdsplit.texts import listed

__all__ = ["read_state"]

_NAMES = {"version", "epoch", "position", "fingerprint", "seed", "shuffle", "lanes", "window", "tail"}
"""Keys that every state of a loader has."""
_MAX_DEPTH, _SHOWN = 20, 5


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the state of a loader from a file.

    Args:
        path: A JSON file, or a torch checkpoint, which is loaded with `weights_only=True`. It is the state or contains
            one.

    Raises:
        StateError: The file has no state, or several.
        MissingDependencyError: It is a torch checkpoint, and torch is not installed.
        DatasetNotFoundError: The file does not exist.
        StorageError: It cannot be read.
    """
    file = os.fspath(path)
    content = _content(file)
    found = {".".join(map(str, where)): state for where, state in _states(content, ())}
    distinct = list({json.dumps(state, sort_keys=True, default=repr): state for state in found.values()}.values())
    if len(distinct) != 1:
        is_dict = isinstance(content, Mapping)
        names = listed(content, _SHOWN, lambda name: str(name)[:40]) if is_dict else ""
        held = f"a dict of {names or 'nothing'}" if is_dict else f"a {type(content).__name__}"
        raise StateError(
            "several states of a loader in the file" if found else "no state of a loader in the file",
            place=file,
            expected="one dict that loader.state_dict() returned, by itself or in a checkpoint",
            found=listed(found, _SHOWN) or held,
            remedy="load the file, and give one of them as state="
            if found
            else "save loader.state_dict() with the checkpoint",
        )
    return dict(distinct[0])


def _content(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            is_json = file.read(1024).lstrip()[:1] in (b"{", b"[")
        if is_json:
            return json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise DatasetNotFoundError("no such file", place=path, url=path) from error
    except OSError as error:
        raise StorageError("the file cannot be read", place=path, found=error.strerror or "") from error
    except ValueError as error:
        raise _unreadable(path, error) from error
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torch") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zip and torch
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> StateError:
    return StateError(
        "the file is neither JSON nor a checkpoint that torch loads with weights_only=True",
        place=path,
        found=first_line(error)[:200],
        remedy="save the state beside the checkpoint: json.dump(loader.state_dict(), file)",
    )


def _states(value: Any, where: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Yield the states in a value, each with the keys that lead to it."""
    if isinstance(value, Mapping):
        if value.keys() >= _NAMES:
            yield where, value
            return
        children = value.items()
    elif isinstance(value, (list, tuple)):
        children = dict(enumerate(value)).items()
    else:
        return
    for key, child in children if len(where) < _MAX_DEPTH else ():
        yield from _states(child, (*where, key))
