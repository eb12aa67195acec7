"""What is stored by name beside the shards of a dataset: views and annotations. Some may be damaged, or out of date."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wdsplit.errors import CorruptDataError, InputError, WdsplitError, did_you_mean
from wdsplit.shards.manifest import Manifest
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.texts import listed

__all__ = ["AT_VERSION", "VERSION_CHARACTERS", "Kind"]

logger = logging.getLogger(__name__)

Stored = TypeVar("Stored")

VERSION_CHARACTERS = 16
"""The part of a version's fingerprint that is in the names of files for that version."""
AT_VERSION = f"@[0-9a-f]{{{VERSION_CHARACTERS}}}"
"""How that part is in the names of views and annotations."""
_MAX_NAMES = 20


@dataclass(frozen=True)
class Kind(Generic[Stored]):
    """A kind of stored objects, each with a file NAME and a suffix in one folder; NAME@VERSION is that of one version.

    Attributes:
        what: What it is called: view or annotation.
        folder: The folder of the files.
        suffix: The suffix of their names.
        pattern: Matches valid names.
        allowed: The valid names, for errors.
        make: The command that makes one, with {name} and {how} for its name and its recipe.
        read: Reads one, or its header, given its name and path; raises CorruptDataError or InputError.
        fingerprint: Returns the fingerprint of the version that one was made for.
        update: The command that makes one again for the latest version, with {name}; empty if there is none.
    """

    what: str
    folder: str
    suffix: str
    pattern: re.Pattern[str]
    allowed: str
    make: str
    read: Callable[[ReadableStorage, str, str], Stored]
    fingerprint: Callable[[Stored], str]
    update: str = ""

    def checked(self, name: Any) -> str:
        """Return a name if it is valid: it becomes the name of a file.

        Raises:
            InputError: The name is invalid.
        """
        if not isinstance(name, str) or not self.pattern.fullmatch(name):
            raise InputError(
                f"invalid {self.what} name", expected=self.allowed, found=repr(name), remedy="give another name"
            )
        return name

    def path(self, name: str) -> str:
        """Return the path of the file of this name."""
        return f"{self.folder}/{self.checked(name)}{self.suffix}"

    def path_of_version(self, name: str, fingerprint: str) -> str:
        """Return the path of the file of this name for one version, if the file without a version is for another."""
        return f"{self.folder}/{self.checked(name)}@{fingerprint[:VERSION_CHARACTERS]}{self.suffix}"

    def name_in(self, entry: str) -> str:
        """Return the name of the object that a file in the folder belongs to; empty if it belongs to none."""
        found = re.fullmatch(rf"({self.pattern.pattern})({AT_VERSION})?{re.escape(self.suffix)}", entry)
        return "" if found is None else found[1]

    def of_versions(self, entries: Iterable[str], name: str) -> list[str]:
        """Return the paths of the files of this name that are each for one version, given the files in the folder."""
        own = (entry for entry in entries if self.name_in(entry) == name)
        return [f"{self.folder}/{entry}" for entry in own if entry != f"{name}{self.suffix}"]

    def find(self, storage: ReadableStorage, name: str, manifest: Manifest | None = None) -> Stored:
        """Read the object that is for a version, if it has one of its own, else the one of this name; see `read`.

        Args:
            storage: The dataset.
            name: The name.
            manifest: The manifest of the version; None for any.
        """
        found = self.read(storage, name, self.path(name))
        if manifest is not None and self.fingerprint(found) != manifest.fingerprint:
            own = self.path_of_version(name, manifest.fingerprint)
            return found if storage.size(own) is None else self.read(storage, name, own)
        return found

    def keep_older(self, storage: Storage, name: str, manifest: Manifest) -> None:
        """Keep an object that will be replaced, if it is of an older version: trainings may still read that."""
        path, older = self.path(name), {each.fingerprint for each in manifest.history[:-1]}
        if not older or storage.size(path) is None:
            return
        with suppress(WdsplitError):  # a damaged file is of no version
            made_for = self.fingerprint(self.read(storage, name, path))
            if made_for in older:
                with storage.publish(self.path_of_version(name, made_for), durable=True) as file:
                    file.write([storage.read(path)])

    def names(self, storage: ReadableStorage) -> list[str]:
        """Return the names of all objects of a dataset, sorted, including those for other shards."""
        files = [name for name in storage.list(self.folder) if name.endswith(self.suffix)]
        return sorted(filter(self.pattern.fullmatch, (name.removesuffix(self.suffix) for name in files)))

    def scan(self, storage: ReadableStorage, manifest: Manifest) -> tuple[dict[str, Stored], dict[str, WdsplitError]]:
        """Return all objects of a version by name, including stale ones, and the errors of unreadable ones by name."""
        found: dict[str, Stored] = {}
        damaged: dict[str, WdsplitError] = {}
        for name in self.names(storage):
            try:
                found[name] = self.find(storage, name, manifest)
            except (CorruptDataError, InputError) as error:
                damaged[name] = error
        return found, damaged

    def listed(self, storage: ReadableStorage, manifest: Manifest) -> dict[str, Stored]:
        """Return the readable objects of a version by name, including stale ones; warn of the others."""
        found, damaged = self.scan(storage, manifest)
        for name, error in damaged.items():
            logger.warning("%s: %s %r left out: %s", storage.url, self.what, name, error.cause)
        return found

    def remedy(self, name: str, how: str = "...") -> str:
        """Return the advice for an object that cannot be used."""
        make, command = self.make.format(name=name, how=how), self.make.split()[1]
        return f"make it again with `{make}`, or remove it with `wdsplit {command} DATASET --drop {name}`"

    def unreadable(self, name: str, found: str) -> CorruptDataError:
        """Return the error for a file that is damaged, or has another version of the format."""
        return CorruptDataError(
            f"{self.what} {name!r} cannot be read",
            expected="a file as this version of wdsplit writes it",
            found=found[:1000],
            remedy=self.remedy(name),
        )

    def refuse_stale(self, name: str, fingerprint: str, manifest: Manifest, how: str = "...") -> None:
        """Refuse an object with the fingerprint of another dataset, or of another version of it.

        Raises:
            InputError: The fingerprints differ.
        """
        versions = {each.fingerprint: each.number for each in manifest.history}
        if fingerprint != manifest.fingerprint and fingerprint in versions:
            number, again = versions[fingerprint], self.update.format(name=name)
            raise InputError(
                f"{self.what} {name!r} was made for version {number} of the dataset, and does not cover later samples",
                expected=f"version {manifest.version}",
                found=f"version {number}",
                remedy=f"open the dataset with version={number}, or "
                + (f"extend the {self.what} with `{again}`" if again else self.remedy(name, how)),
            )
        if fingerprint != manifest.fingerprint:
            raise InputError(
                f"{self.what} {name!r} was made for other shards than the dataset has now",
                expected=f"the fingerprint {manifest.fingerprint}",
                found=fingerprint[:1000],
                remedy=self.remedy(name, how),
            )

    def unknown(self, storage: ReadableStorage, name: str) -> InputError:
        """Return the error for a name that does not exist."""
        names: list[str] = []
        with suppress(WdsplitError):  # not every store can be listed
            names = self.names(storage)
        return InputError(
            f"there is no {self.what} {name!r}",
            place=storage.url,
            expected=f"one of {listed(names, _MAX_NAMES)}" if names else "",
            found=name if names else f"no {self.what}s at all",
            remedy=did_you_mean([name], names) or f"make it with `{self.make.partition(' DATASET')[0]}`",
        )
