"""The notes of a run: files of its tasks and shares in its folder, for the process that commits it.

A torn note, as after a power failure, counts as missing: another one has the same content, or its work is repeated. A
complete note with invalid content is an error.
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
    """Return the content of a note; None if it is torn or missing."""
    try:
        return orjson.loads(storage.read(path))
    except (DatasetNotFoundError, orjson.JSONDecodeError):
        return None


def read_note_of_plan(storage: Storage, plan: Plan, path: str) -> dict[str, Any]:
    """Return a note of a run of this plan; an empty one if it is of another plan, torn or missing."""
    note = read_note(storage, path)
    return note if isinstance(note, dict) and note.get("plan") == plan.hash else {}


def note_shard(storage: Storage, number: int, shard: Shard) -> None:
    """Note that a shard is published."""
    with storage.publish(f"{DONE_FOLDER}/{number:06d}.json") as file:
        file.write([orjson.dumps(shard)])


def note_share(
    storage: Storage, plan: Plan, name: str, share: int, num_shares: int, shards: Mapping[int, Shard] | None = None
) -> None:
    """Note that a share of a pass is finished, with all of its shards, so that the commit reads one note, not many."""
    rows = [
        [number, shard.num_samples, shard.num_pads, shard.num_bytes, shard.checksum]
        for number, shard in sorted((shards or {}).items())
    ]
    with storage.publish(f"{_SHARES_FOLDER}/{_prefix(name)}{share}-of-{num_shares}.json") as file:
        file.write([orjson.dumps({"plan": plan.hash, "shards": rows})])


def _prefix(name: str) -> str:
    return "" if name == "write" else f"{name}-"


def _ended_shares(storage: Storage, name: str) -> list[re.Match[str]]:
    """Return the matched names of the notes on a pass: the share, and the number of shares."""
    pattern = re.compile(rf"{_prefix(name)}(\d+)-of-(\d+)\.json")
    return list(filter(None, map(pattern.fullmatch, storage.list(_SHARES_FOLDER))))


def describe_unfinished_shares(storage: Storage, name: str) -> str:
    """Return which shares have not finished a pass, if any has: only their notes have the number of shares."""
    ended: dict[int, set[int]] = {}
    for match in _ended_shares(storage, name):
        ended.setdefault(int(match[2]), set()).add(int(match[1]))
    if not ended:
        return "; no share has finished"
    num_shares = max(ended, key=lambda count: (len(ended[count]), count))
    left = sorted(set(range(num_shares)) - ended[num_shares])
    return f"; unfinished shares: {first_few([f'{share}/{num_shares}' for share in left])}" if left else ""


def first_few(texts: Sequence[str]) -> str:
    """Return the first few texts, and the number of the others."""
    return ", ".join(texts[:_MAX_LISTED]) + (
        f", and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    )


def read_published(storage: Storage, plan: Plan) -> Published:
    """Return the noted shards: from the notes of finished shares, else from those of single shards.

    Raises:
        CorruptDataError: A note is invalid.
        WdsplitError: A noted shard does not match the plan.
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
    """Yield the notes of shards, looked up by name; torn and missing ones are left out.

    Raises:
        CorruptDataError: A note is invalid.
    """
    notes = _read(storage, DONE_FOLDER, [f"{number:06d}.json" for number in numbers])
    for number, (place, note) in zip(numbers, notes, strict=True):
        if note is not None:
            yield number, _parse_shard(note, place)


def _read(storage: Storage, folder: str, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the place and the content of each note; None if it is torn or missing."""

    def read(name: str) -> tuple[str, Any]:
        path = f"{folder}/{name}"
        return f"{storage.url}/{path}", read_note(storage, path)

    return in_order(read, names, _NOTES_AT_ONCE)


def _parse_share(plan: Plan, note: Any, place: str) -> dict[int, Shard]:
    """Return the shards that a share has noted; none if its plan is another one."""
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
        remedy="remove it, and run the same command again; with a plan, then run the missing shares",
        url=place,
    )
