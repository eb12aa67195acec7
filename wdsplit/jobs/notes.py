"""The notes of a run: the results of its items, for resuming, for shares and for later passes.

A note is a JSON list: the results of consecutive items of a pass, as far as its task has come. A share notes all of its
items once more in one note, so that few notes are read later. Notes of the same items have the same results, because
tasks are repeatable. A torn note, as after a power failure, counts as missing; one with invalid content is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson

from wdsplit.engines.local import in_order
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, WdsplitError
from wdsplit.storage.interface import Storage

__all__ = ["Notes", "read_note"]

Result = TypeVar("Result")

_NAME = re.compile(r"(.+)-(\d{8})-(\d{8})(?:-share-(\d+)-of-(\d+))?\.json")
_MOST_RESULTS = 256
"""The results of a note that grows with its task: each result writes it again."""
_NOTES_AT_ONCE = 16
_MAX_CHARACTERS = 80


class Notes:
    """The notes in a folder of a run's output."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def write(self, name: str, items: range, results: Sequence[Any], share: str = "") -> None:
        """Note the results of the first of these items, in JSON; `share` marks the note of a share."""
        with self._storage.publish(f"{self._folder}/{name}-{items.start:08d}-{items.stop:08d}{share}.json") as file:
            file.write([orjson.dumps(results, default=list)])

    def write_each(self, name: str, items: range, results: Iterable[Result]) -> list[Result]:
        """Note each result of consecutive items as it comes; return them."""
        found: list[Result] = []
        for result in results:
            low = len(found) // _MOST_RESULTS * _MOST_RESULTS
            found.append(result)
            self.write(name, items[low : low + _MOST_RESULTS], found[low:])
        return found

    def read(self, name: str, items: range, parse: Callable[[Any], Result]) -> Iterator[tuple[int, Result]]:
        """Yield the noted results of a pass, each item once; the folder is listed once.

        Args:
            name: The pass.
            items: Only these items.
            parse: Returns a result from its JSON values; raises TypeError or ValueError if they are invalid.

        Raises:
            CorruptDataError: A note is invalid.
        """
        wanted = np.zeros(items.stop, np.bool_)
        wanted[items.start :: items.step] = True
        matches = map(_NAME.fullmatch, self._storage.list(self._folder))
        named = [match for match in matches if match is not None and match[1] == name]
        # A share has all of its items in one note, so that few others are read.
        for some in ([match for match in named if match[4]], [match for match in named if not match[4]]):
            needed = [match for match in some if wanted[int(match[2]) : int(match[3])].any()]
            notes = in_order(lambda match: self._read(match[0], int(match[3]) - int(match[2])), needed, _NOTES_AT_ONCE)
            for match, results in zip(needed, notes, strict=True):
                for item, result in enumerate(results, int(match[2])):
                    if item < items.stop and wanted[item]:
                        wanted[item] = False
                        yield item, self._parsed(match[0], parse, result)

    def collect(self, title: str, name: str, items: range, parse: Callable[[Any], Result]) -> list[Result]:
        """Return the results of items that are all done, in order.

        The first reader notes them under `title`, so that others read one note instead of many.

        Raises:
            CorruptDataError: The result of an item is missing.
        """
        listed = self._read(f"{title}-{0:08d}-{len(items):08d}.json", len(items))
        if len(listed) == len(items):
            return [self._parsed(title, parse, result) for result in listed]
        found = dict(self.read(name, items, parse))
        for item in items:
            if item not in found:
                raise CorruptDataError(
                    "the note of a task is missing or damaged",
                    place=f"{self._storage.url}/{self._folder}",
                    expected=f"a note {name} with the result of item {item}",
                    remedy="continue with --resume; with a plan, run the shares again, pass by pass",
                    url=f"{self._storage.url}/{self._folder}",
                )
        self.write(title, range(len(items)), [found[item] for item in items])
        return [found[item] for item in items]

    def unfinished_shares(self, name: str) -> list[str] | None:
        """Return the shares I/N of a pass without a note; None if no share has one."""
        ended: dict[int, set[int]] = {}
        for match in map(_NAME.fullmatch, self._storage.list(self._folder)):
            if match is not None and match[1] == name and match[4] is not None:
                ended.setdefault(int(match[5]), set()).add(int(match[4]))
        if not ended:
            return None
        count = max(ended, key=lambda count: (len(ended[count]), count))
        return [f"{share}/{count}" for share in sorted(set(range(count)) - ended[count])]

    def _read(self, path: str, max_results: int) -> list[Any]:
        """Return the results in a note; none if it is torn or missing."""
        note = read_note(self._storage, f"{self._folder}/{path}")
        if note is not None and not (isinstance(note, list) and len(note) <= max_results):
            raise self._damaged(path, f"a list of at most {max_results} results", note)
        return note or []

    def _parsed(self, path: str, parse: Callable[[Any], Result], result: Any) -> Result:
        try:
            return parse(result)
        except WdsplitError:
            raise
        except (TypeError, ValueError) as error:
            raise self._damaged(path, "the result of a task", result) from error

    def _damaged(self, path: str, expected: str, found: Any) -> CorruptDataError:
        text, place = orjson.dumps(found).decode(), f"{self._storage.url}/{self._folder}/{path}"
        return CorruptDataError(
            "a progress note of the run is damaged",
            place=place,
            expected=expected,
            found=text[:_MAX_CHARACTERS] + ("..." if len(text) > _MAX_CHARACTERS else ""),
            remedy="remove it, and run the same command again; with a plan, then run the missing shares",
            url=place,
        )


def read_note(storage: Storage, path: str) -> Any:
    """Return the content of a JSON file; None if it is torn or missing."""
    try:
        return orjson.loads(storage.read(path))
    except (DatasetNotFoundError, orjson.JSONDecodeError):
        return None
