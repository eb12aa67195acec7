"""The errors of wdsplit: each says cause, place, expected, found and remedy.

Only exceptions live here, and what helps to write them. Each is also the builtin that a caller would expect, carries
the same typed attributes, and survives pickling on its way out of a worker process.
"""

from __future__ import annotations

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


class WdsplitError(Exception):
    """The root of all errors that wdsplit raises on purpose.

    Args:
        cause: What went wrong, one sentence without a full stop.
        place: Where: a file, row, key or option.
        expected: What should have been there.
        found: What was there.
        remedy: What the reader can do about it.
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
        self.place = place
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
                lines.append(f"  {name}: {value}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the attributes, because the builtin bases would keep the cause alone."""
        values = (self.cause, self.place, self.expected, self.found, self.remedy, self.url, self.key, self.offset)
        return type(self), values

    def at(self, place: str) -> WdsplitError:
        """Return the same error with `place` put before its own place: the caller knows the file, the core the row."""
        joined = f"{place}, {self.place}" if self.place else place
        return type(self)(self.cause, joined, self.expected, self.found, self.remedy, self.url, self.key, self.offset)


class InputError(WdsplitError, ValueError):
    """An input table, an option or an argument cannot be used as it is."""


class SampleNotFoundError(InputError, KeyError, IndexError):
    """The dataset has no sample with the requested key or number."""


class CorruptDataError(WdsplitError, ValueError):
    """A shard, an index, a manifest or a payload is damaged."""


class DatasetNotFoundError(WdsplitError, FileNotFoundError):
    """There is no finished dataset, or no such input, at the given path."""


class MissingDependencyError(WdsplitError, ImportError):
    """A library that this part of wdsplit needs, and the rest does not, is not installed."""

    @classmethod
    def for_extra(cls, extra: str) -> MissingDependencyError:
        """Return the error that names the extra of wdsplit that installs the missing library."""
        return cls(
            f"{extra} is not installed", remedy=f"install it, or wdsplit with it: pip install 'wdsplit[{extra}]'"
        )


class OutputExistsError(WdsplitError, FileExistsError):
    """The output exists already, and neither overwriting nor resuming was requested."""


class StorageError(WdsplitError, OSError):
    """The operating system or a remote store refused to read or write."""


class UnansweredError(StorageError):
    """A store or a network file system gave no valid answer; it may do so later."""


class TopologyError(WdsplitError, ValueError):
    """Rank, world size, worker or number of workers contradict each other."""


class StateError(WdsplitError, ValueError):
    """A state dict does not belong to this dataset or these options."""


class UnsizedError(WdsplitError, TypeError):
    """What has no length was asked for one; libraries take this TypeError for just that."""


class PipelineError(WdsplitError, RuntimeError):
    """A stage of the pipeline did not give one sample for each sample it took."""


class ConvertError(WdsplitError, RuntimeError):
    """A conversion ended before it was complete."""


def noted(error: Exception, note: str) -> Exception:
    """Return a foreign error with a note: where it happened."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):  # Python 3.10
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])
    return error


def nearest_names(unknown: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return for each unknown name the known one that was probably meant, each once; for some there may be none."""
    from difflib import get_close_matches

    lower = {name.lower(): name for name in known}
    near = (get_close_matches(name.lower(), lower, 1) for name in unknown)
    return list(dict.fromkeys(lower[name] for names in near for name in names))


def did_you_mean(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return the remedy for names that do not exist, such as "did you mean 'label'?"; empty if no name is near."""
    near = nearest_names(unknown, known)
    return f"did you mean {' and '.join(map(repr, near))}?" if near else ""
