"""The notes of a run: what its tasks and its shares leave in its folder, for the process that commits it.

A torn note, as after a power failure, counts as none: another one says the same, or its work is done again. One that
is whole, but not as a run writes it, was changed by somebody, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.record.published import Published
from wdsplit.engines.local import in_order
from wdsplit.errors import CorruptDataError, DatasetNotFoundError
from wdsplit.shards.manifest import RUN_FOLDER, Shard, shard_path
from wdsplit.storage.interface import Storage

__all__ = [
    "DONE_FOLDER",
    "describe_unfinished_shares",
    "first_few",
    "note_shard",
    "note_share",
    "read_note",
    "read_note_of_plan",
    "read_published",
    "shard_notes",
    "shards_noted",
]

DONE_FOLDER = f"{RUN_FOLDER}/shards"
_SHARES_FOLDER = f"{RUN_FOLDER}/shares"
_DONE = re.compile(r"(\d+)\.json")
_NOTES_AT_ONCE = 16
_SIZES = range(2**63)
_MAX_LISTED = 8
_MAX_CHARACTERS = 80


def read_note(storage: Storage, path: str) -> Any:
    """Return what a note holds; None if it is torn, or not there."""
    try:
        return orjson.loads(storage.read(path))
    except (DatasetNotFoundError, orjson.JSONDecodeError):
        return None


def read_note_of_plan(storage: Storage, plan: Plan, path: str) -> dict[str, Any]:
    """Return a note that a run of a plan has left; an empty one if it is another plan's, torn, or not there."""
    note = read_note(storage, path)
    return note if isinstance(note, dict) and note.get("plan") == plan.hash else {}


def note_shard(storage: Storage, number: int, shard: Shard) -> None:
    """Note that a shard is published."""
    with storage.publish(f"{DONE_FOLDER}/{number:06d}.json") as file:
        file.write([orjson.dumps(shard)])


def note_share(
    storage: Storage, plan: Plan, name: str, share: int, num_shares: int, shards: Mapping[int, Shard] | None = None
) -> None:
    """Note that a share of a pass has ended, and the shards that it has written: one note for the commit, not many."""
    rows = [
        [number, shard.num_samples, shard.num_pads, shard.num_bytes, shard.checksum]
        for number, shard in sorted((shards or {}).items())
    ]
    with storage.publish(f"{_SHARES_FOLDER}/{_prefix(name)}{share}-of-{num_shares}.json") as file:
        file.write([orjson.dumps({"plan": plan.hash, "shards": rows})])


def _prefix(name: str) -> str:
    return "" if name == "write" else f"{name}-"


def _ended_shares(storage: Storage, name: str) -> list[re.Match[str]]:
    """Return the names of the notes on a pass, matched: the share, and of how many."""
    pattern = re.compile(rf"{_prefix(name)}(\d+)-of-(\d+)\.json")
    return list(filter(None, map(pattern.fullmatch, storage.list(_SHARES_FOLDER))))


def describe_unfinished_shares(storage: Storage, name: str) -> str:
    """Say which shares have not ended a pass, if some have: only they say how many there are."""
    ended: dict[int, set[int]] = {}
    for match in _ended_shares(storage, name):
        ended.setdefault(int(match[2]), set()).add(int(match[1]))
    if not ended:
        return "; no share has ended"
    num_shares = max(ended, key=lambda count: (len(ended[count]), count))
    left = sorted(set(range(num_shares)) - ended[num_shares])
    return f"; shares that have not ended: {first_few([f'{share}/{num_shares}' for share in left])}" if left else ""


def first_few(texts: Sequence[str]) -> str:
    """Say the first of some texts, and how many more there are."""
    return ", ".join(texts[:_MAX_LISTED]) + (
        f", and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    )


def read_published(storage: Storage, plan: Plan) -> Published:
    """Return the shards that are noted: by the shares that have ended, else one by one.

    Raises:
        CorruptDataError: A note is not as a run writes it.
        WdsplitError: A noted shard is not the planned one.
    """
    published = Published(plan)
    names = [match[0] for match in _ended_shares(storage, "write")]
    for place, note in _read(storage, _SHARES_FOLDER, names):
        published.add(_parse_share(plan, note, place))
    if len(published) < plan.num_shards:
        left = sorted(set(shards_noted(storage)).intersection(published.missing().tolist()))
        for number, shard in shard_notes(storage, left):
            published.add({number: shard})
    return published


def shards_noted(storage: Storage) -> list[int]:
    """Return the numbers of the shards that tasks have noted; their folder is listed once."""
    return [int(match[1]) for match in filter(None, map(_DONE.fullmatch, storage.list(DONE_FOLDER)))]


def shard_notes(storage: Storage, numbers: Sequence[int]) -> Iterator[tuple[int, Shard]]:
    """Give what is noted of shards; each is looked for by its name, and left out if its note is torn or not there.

    Raises:
        CorruptDataError: A note is not as a run writes it.
    """
    notes = _read(storage, DONE_FOLDER, [f"{number:06d}.json" for number in numbers])
    for number, (place, note) in zip(numbers, notes, strict=True):
        if note is not None:
            yield number, _parse_shard(note, place)


def _read(storage: Storage, folder: str, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Give the place of each note, and what it holds; None if it is torn, or not there."""

    def read(name: str) -> tuple[str, Any]:
        path = f"{folder}/{name}"
        return f"{storage.url}/{path}", read_note(storage, path)

    return in_order(read, names, _NOTES_AT_ONCE)


def _parse_share(plan: Plan, note: Any, place: str) -> dict[int, Shard]:
    """Return the shards that a share has noted; none if the share is another plan's."""
    match note:
        case None:
            return {}
        case {"plan": str(found), "shards": list(rows)}:
            return dict(_parse_row(plan, row, place) for row in rows) if found == plan.hash else {}
    raise _damaged(place, "the plan of a share, and its shards", note)


def _parse_row(plan: Plan, row: Any, place: str) -> tuple[int, Shard]:
    match row:
        case [int(number), int(num_samples), int(num_pads), int(num_bytes), str(checksum)]:
            if 0 <= number < plan.num_shards and num_bytes in _SIZES:
                return number, Shard(shard_path(number), num_samples, num_pads, num_bytes, checksum)
    raise _damaged(place, f"number (below {plan.num_shards}), samples, pads, bytes and checksum of a shard", row)


def _parse_shard(note: Any, place: str) -> Shard:
    match note:
        case {
            "path": str(path),
            "num_samples": int(num_samples),
            "num_pads": int(num_pads),
            "num_bytes": int(num_bytes),
            "checksum": str(checksum),
        } if num_bytes in _SIZES:
            return Shard(path, num_samples, num_pads, num_bytes, checksum)
    raise _damaged(place, "path, num_samples, num_pads, num_bytes and checksum of a shard", note)


def _damaged(place: str, expected: str, found: Any) -> CorruptDataError:
    text = orjson.dumps(found).decode()
    return CorruptDataError(
        "a progress note of the run is damaged",
        place=place,
        expected=expected,
        found=text[:_MAX_CHARACTERS] + ("..." if len(text) > _MAX_CHARACTERS else ""),
        remedy="remove it, and run the same command again; with a plan, run the shares that are missing then",
        url=place,
    )
