"""Shards of remote stores as the streams that webdataset reads, opened by wdsplit's storage: whole, or an error.

`webdataset.gopen.gopen_schemes` says what opens a URL, by its scheme, for the whole process. The opener that wdsplit
puts there opens `ShardUrl`s, and passes any other URL to the opener that was there before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from webdataset.gopen import gopen_schemes

from wdsplit.storage.interface import ReadableFile
from wdsplit.storage.opening import open_object
from wdsplit.storage.pieces import in_pieces

__all__ = ["ShardStream", "ShardUrl", "is_ours"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REPLACED = {"http": "gopen_curl", "https": "gopen_curl", "gs": "gopen_gsutil", "hf": "gopen_hf"}
"""Openers of webdataset that take a truncated stream for a whole one. Other openers are the user's choice."""


class ShardUrl(str):
    """The URL of a remote shard, and how to read it. A copy in another process has only the text."""

    size: int | None
    options: Mapping[str, Any] | None

    @classmethod
    def of(cls, url: str, size: int | None, options: Mapping[str, Any] | None) -> ShardUrl:
        """Return a URL, and let webdataset open it by wdsplit.

        Args:
            url: Its text.
            size: Bytes of the shard, if known: a shard of another size is refused.
            options: How to reach its store.
        """
        shard = cls(url)
        shard.size, shard.options = size, options
        scheme = url.partition("://")[0].lower()
        before = gopen_schemes.get(scheme, gopen_schemes["__default__"])
        if not isinstance(before, _Opener):  # other URLs of the scheme are opened as before
            gopen_schemes[scheme] = _Opener(before)
        return shard

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the options, which may hold secrets, in this process."""
        return str, (str(self),)


def is_ours(url: str) -> bool:
    """Tell whether wdsplit opens a URL for webdataset: any of a remote store, unless the user has chosen an opener."""
    found = _SCHEME.match(url)
    if found is None or found[1].lower() == "file":
        return False
    before = gopen_schemes.get(found[1])
    if before is None or isinstance(before, _Opener):
        return True
    return (before.__module__, before.__name__) == ("webdataset.gopen", _REPLACED.get(found[1]))


@dataclass(frozen=True)
class _Opener:
    """Opens the shards of a scheme.

    Attributes:
        before: Opens all other URLs.
    """

    before: Callable[..., Any]

    def __call__(self, url: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        if not isinstance(url, ShardUrl) or mode[0] != "r":
            return self.before(url, mode, *arguments, **options)
        return io.BufferedReader(ShardStream(open_object(url, url.options, url.size)))


class ShardStream(io.RawIOBase):
    """A file that is read from beginning to end: a few pieces ahead, by several connections.

    Args:
        file: The file. Its errors are raised on reading.
    """

    def __init__(self, file: ReadableFile) -> None:
        self._pieces = in_pieces(file)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; return how many, 0 at the end."""
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self) -> None:
        """Fetch nothing more."""
        self._pieces.close()
        super().close()
