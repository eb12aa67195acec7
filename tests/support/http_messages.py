"""HTTP/1.1 as far as a proxy needs it: where a message begins and ends, and what its head says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

PIECE_BYTES = 2**18


@dataclass(frozen=True)
class Head:
    """What comes before a body: the first line, and the fields, by name and value."""

    start: str
    fields: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str | None:
        """Return the value of a field in lower case, None where it is absent."""
        return next((value.lower() for known, value in self.fields if known.lower() == name.lower()), None)

    def without(self, name: str) -> Head:
        return replace(self, fields=tuple(field for field in self.fields if field[0].lower() != name.lower()))

    def having(self, name: str, value: object) -> Head:
        head = self.without(name)
        return replace(head, fields=(*head.fields, (name, str(value))))

    def encode(self) -> bytes:
        lines = [self.start, *(f"{name}: {value}" for name, value in self.fields), "", ""]
        return "\r\n".join(lines).encode("latin-1")

    @property
    def status(self) -> int:
        return int(self.start.split()[1])

    @property
    def is_chunked(self) -> bool:
        return self["Transfer-Encoding"] == "chunked"


@dataclass(frozen=True)
class Message:
    """A request or an answer.

    Attributes:
        head: Its head.
        pieces: Those of its body, as they come.
        has_end: Whether the head tells where the body ends; else the connection's end does.
    """

    head: Head
    pieces: AsyncIterator[bytes]
    has_end: bool = True


async def read_head(reader: asyncio.StreamReader) -> Head:
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    fields = (line.split(":", 1) for line in lines)
    return Head(start, tuple((name, value.strip()) for name, value in fields))


async def read_pieces(reader: asyncio.StreamReader, num_bytes: int | None) -> AsyncIterator[bytes]:
    """Yield so many bytes, or with None all until the connection ends."""
    left = PIECE_BYTES if num_bytes is None else num_bytes
    while left:
        piece = await reader.read(min(left, PIECE_BYTES))
        if not piece and num_bytes is not None:
            raise ConnectionAbortedError(f"{left} bytes of a body are missing")
        if not piece:
            return
        left -= 0 if num_bytes is None else len(piece)
        yield piece


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the bytes of a chunked body; trailers are dropped."""
    while num_bytes := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        async for piece in read_pieces(reader, num_bytes):
            yield piece
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass


def request_pieces(head: Head, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    return read_chunks(reader) if head.is_chunked else read_pieces(reader, int(head["Content-Length"] or 0))


async def read_answer(reader: asyncio.StreamReader, method: str) -> Message:
    head = await read_head(reader)
    while head.status < 200:
        head = await read_head(reader)
    if method == "HEAD" or head.status in (204, 304):
        return Message(head.without("Transfer-Encoding"), read_pieces(reader, 0))
    if head.is_chunked:
        return Message(head, read_chunks(reader))
    length = head["Content-Length"]
    if length is None:
        return Message(head, read_pieces(reader, None), has_end=False)
    return Message(head, read_pieces(reader, int(length)))
