"""Bad samples: how many are accepted, how they are counted, logged and listed in a file.

`substitutes` chooses the samples that replace them.
"""

from __future__ import annotations

import logging
import math
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from wdsplit.errors import PipelineError, WdsplitError, first_line
from wdsplit.loading.reading.source import AnySource
from wdsplit.shards.sample_tables import FILE_NAME, read_names
from wdsplit.storage.local_file import translate_errors
from wdsplit.storage.locks import open_locked, unlock
from wdsplit.texts import counted

__all__ = ["BadSample", "BadSamples", "Found", "bad_samples_problems", "file_of", "with_file"]

logger = logging.getLogger(__name__)

_LOGGED_ONE_BY_ONE = 10
_NAMED = 3
_MAX_MESSAGE = 2000
_MIN_SEARCHED = 1000
"""A search for a good sample passes at least this many bad ones in a row, even if fewer are accepted."""


def file_of(source: AnySource, url: str, key: str) -> str:
    """Return ", file NAME" with the file that a sample was made from; empty if the dataset does not say."""
    parts: Any = getattr(source, "sources", (source,))
    for part in parts:
        schema, folder = part.manifest.samples, f"{part.storage().url}/"
        if not key or schema is None or FILE_NAME not in schema.names or not url.startswith(folder):
            continue
        number = part.manifest.shards.table.column("path").index(url[len(folder) :]).as_py()
        with suppress(WdsplitError):
            names = dict(read_names(part.storage(), part.manifest.shards[number], schema)) if number >= 0 else {}
            return f", file {names[key]!r}" if names.get(key) else ""
    return ""


def with_file(error: WdsplitError, source: AnySource) -> WdsplitError:
    """Return the error of a sample with the file that the sample was made from."""
    error.place += file_of(source, error.url, error.key)
    return error


def bad_samples_problems(on_bad_sample: Any, max_bad_samples: Any, bad_samples_file: Any) -> list[str]:
    """Return the problems of the options for bad samples, a text for each."""
    problems = []
    if on_bad_sample not in ("raise", "substitute"):
        problems.append(f"on_bad_sample = {on_bad_sample!r}: expected 'raise' or 'substitute'")
    is_number = isinstance(max_bad_samples, Real) and not isinstance(max_bad_samples, bool)
    is_count = is_number and isinstance(max_bad_samples, int) and max_bad_samples >= 0
    if not is_count and not (is_number and not isinstance(max_bad_samples, int) and 0 <= max_bad_samples <= 1):
        expected = "a number of samples, or a float from 0 to 1: a fraction of the epoch"
        problems.append(f"max_bad_samples = {max_bad_samples!r}: expected {expected}")
    if bad_samples_file is None:
        return problems
    if not isinstance(bad_samples_file, (str, os.PathLike)) or "://" in os.fspath(bad_samples_file):
        problems.append(f"bad_samples_file = {bad_samples_file!r}: expected the path of a local file")
    elif os.path.isdir(bad_samples_file):
        problems.append(f"bad_samples_file = {bad_samples_file!r}: expected a file, found a folder")
    if on_bad_sample == "raise":
        problems.append(f"bad_samples_file = {bad_samples_file!r}: expected on_bad_sample='substitute' too")
    return problems


class BadSample(NamedTuple):
    """A bad sample.

    Attributes:
        key: Its key; None if it cannot be read.
        shard: The URL of its shard.
        sample: Its place in the shard's tar.
        position: Its position in the epoch.
        error: What is wrong with it.
        file_name: The file that it was made from; empty if the dataset does not say.
    """

    key: str | None
    shard: str
    sample: int
    position: int
    error: Exception
    file_name: str = ""

    def __str__(self) -> str:
        name = f"sample {self.sample}" if self.key is None else repr(self.key)
        name += f" (file {self.file_name!r})" if self.file_name else ""
        return f"{name} of {self.shard}: {type(self.error).__name__}: {_printable(first_line(self.error))}"


@dataclass(frozen=True)
class BadSamples:
    """How to replace bad samples.

    Attributes:
        max_bad: Limit for each rank in an epoch: a number, or a float, the fraction of the samples that it reads.
        file: The file that lists them; None for no list.
    """

    max_bad: int | float
    file: str | None


