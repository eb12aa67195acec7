"""A proxy on loopback between a client and an HTTP server, which hurts chosen requests as a network or a server may.

It knows as much of HTTP/1.1 as it needs to see where a request, an answer and their bodies begin and end. Heads are
passed on as the client wrote them, its Host included, so that signatures stay right. What happens to a request is for
the plan to say: a function from the `Request` to a `Fault` or None. The proxy has one thread, which alone calls the
plan and writes the log.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import socket
import struct
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from http_messages import PIECE_BYTES, Head, Message, read_answer, read_head, request_pieces
from s3server import HOST, Endpoint

FAST = {"first_delay_s": 0.01, "max_delay_s": 0.05, "timeout_s": 30, "deadline_s": 200}
"""Storage options that do not keep the tests waiting; there is patience only with what a test does not wait for."""

NO_LINGER = struct.pack("ii", 1, 0)
"""A socket that is closed so sends a reset."""


# What the proxy sees and does


@dataclass(frozen=True)
class Request:
    """A request.

    Attributes:
        number: How many came before it, on all connections.
        connection: The number of its connection.
        method: Its method.
        path: Its path, with the query.
        range: The first and the last byte that it asks for; (first, None) for all from there on, (-n, None) for
            the last n; None without a Range.
        head: All that it says.
    """

    number: int
    connection: int
    method: str
    path: str
    range: tuple[int, int | None] | None
    head: Head

    @property
    def num_bytes(self) -> int:
        """How long a range it asks for; for a range with two ends only."""
        assert self.range is not None and self.range[1] is not None, self
        return self.range[1] - self.range[0] + 1


def parse_range(text: str | None) -> tuple[int, int | None] | None:
    if text is None:
        return None
    first, last = text.removeprefix("bytes=").split("-")
    if not first:
        return -int(last), None
    return int(first), int(last) if last else None


@dataclass
class Exchange:
    """What became of a request.

    Attributes:
        request: The request.
        fault: What was done to it.
        status: That of the answer that the client was sent; None as long as there is none.
        bytes_received: Of the request's body.
        bytes_sent: Of the answer's body; what a broken connection has swallowed is counted too.
    """

    request: Request
    fault: Fault | None
    status: int | None = None
    bytes_received: int = 0
    bytes_sent: int = 0


class Hangup(Exception):  # noqa: N818
    """The client gets no more on this connection, which is reset, closed or, with "stall", just left open."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


async def _first(pieces: AsyncIterator[bytes], num_bytes: int, then: str | None = None) -> AsyncIterator[bytes]:
    """Yield so many bytes, or all if there are fewer; then hang up if told how."""
    async for piece in pieces:
        yield piece[:num_bytes]
        num_bytes = max(0, num_bytes - len(piece))
        if not num_bytes:
            break
    if then is not None:
        raise Hangup(then)


# Faults


