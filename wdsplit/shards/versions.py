"""The versions of a dataset that samples were appended to: their names on disk, and what a header says of each.

Pure (no I/O). A version is never changed. `versions/N.json` is its header; `wdsplit.json` is a copy of the latest. The
table of a version's shards is named by its checksum, so that two writers never write one name differently.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.shards.table import SHARDS_NAME
from wdsplit.texts import counted, human_bytes, safe_text

__all__ = [
    "ADDED_FOLDER",
    "NO_NEXT_KEY",
    "OF_APPEND",
    "OF_SHARD",
    "OF_VERSION",
    "REWRITTEN",
    "VERSIONS_FOLDER",
    "Version",
    "before_erasing",
    "erased_path",
    "parse_history",
    "rewritten_path",
    "table_path",
    "version_path",
]

VERSIONS_FOLDER, ADDED_FOLDER = "versions", "added"
"""The folders of headers and tables, and of the shards of each append: a dataset of its own in a folder of its own."""
OF_VERSION, OF_APPEND = re.compile(r"\d+(-[0-9a-f]{16})?\.(json|parquet|erased)"), re.compile("[0-9a-f]{16}")
"""The names of the files in the first of these folders, and of the folders in the second."""
NO_NEXT_KEY = -1
"""The next key of a dataset whose keys are not all numbers."""
OF_SHARD = re.compile(r"(.*?)(?:\.tar(?:\.places|\.parquet|\.idx)?|\.idx)")
"""The names of the files of a shard: what comes before is the same in all."""
REWRITTEN = re.compile(r"\.\d+-[0-9a-f]{16}(?=\.(?:tar|idx))")
"""What the name of a shard that was written again has before its suffix: the version, and the hash of the run."""


@dataclass(frozen=True, repr=False)
class Version:
    """A version of a dataset.

    Attributes:
        number: Its number, from 1.
        fingerprint: The fingerprint of its manifest.
        num_samples: Number of its samples, without pads.
        num_shards: Number of its shards.
        num_bytes: Bytes of its shards.
        next_key: The number from which keys of later rows count on; NO_NEXT_KEY if keys come from columns.
        source: Identifies the rows that it added; empty if unknown.
        inputs: The inputs that it added, for users.
        folder: The folder of the shards that it added; empty for the first version, and where samples were erased.
        created: When it was made, as UTC in ISO 8601; empty if unknown.
    """

    number: int
    fingerprint: str
    num_samples: int
    num_shards: int
    num_bytes: int
    next_key: int
    source: str = ""
    inputs: str = ""
    folder: str = ""
    created: str = ""

    def __repr__(self) -> str:
        counts = f"{counted(self.num_samples, 'sample')} in {counted(self.num_shards, 'shard')}"
        inputs = f"; {safe_text(self.inputs, 60)}" if self.inputs else ""
        return f"<Version {self.number}: {counts}, {human_bytes(self.num_bytes)}{inputs}>"

    @property
    def erased(self) -> bool:
        """Whether it was made by erasing samples."""
        return self.number > 1 and not self.folder


def before_erasing(versions: Sequence[Version]) -> tuple[int, ...]:
    """Return those of some versions, rising, that have samples which a later one of these erased."""
    last = max((each.number for each in versions if each.erased), default=0)
    return tuple(each.number for each in versions if each.number < last)


def version_path(version: int) -> str:
    """Return the path of a version's header."""
    return f"{VERSIONS_FOLDER}/{version}.json"


def table_path(version: int, checksum: str) -> str:
    """Return the path of the table of a version's shards, given the checksum of the table."""
    return SHARDS_NAME if version == 1 else f"{VERSIONS_FOLDER}/{version}-{checksum.rpartition(':')[2][:16]}.parquet"


def rewritten_path(path: str, version: int, run: str) -> str:
    """Return the path of a shard that is written again for a version by a run, given its path before."""
    return f"{REWRITTEN.sub('', path).removesuffix('.tar')}.{version}-{run}.tar"


def erased_path(version: int, run: str) -> str:
    """Return the path of the hashes of the keys that a version erased, given the hash of its run."""
    return f"{VERSIONS_FOLDER}/{version}-{run}.erased"


def parse_history(values: Any, version: int) -> tuple[Version, ...]:
    """Return the versions up to one, from the JSON values of its header.

    Raises:
        ValueError: They are invalid.
    """
    kinds = {one.name: int if one.type == "int" else str for one in dataclasses.fields(Version)}
    for value in values if isinstance(values, list) else [None]:
        if not isinstance(value, dict) or {name: type(each) for name, each in value.items()} != kinds:
            raise ValueError(f"the version {repr(value)[:200]}")
    history = tuple(Version(**value) for value in values)
    numbers = [0, *(each.number for each in history)]
    if numbers[-1] != version or version < 2 or not all(map(operator.lt, numbers, numbers[1:])):
        raise ValueError(f"the versions {numbers[1:][-5:]} as those up to {version}")
    return history
