"""The errors of wdsplit, and helpers to write them.

Each error has a cause, a place, what was expected and found, and a remedy. Each is also the builtin error that a caller
would expect. Worker processes can pickle all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = [
    "ConvertError",
    "CorruptDataError",
    "DatasetNotFoundError",
    "InputError",
    "MissingDependencyError",
    "OutputExistsError",
    "PipelineError",
    "SampleNotFoundError",
    "StateError",
    "StorageError",
    "TopologyError",
    "UnansweredError",
    "UnsizedError",
    "WdsplitError",
]


_MAX_SHOWN = 2000
"""Characters of an expected or found value in a message: a value of a file may have millions."""


class WdsplitError(Exception):
    """The base class of all errors that wdsplit raises on purpose.

    Args:
        cause: What went wrong, one sentence without a full stop.
        place: Where: a file, row, key or option. Default: `url`.
        expected: What should have been there.
        found: What was found.
        remedy: How to fix it.
        url: The file or shard concerned, if any.
        key: The sample key concerned, if any.
        offset: The byte offset in `url` concerned, or -1.
    """

    def __init__(
        self,
        cause: str,
        place: str = "",
        expected: str = "",
        found: str = "",
        remedy: str = "",
        url: str = "",
        key: str = "",
        offset: int = -1,
    ) -> None:
        self.cause = cause
        self.place = place or url
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.url = url
        self.key = key
        self.offset = offset
        super().__init__(cause)

    def __str__(self) -> str:
        lines = [self.cause]
        for name in ("place", "expected", "found", "remedy"):
            value = getattr(self, name)
            if value:
                more = f"... ({len(value):,} characters)" if len(value) > _MAX_SHOWN else ""
                lines.append(f"  {name}: {value[:_MAX_SHOWN]}{more}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all attributes: the builtin base classes would keep only the cause."""
        values = (self.cause, self.place, self.expected, self.found, self.remedy, self.url, self.key, self.offset)
        return type(self), values

    def at(self, place: str) -> WdsplitError:
        """Return the same error with `place` before its own place: a caller that knows the file adds it to the row."""
        joined = f"{place}, {self.place}" if self.place else place
        return type(self)(self.cause, joined, self.expected, self.found, self.remedy, self.url, self.key, self.offset)

    def in_dataset(self, dataset: str, path: str) -> WdsplitError:
        """Return the same error of a file of a dataset, with its place, and the dataset in the commands of the remedy.

        Who writes such a remedy need not know the dataset, and writes `wdsplit COMMAND DATASET`.
        """
        error = self.at(f"{dataset}/{path}")
        error.remedy = re.sub(r"\b(wdsplit \w+) DATASET\b", lambda found: f"{found[1]} {dataset}", error.remedy)
        return error


class InputError(WdsplitError, ValueError):
    """An input table, an option or an argument is invalid."""


class SampleNotFoundError(InputError, KeyError, IndexError):
    """The dataset has no sample with the requested key or number."""


class CorruptDataError(WdsplitError, ValueError):
    """A shard, an index, a manifest or a payload is damaged."""


class DatasetNotFoundError(WdsplitError, FileNotFoundError):
    """There is no finished dataset, or no input, at the given path."""


class MissingDependencyError(WdsplitError, ImportError):
    """An optional library that this part of wdsplit needs is not installed."""

    @classmethod
    def for_extra(cls, extra: str) -> MissingDependencyError:
        """Return the error that names the extra of wdsplit that installs the missing library."""
        return cls(f"{extra} is not installed", remedy=f"install it: pip install 'wdsplit[{extra}]'")


class OutputExistsError(WdsplitError, FileExistsError):
    """The output already exists, and neither overwriting nor resuming was requested."""


class StorageError(WdsplitError, OSError):
    """The operating system or a remote store refused to read or write."""


class UnansweredError(StorageError):
    """A store or a network file system gave no valid answer; a later attempt may succeed."""


class TopologyError(WdsplitError, ValueError):
    """Rank, world size, worker and number of workers contradict each other."""


class StateError(WdsplitError, ValueError):
    """A state dict does not belong to this dataset or these options."""


class UnsizedError(WdsplitError, TypeError):
    """The object has no length. Libraries expect this TypeError from `len`."""


class PipelineError(WdsplitError, RuntimeError):
    """A stage of the pipeline did not return one sample for each input, or failed."""


class ConvertError(WdsplitError, RuntimeError):
    """A conversion stopped before it was complete."""


def noted(error: Exception, note: str) -> Exception:
    """Return an error of another library with a note of where it happened."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):  # Python 3.10
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])
    return error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that is not blank, or the name of its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def nearest_names(unknown: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the known names most similar to the unknown ones, without duplicates; an unknown name may have none."""
    from difflib import get_close_matches

    lower = {name.lower(): name for name in known}
    near = (get_close_matches(name.lower(), lower, 1) for name in unknown)
    return list(dict.fromkeys(lower[name] for names in near for name in names))


def did_you_mean(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return the remedy for names that do not exist, such as "did you mean 'label'?"; empty if no name is similar."""
    near = nearest_names(unknown, known)
    return f"did you mean {' and '.join(map(repr, near))}?" if near else ""


def refuse_unknown(keywords: Iterable[str], known: Iterable[str]) -> None:
    """Raise the TypeError for the first keyword argument that does not exist."""
    known = list(known)
    for name in keywords:
        if name not in known:
            hint = did_you_mean([name], known)
            raise TypeError(f"unexpected keyword argument {name!r}{', ' if hint else ''}{hint}")