class Fault:
    """What is done to a request; this one does nothing. Each kind has one of these methods of its own."""

    def instead(self) -> tuple[Head, bytes] | None:
        """Return an answer that is given without asking the server."""
        return None

    def upload(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return what the server shall get of the request's body."""
        return pieces

    async def answer(self, request: Request, answer: Message) -> Message:
        """Return what the client shall get of the server's answer."""
        return answer

    async def head(self, head: bytes) -> AsyncIterator[bytes]:
        """Yield what the client shall get of the head of an answer."""
        yield head


@dataclass(frozen=True)
class SlowHead(Fault):
    """The head of the answer comes byte by byte, five in a second."""

    async def head(self, head: bytes) -> AsyncIterator[bytes]:
        for place in range(len(head)):
            yield head[place : place + 1]
            await asyncio.sleep(0.2)


class Garbled(Fault):
    """The head of the answer is no HTTP."""

    async def head(self, head: bytes) -> AsyncIterator[bytes]:
        yield b"\x00" + head


@dataclass(frozen=True)
class Other(Fault):
    """The answer to a method has another status, other fields (None for none) or another body."""

    status: str = ""
    body: bytes | None = None
    fields: tuple[tuple[str, str | None], ...] = ()
    method: str = "GET"

    async def answer(self, request: Request, answer: Message) -> Message:
        if request.method != self.method:
            return answer
        head, pieces = answer.head, answer.pieces
        if self.status:
            head = replace(head, start=f"HTTP/1.1 {self.status}")
        if self.body is not None:
            head, pieces = head.having("Content-Length", len(self.body)), _one(self.body)
        for name, value in self.fields:
            head = head.without(name) if value is None else head.having(name, value)
        return replace(answer, head=head, pieces=pieces)


@dataclass(frozen=True)
class BrokenOff(Fault):
    """After so many bytes of the body nothing comes any more, though Content-Length announced more."""

    after: int
    how: ClassVar[str]

    async def answer(self, request: Request, answer: Message) -> Message:
        return replace(answer, pieces=_first(answer.pieces, self.after, self.how))


class Cut(BrokenOff):
    """The connection is reset; of the bytes that were sent a client may lose the last."""

    how = "reset"


class Truncate(BrokenOff):
    """The connection is closed."""

    how = "close"


class Stall(BrokenOff):
    """The connection stays open until the client ends it."""

    how = "stall"


@dataclass(frozen=True)
class Shorten(Fault):
    """The body ends after so many bytes, and Content-Length says so; a shorter one is left alone."""

    after: int

    async def answer(self, request: Request, answer: Message) -> Message:
        head = answer.head.having("Content-Length", min(self.after, int(answer.head["Content-Length"] or 0)))
        return Message(head, _first(answer.pieces, self.after))


@dataclass(frozen=True)
class Chunked(Fault):
    """The body comes in chunks, without Content-Length."""

    async def answer(self, request: Request, answer: Message) -> Message:
        head = answer.head.without("Content-Length").having("Transfer-Encoding", "chunked")
        return replace(answer, head=head)


@dataclass(frozen=True)
class Delay(Fault):
    """The answer comes so many seconds late."""

    seconds: float

    async def answer(self, request: Request, answer: Message) -> Message:
        await asyncio.sleep(self.seconds)
        return answer


@dataclass(frozen=True)
class Hold(Fault):
    """The answer comes once an event is set."""

    until: threading.Event

    async def answer(self, request: Request, answer: Message) -> Message:
        while not self.until.is_set():
            await asyncio.sleep(0.005)
        return answer


@dataclass(frozen=True)
class Throttle(Fault):
    """The body comes at so many bytes a second, 20 times a second some."""

    bytes_per_s: int

    async def answer(self, request: Request, answer: Message) -> Message:
        return replace(answer, pieces=self._slowly(answer.pieces))

    async def _slowly(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        step = max(1, self.bytes_per_s // 20)
        async for piece in pieces:
            for start in range(0, len(piece), step):
                part = piece[start : start + step]
                await asyncio.sleep(len(part) / self.bytes_per_s)
                yield part


@dataclass(frozen=True)
class Flip(Fault):
    """All bits of one byte of the answer's body are the other way round, or of the request's body."""

    at: int
    of_request: bool = False

    def upload(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        return _flipped(pieces, self.at) if self.of_request else pieces

    async def answer(self, request: Request, answer: Message) -> Message:
        return answer if self.of_request else replace(answer, pieces=_flipped(answer.pieces, self.at))


async def _flipped(pieces: AsyncIterator[bytes], place: int) -> AsyncIterator[bytes]:
    start = 0
    async for piece in pieces:
        at = place - start
        start += len(piece)
        yield piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :] if 0 <= at < len(piece) else piece


def _object(folder: Path, request: Request) -> bytes:
    """Return the object that a request names, as it lies in the server's folder."""
    return (folder / unquote(urlsplit(request.path).path).lstrip("/")).read_bytes()


@dataclass(frozen=True)
class IgnoreRange(Fault):
    """The answer to a request for a range is 200 with the whole object, which is read in the server's folder."""

    folder: Path

    async def answer(self, request: Request, answer: Message) -> Message:
        if answer.head["Content-Range"] is None:
            return answer
        whole = _object(self.folder, request)
        head = answer.head.without("Content-Range").having("Content-Length", len(whole))
        return Message(replace(head, start="HTTP/1.1 200 OK"), _one(whole))


@dataclass(frozen=True)
class Earlier(Fault):
    """The answer to a request for a range is so many bytes earlier in the object, as its Content-Range says."""

    folder: Path
    num_bytes: int = 512

    async def answer(self, request: Request, answer: Message) -> Message:
        assert request.range is not None
        try:
            whole = _object(self.folder, request)
        except FileNotFoundError:  # the test is over, and one of its threads has not ended yet
            raise Hangup("reset") from None
        first = request.range[0] - self.num_bytes
        part = whole[first : first + request.num_bytes]
        place = f"bytes {first}-{first + len(part) - 1}/{len(whole)}"
        head = answer.head.having("Content-Range", place).having("Content-Length", len(part))
        return Message(replace(head, start="HTTP/1.1 206 Partial Content"), _one(part))


@dataclass(frozen=True)
class LoseAnswer(Fault):
    """The server does what it was asked; the connection is reset before the client hears of it."""

    async def answer(self, request: Request, answer: Message) -> Message:
        raise Hangup("reset")


@dataclass(frozen=True)
class CutUpload(Fault):
    """The connections to client and server are reset after so many bytes of the request's body."""

    after: int

    def upload(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        return _first(pieces, self.after, "reset")


@dataclass(frozen=True)
class ErrorAnswer(Fault):
    """An error as S3 says it, in XML; the server is not asked."""

    status: str
    code: str
    message: str
    retry_after: int | str | None = None

    def instead(self) -> tuple[Head, bytes]:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{self.code}</Code><Message>{self.message}</Message><RequestId>0</RequestId></Error>"
        ).encode()
        fields = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        if self.retry_after is not None:
            fields.append(("Retry-After", str(self.retry_after)))
        return Head(f"HTTP/1.1 {self.status}", tuple(fields)), body


def slow_down(retry_after: int | None = None) -> ErrorAnswer:
    """Return the answer to too many requests; `retry_after` is in seconds."""
    return ErrorAnswer("503 Slow Down", "SlowDown", "Please reduce your request rate.", retry_after)


def internal_error() -> ErrorAnswer:
    return ErrorAnswer("500 Internal Server Error", "InternalError", "We encountered an internal error.")


def expired_token() -> ErrorAnswer:
    return ErrorAnswer("403 Forbidden", "ExpiredToken", "The provided token has expired.")


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body


# Plans

Plan = Callable[[Request], "Fault | None"]
Maker = Callable[[random.Random, int], Fault]
"""Makes a fault for a range of so many bytes."""


def reading_faults(folder: Path) -> tuple[Maker, ...]:
    """Return makers of each kind of fault that a read may meet and that passes; `folder` is the server's.

    A stall lasts as long as the client waits.
    """
    return (
        lambda chance, num_bytes: Cut(chance.randrange(num_bytes)),
        lambda chance, num_bytes: Truncate(chance.randrange(num_bytes)),
        lambda chance, num_bytes: Shorten(chance.randrange(num_bytes)),
        lambda chance, num_bytes: Stall(chance.randrange(num_bytes)),
        lambda chance, num_bytes: Flip(chance.randrange(num_bytes)),
        lambda chance, num_bytes: Delay(chance.uniform(0, 0.2)),
        lambda chance, num_bytes: Throttle(10 * num_bytes),
        lambda chance, num_bytes: IgnoreRange(folder),
        lambda chance, num_bytes: LoseAnswer(),
        lambda chance, num_bytes: slow_down(),
        lambda chance, num_bytes: slow_down(retry_after=1),
        lambda chance, num_bytes: internal_error(),
        lambda chance, num_bytes: expired_token(),
    )


class EveryOther:
    """Gives every other GET of a range faults, the first one too, of all kinds in turn.

    So what there are does not depend on which of several threads asks first: there are faults for half of the requests,
    whatever they ask for, and two where there are three requests. One that is asked again by the only thread gets
    through.

    Attributes:
        num_given: Faults given so far.
    """

    def __init__(self, faults: Sequence[Fault], least_bytes: int) -> None:
        """Make it; ranges of fewer bytes are left alone and not counted."""
        self._faults, self._least_bytes = faults, least_bytes
        self._num_asked = self.num_given = 0

    def __call__(self, request: Request) -> Fault | None:
        if request.method != "GET" or request.range is None or request.num_bytes < self._least_bytes:
            return None
        self._num_asked += 1
        if self._num_asked % 2 == 0:
            return None
        self.num_given += 1
        return self._faults[(self.num_given - 1) % len(self._faults)]


class SeededPlan:
    """Gives a share of the GETs of ranges faults, of all kinds in turn; a seed says which requests and how bad.

    Which number a request has depends on the order in which threads ask, so only of very many requests can be said
    about how many faults there are.

    Attributes:
        num_given: Faults given so far.
    """

    def __init__(self, seed: int, share: float, makers: Sequence[Maker]) -> None:
        self.num_given = 0
        self._seed, self._share, self._makers = seed, share, makers

    def __call__(self, request: Request) -> Fault | None:
        chance = random.Random(f"{self._seed} {request.number}")
        is_ranged = request.method == "GET" and request.range is not None and request.range[1] is not None
        if not is_ranged or chance.random() >= self._share:
            return None
        maker = self._makers[self.num_given % len(self._makers)]
        self.num_given += 1
        return maker(chance, request.num_bytes)


# The proxy


class FaultProxy(Endpoint):
    """The proxy; runs from `start` to `stop`, or in a `with`.

    Attributes:
        plan: What is done to the requests to come.
        port: Where it listens.
    """

    def __init__(
        self,
        server_port: int,
        plan: Plan = lambda request: None,
        *,
        as_s3: bool = False,
        ignored: Container[str] = frozenset(),
        host: str = HOST,
    ) -> None:
        """Make it.

        Args:
            server_port: Where the server listens.
            plan: What is done to the requests to come.
            as_s3: Give answers with a Content-Range the status 206, as S3 does and rclone does not.
            ignored: Buckets of tests that are over, whose readers may have threads that have not ended yet: requests
                about them are answered by "no such bucket", and neither counted nor shown to the plan.
            host: The address at which it listens.
        """
        self.plan = plan
        self._as_s3 = as_s3
        self._ignored = ignored
        self._server_port = server_port
        self._exchanges: list[Exchange] = []
        self._numbers, self._connections = itertools.count(), itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._descriptors: set[int] = set()
        self._errors: list[BaseException] = []
        self._ready = threading.Event()
        self._listening = socket.create_server((host, 0), backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="fault proxy", daemon=True)

    @property
    def exchanges(self) -> list[Exchange]:
        """What there was so far, in the order of the requests."""
        return list(self._exchanges)

    def fetched(self, ending: str) -> tuple[int, int]:
        """Return how many requests there were for objects whose names end so, and how many bytes of them came."""
        found = [exchange for exchange in self._exchanges if exchange.request.path.endswith(ending)]
        return len(found), sum(exchange.bytes_sent for exchange in found)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        self._ready.wait()
        _running.add(self)

    def stop(self) -> None:
        """Break all connections and end the thread; raise what went wrong in the proxy or its plan."""
        _running.discard(self)
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._errors:
            raise self._errors[0]

    def leave_to_parent(self) -> None:
        """Give up the sockets that this process, just forked, has inherited: the parent's close would not end them."""
        with open(os.devnull) as null:
            for descriptor in self._descriptors:
                os.dup2(null.fileno(), descriptor)

    async def _run(self) -> None:
        """Serve until it is to stop; asyncio.run then cancels the tasks of the connections that are left."""
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._descriptors.add(self._listening.fileno())
        server = await asyncio.start_server(self._connected, sock=self._listening, limit=PIECE_BYTES)
        self._ready.set()
        await self._stopping.wait()
        self._loop.remove_reader(self._listening.fileno())
        # A connection that was just accepted gets its task, which closes it; with a closed server it would get none,
        # and a task that is cancelled before it began closes nothing.
        for _ in range(4):
            await asyncio.sleep(0)
        server.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._errors.append(error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection to its end; that client or server leave is no error."""
        connection = next(self._connections)
        descriptor = self._own(writer)
        try:
            while await self._survives(connection, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            await self._end(writer, descriptor)

    async def _survives(self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take a request and answer it; return whether the connection can be used for another."""
        try:
            return await self._exchange(connection, reader, writer)
        except Hangup as hangup:
            if hangup.how == "reset":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            if hangup.how == "stall":
                await reader.read()
            return False

    def _own(self, writer: asyncio.StreamWriter) -> int:
        """Take a new connection into account; what is written to it is not buffered here."""
        writer.transport.set_write_buffer_limits(high=0)
        descriptor: int = writer.get_extra_info("socket").fileno()
        self._descriptors.add(descriptor)
        return descriptor

    async def _end(self, writer: asyncio.StreamWriter, descriptor: int) -> None:
        self._descriptors.discard(descriptor)
        writer.transport.abort()
        await asyncio.sleep(0)

    async def _exchange(self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take a request and answer it, as the plan says; return whether the connection can be used for another."""
        head = await read_head(reader)
        method, path, _ = head.start.split()
        if re.split("[/?]", path)[1] in self._ignored:
            await self._refuse(Request(-1, connection, method, path, None, head), reader, writer)
            return True
        request = Request(next(self._numbers), connection, method, path, parse_range(head["Range"]), head)
        exchange = Exchange(request, self.plan(request))
        self._exchanges.append(exchange)
        if head["Expect"] == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        fault = exchange.fault or Fault()
        upload = self._received(exchange, fault.upload(request_pieces(head, reader)))
        instead = fault.instead()
        if instead is None:
            return await self._forward(exchange, fault, Message(head, upload), writer)
        async for _ in upload:
            pass
        await self._answer(exchange, Message(instead[0], _one(b"" if method == "HEAD" else instead[1])), writer)
        return head["Connection"] != "close"

    async def _refuse(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer that there is no such bucket."""
        async for _ in request_pieces(request.head, reader):
            pass
        head, body = ErrorAnswer("404 Not Found", "NoSuchBucket", "The specified bucket does not exist.").instead()
        message = Message(head, _one(b"" if request.method == "HEAD" else body))
        await self._answer(Exchange(request, None), message, writer)

    async def _forward(self, exchange: Exchange, fault: Fault, message: Message, writer: asyncio.StreamWriter) -> bool:
        """Let the server answer; return whether the client's connection can be used again."""
        server_reader, server_writer = await asyncio.open_connection(HOST, self._server_port, limit=PIECE_BYTES)
        descriptor = self._own(server_writer)
        try:
            was_taken = await self._send(message, server_writer)
            answer = await read_answer(server_reader, exchange.request.method)
            if self._as_s3 and answer.head["Content-Range"] is not None and answer.head.status == 200:
                answer = replace(answer, head=replace(answer.head, start="HTTP/1.1 206 Partial Content"))
            answer = await fault.answer(exchange.request, answer)
            await self._answer(exchange, answer, writer)
        finally:
            await self._end(server_writer, descriptor)
        return was_taken and answer.has_end and "close" not in (message.head["Connection"], answer.head["Connection"])

    async def _send(self, message: Message, writer: asyncio.StreamWriter) -> bool:
        """Send a request on to the server; return False when it did not take all, though it may have answered."""
        writer.write(message.head.encode())
        async for piece in _framed(message):
            writer.write(piece)
            try:
                await writer.drain()
            except ConnectionError:
                return False
        return True

    async def _received(self, exchange: Exchange, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            exchange.bytes_received += len(piece)
            yield piece

    async def _answer(self, exchange: Exchange, answer: Message, writer: asyncio.StreamWriter) -> None:
        """Send an answer to the client; all is in the log before the client can have seen it."""
        exchange.status = answer.head.status
        async for piece in (exchange.fault or Fault()).head(answer.head.encode()):
            writer.write(piece)
            await writer.drain()
        async for piece in _framed(Message(answer.head, self._counted(exchange, answer.pieces))):
            writer.write(piece)
            await writer.drain()
        await writer.drain()

    async def _counted(self, exchange: Exchange, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            exchange.bytes_sent += len(piece)
            yield piece


async def _framed(message: Message) -> AsyncIterator[bytes]:
    """Yield a body as it is sent, in chunks where the head says so."""
    async for piece in message.pieces:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece) if message.head.is_chunked else piece
    if message.head.is_chunked:
        yield b"0\r\n\r\n"


_running: weakref.WeakSet[FaultProxy] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for proxy in _running:
        proxy.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
