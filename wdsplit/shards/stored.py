"""What is stored by name beside the shards of a dataset: views and annotations. Some may be damaged, or out of date.

The file of each is named by the version of the dataset that it was made for: `NAME@VERSION`, VERSION being the first
characters of the version's fingerprint.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, WdsplitError, did_you_mean
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.texts import listed

__all__ = ["VERSION", "Kind", "version_of"]

logger = logging.getLogger(__name__)

Stored = TypeVar("Stored")

_CHARACTERS = 16
VERSION = f"[0-9a-f]{{{_CHARACTERS}}}"
"""Matches the part of a version's fingerprint that is in the names of files for that version."""
_MAX_NAMES = 20


def version_of(fingerprint: str) -> str:
    """Return the part of a version's fingerprint that is in the names of files for that version."""
    return fingerprint[:_CHARACTERS]


@dataclass(frozen=True)
class Kind(Generic[Stored]):
    """A kind of stored objects, which have a name each and a file for each version, with a suffix, in one folder.

    Attributes:
        what: What it is called: view or annotation.
        folder: The folder of the files.
        suffix: The suffix of their names.
        pattern: Matches valid names.
        allowed: The valid names, for errors.
        make: The command that makes one, with {name}.
        again: The commands that make one for the latest version, with {name}.
        read: Reads one, or its header, given its name and path; raises CorruptDataError or InputError.
        fingerprint: Returns the fingerprint of the version that one was made for.
    """

    what: str
    folder: str
    suffix: str
    pattern: re.Pattern[str]
    allowed: str
    make: str
    again: str
    read: Callable[[ReadableStorage, str, str], Stored]
    fingerprint: Callable[[Stored], str]

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

    def path(self, name: str, fingerprint: str) -> str:
        """Return the path of the file of this name for a version, given its fingerprint or the part in names."""
        return f"{self.folder}/{self.checked(name)}@{version_of(fingerprint)}{self.suffix}"

    def versions(self, storage: ReadableStorage) -> dict[str, list[str]]:
        """Return the names of all objects of a dataset, sorted, and for which versions each has files.

        These may be versions that the dataset does not have, or has no more.
        """
        found: dict[str, list[str]] = {}
        for entry in storage.list(self.folder):
            match = re.fullmatch(rf"({self.pattern.pattern})@({VERSION}){re.escape(self.suffix)}", entry)
            if match:
                found.setdefault(match[1], []).append(match[2])
        return dict(sorted(found.items()))

    def of_version(self, storage: ReadableStorage, manifest: Manifest, others: Iterable[str]) -> list[str]:
        """Return the names of the objects of a version, and of those of no version: `others` has other fingerprints."""
        own, known = version_of(manifest.fingerprint), set(map(version_of, others))
        return [name for name, made in self.versions(storage).items() if own in made or known.isdisjoint(made)]

    def paths(self, storage: ReadableStorage, name: str) -> list[str]:
        """Return the paths of all files of this name."""
        return [self.path(name, version) for version in self.versions(storage).get(name, ())]

    def remove_empty_folder(self, storage: Storage) -> None:
        """Remove the folder if nothing is in it: a lock may have made it."""
        if not storage.is_remote:
            with suppress(OSError):  # something is in it, or another process has made it again
                os.rmdir(os.path.join(storage.url, self.folder))

    def find(self, storage: ReadableStorage, name: str, manifest: Manifest) -> Stored:
        """Read the object that was made for a version.

        Raises:
            CorruptDataError: It is damaged.
            InputError: There is none, or it was made by another version of the format.
        """
        try:
            return self._read(storage, name, manifest.fingerprint)
        except DatasetNotFoundError:
            raise self.missing(storage, name, manifest) from None

    def _read(self, storage: ReadableStorage, name: str, version: str) -> Stored:
        path = self.path(name, version)
        found = self.read(storage, name, path)
        if self.path(name, self.fingerprint(found)) != path:
            raise self.unreadable(name, f"a file for {self.fingerprint(found)}").in_dataset(storage.url, path)
        return found

    def newest(self, storage: ReadableStorage, name: str, manifest: Manifest) -> Stored:
        """Read the object of a version; else that of the newest one before, or of other shards.

        Raises:
            CorruptDataError: It is damaged.
            InputError: There is none of this name, or it was made by another version of the format.
        """
        versions = self.versions(storage).get(name)
        if not versions:
            raise self.unknown(storage, name)
        return self._read(storage, name, self._newest(versions, manifest))

    def _newest(self, versions: list[str], manifest: Manifest) -> str:
        known = [manifest.fingerprint, *(each.fingerprint for each in reversed(manifest.history))]
        return next((each for each in map(version_of, known) if each in versions), versions[-1])

    def scan(self, storage: ReadableStorage, manifest: Manifest) -> tuple[dict[str, Stored], dict[str, WdsplitError]]:
        """Return the newest objects by name, including stale ones, and the errors of unreadable ones by name."""
        found: dict[str, Stored] = {}
        damaged: dict[str, WdsplitError] = {}
        for name, versions in self.versions(storage).items():
            try:
                found[name] = self._read(storage, name, self._newest(versions, manifest))
            except (CorruptDataError, InputError) as error:
                damaged[name] = error
        return found, damaged

    def listed(self, storage: ReadableStorage, manifest: Manifest) -> dict[str, Stored]:
        """Return the readable of these objects; warn of the others."""
        found, damaged = self.scan(storage, manifest)
        for name, error in damaged.items():
            logger.warning("%s: %s %r left out: %s", storage.url, self.what, name, error.cause)
        return found

    def remedy(self, name: str) -> str:
        """Return the advice for an object that cannot be used."""
        make, command = self.make.format(name=name), self.make.split()[1]
        return f"make it again with `{make}`, or remove it with `wdsplit {command} DATASET --drop {name}`"

    def unreadable(self, name: str, found: str) -> CorruptDataError:
        """Return the error for a file that is damaged, or has another version of the format."""
        return CorruptDataError(
            f"{self.what} {name!r} cannot be read",
            expected="a file as this version of wdsplit writes it",
            found=found[:1000],
            remedy=self.remedy(name),
        )

    def missing(self, storage: ReadableStorage, name: str, manifest: Manifest) -> WdsplitError:
        """Return the error for a name that has no object for a version: it was made for another one, or not at all."""
        versions = list[str]()
        with suppress(WdsplitError):  # not every store can be listed
            versions = self.versions(storage).get(name, versions)
        if not versions:
            return self.unknown(storage, name)
        latest = manifest
        with suppress(WdsplitError):
            latest = read_manifest(storage)  # an older version does not know those after it
        newest = self._newest(versions, latest)
        number = next((each.number for each in latest.history if version_of(each.fingerprint) == newest), None)
        if number is None:
            error = InputError(
                f"{self.what} {name!r} was made for other shards than the dataset has now",
                expected=f"one for the fingerprint {manifest.fingerprint}",
                found=f"one for {newest}...",
                remedy=self.remedy(name),
            )
        else:
            is_latest = manifest.version == latest.version
            again = f", or make it for this one with {self.again.format(name=name)}" if is_latest else ""
            error = InputError(
                f"{self.what} {name!r} was made for version {number} of the dataset, not for this one",
                expected=f"version {manifest.version}",
                found=f"version {number}",
                remedy=f"open the dataset with version={number}{again}",
            )
        return error.in_dataset(storage.url, self.path(name, newest))

    def unknown(self, storage: ReadableStorage, name: str) -> InputError:
        """Return the error for a name that does not exist."""
        names: list[str] = []
        with suppress(WdsplitError):  # not every store can be listed
            names = list(self.versions(storage))
        return InputError(
            f"there is no {self.what} {name!r}",
            place=storage.url,
            expected=f"one of {listed(names, _MAX_NAMES)}" if names else "",
            found=name if names else f"no {self.what}s at all",
            remedy=did_you_mean([name], names) or f"make it with `{self.make.partition(' DATASET')[0]}`",
        )
