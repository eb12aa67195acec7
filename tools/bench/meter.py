"""What readers and an S3 server use: processor time, bytes and requests. Linux only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tools.bench.core import Clock, Result

REQUESTS = tuple(f"serve s3: {word} ".encode() for word in ("GET", "HEAD", "LIST"))
TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """Counts what this process and its children use, and what the server gives them.

    The children are found by their session, which is this process's. The server is rclone with the flag -vv: its log
    has a line for each request. Its bytes are all that it writes, less the log.
    """

    def __init__(self, clock: Clock, server: int, log: Path) -> None:
        self._clock, self._server, self._log = clock, server, log
        self._last = self._now()

    def lap(self) -> Result:
        """Return what was used since the last time, or since this was made."""
        before, self._last = self._last, self._now()
        return {name: value - before[name] for name, value in self._last.items()}

    def _now(self) -> Result:
        log = self._log.read_bytes()
        written = int(re.findall(r"wchar: (\d+)", Path(f"/proc/{self._server}/io").read_text())[0])
        return {
            "seconds": self._clock.seconds(),
            "busy": sum(busy for session, busy in map(busy_of, processes()) if session == os.getsid(0)),
            "server": busy_of(self._server)[1],
            "megabytes": (written - len(log)) / 1e6,
            "requests": sum(map(log.count, REQUESTS)),
        }


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def busy_of(process: int) -> tuple[int, float]:
    """Return the session of a process, and the processor seconds of it and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0.0
    return int(fields[3]), sum(map(int, fields[11:15])) / TICKS