class Found:
    """Records the bad samples of one reader in one epoch.

    Args:
        options: How to replace them.
        url: The dataset's name in messages.
        num_samples: Samples of the epoch.
        epoch: The epoch.
        readers: Readers that share its samples and count separately, without asking each other.
        count: Counts a bad sample; returns how many were found in the epoch, by all readers that count together.

    Attributes:
        max_searched: Bad samples in a row that a search for a good one may pass.
    """

    def __init__(
        self, options: BadSamples, url: str, num_samples: int, epoch: int, readers: int, count: Callable[[], int]
    ) -> None:
        limit = options.max_bad
        if not isinstance(limit, int):  # of 1.0 all, for a reader may have some more than others
            limit = num_samples if limit == 1 else math.ceil(limit * num_samples / readers)
        self.max_searched = max(limit, _MIN_SEARCHED)
        self._options = options
        self._url = url
        self._epoch = epoch
        self._limit = limit
        self._count = count
        self._first: list[BadSample] = []
        self._list = None if options.file is None else _List(options.file)

    def note(self, bad: BadSample) -> None:
        """Count a bad sample, log it unless there were many, and list it.

        Raises:
            PipelineError: There are more bad samples than accepted.
            StorageError: The file cannot be written.
        """
        number = self._count()
        if len(self._first) < _NAMED:
            self._first.append(bad)
        if self._list is not None:
            self._list.add(bad, self._epoch)
        if number <= _LOGGED_ONE_BY_ONE:
            logger.warning(
                "%s: epoch %d, position %d: replaced a bad sample: %s", self._url, self._epoch, bad.position, bad
            )
        elif number in {10**digits for digits in range(2, 19)}:
            logger.warning("%s: epoch %d: %s bad samples so far on this rank", self._url, self._epoch, f"{number:,}")
        if number == 1:
            logger.info("%s", "".join(traceback.format_exception(bad.error)).strip())
        if number > self._limit:
            raise self._too_many() from bad.error

    def _too_many(self) -> PipelineError:
        options = self._options
        listed = "pass bad_samples_file= to list all of them"
        if options.file is not None:
            dataset = "DATASET" if self._url.startswith("mix(") else self._url
            command = f"wdsplit view {dataset} clean --exclude {options.file}"
            listed = f"{options.file} lists them; leave them out with `{command}`"
        return self._error(
            f"more than {counted(self._limit, 'bad sample')} on this rank in epoch {self._epoch}",
            expected=f"max_bad_samples = {options.max_bad}"
            + ("" if isinstance(options.max_bad, int) else ", the fraction of the samples that this rank reads"),
            remedy=f"{listed}; or raise max_bad_samples",
        )

    def no_substitute(self, bad: BadSample, num_bad: int) -> PipelineError:
        """Return the error for a bad sample without a substitute, after `num_bad` bad candidates."""
        is_all = num_bad <= self.max_searched
        return self._error(
            "all samples are bad" if is_all else f"more than {num_bad - 1:,} samples in a row are bad",
            expected="a good sample to replace the bad ones with",
            remedy="fix the stage that raises the error, or the dataset; `wdsplit verify` finds damaged samples",
            last=bad,
        )

    def _error(self, cause: str, expected: str, remedy: str, last: BadSample | None = None) -> PipelineError:
        named = list(dict.fromkeys([*self._first, *([] if last is None else [last])]))
        return PipelineError(
            cause,
            place=self._url,
            expected=expected,
            found="; ".join(map(str, named)),
            remedy=remedy,
            url=named[-1].shard,
            key=named[-1].key or f"sample {named[-1].sample}",
        )


class _List:
    """A file of JSON lines, to which the workers of all ranks append: each sample once.

    A writer locks the file and first reads what others have appended since its last line.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._num_read = 0
        self._known: set[tuple[str, int]] = set()

    def add(self, bad: BadSample, epoch: int) -> None:
        """Append a sample, unless it is already listed."""
        if (bad.shard, bad.sample) in self._known:
            return
        with translate_errors(self._path, writing=True):
            fd = open_locked(self._path, wait=True)
            try:
                self._read(fd)
                if (bad.shard, bad.sample) not in self._known:
                    os.pwrite(fd, _line(bad, epoch), self._num_read)
            finally:
                unlock(fd)

    def _read(self, fd: int) -> None:
        """Read the lines that others appended; a line whose writer died before its end is overwritten."""
        data = os.pread(fd, max(0, os.fstat(fd).st_size - self._num_read), self._num_read)
        lines = data[: data.rfind(b"\n") + 1]
        self._num_read += len(lines)
        for line in lines.splitlines():
            try:
                values = orjson.loads(line)
                self._known.add((values["shard"], values["sample"]))
            except (ValueError, KeyError, TypeError):  # a list of another kind
                continue


def _line(bad: BadSample, epoch: int) -> bytes:
    """Return the line of a bad sample in a list, which `wdsplit view --exclude` reads."""
    values = {
        "key": bad.key,
        **({"file_name": bad.file_name} if bad.file_name else {}),
        "shard": bad.shard,
        "sample": bad.sample,
        "epoch": epoch,
        "position": bad.position,
        "error": type(bad.error).__name__,
        "message": _printable(str(bad.error))[:_MAX_MESSAGE],
    }
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def _printable(text: str) -> str:
    """Return a text that JSON can encode."""
    return text.encode("utf-8", "backslashreplace").decode()
