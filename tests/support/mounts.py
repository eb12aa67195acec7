"""A network file system for the tests: `rclone mount` of another rclone's server, by FUSE, for want of an NFS client.

Every read and every look at a file is a request to the server; nothing but the kernel's page cache keeps what was read,
and another mount begins without it. A read takes more than ten milliseconds. While the server is away, system calls end
with EIO (an NFS mount that is `soft` does so, one that is `hard` waits), and memory that is mapped raises SIGBUS; when
it is back, files that are open can be read on.

The protocol "http" can only be read; with "webdav" what was written goes to the server when it is closed, and calls
take up to six seconds to fail. With a directory cache of no time rclone 1.75 spins, and locks itself out by renames.
It loses renames of files that it is sending: it waits for a second before it sends one (by default, five).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from s3server import S3Server, bound_to_tests, rclone

DEADLINE_S = 200


def _unmounter() -> str | None:
    return shutil.which("fusermount3") or shutil.which("fusermount")


def why_not() -> str:
    """Return why nothing can be mounted here; nothing if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "a FUSE mount takes /dev/fuse, and the right to use it"
    if _unmounter() is None:
        return "a FUSE mount takes the program fusermount3 (Debian: fuse3)"
    return ""


class Mount:
    """A folder of a server that is mounted.

    Attributes:
        server: The server; a test may stop it and start it again.
        source: The folder that is mounted, as the server has it.
        folder: Where it is mounted.
    """

    def __init__(self, parent: Path, protocol: str = "http") -> None:
        """Make it, below a folder of its own."""
        self.source, self.folder = parent / "served" / "share", parent / "mounted"
        self.source.mkdir(parents=True)
        self.folder.mkdir()
        self.server = S3Server(self.source.parent, "--dir-cache-time=100ms", protocol=protocol)
        self._protocol = protocol
        self._log = parent / "mount.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Mount:
        self.server.start()
        try:
            self.mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.unmount()
        self.server.stop()

    def mount(self) -> None:
        """Mount it, and wait until it is."""
        command = [rclone(), "mount", f":{self._protocol}:share", str(self.folder)]
        command += [f"--{self._protocol}-url={self.server.endpoint}"]
        command += ["--config=", f"--cache-dir={self._log.with_name('cache')}", "--vfs-write-back=1s"]
        command += [f"--vfs-cache-mode={'writes' if self._protocol == 'webdav' else 'off'}"]
        command += ["--dir-cache-time=100ms", "--attr-timeout=0", "--poll-interval=0", "--buffer-size=0"]
        command += ["--low-level-retries=1", "--retries=1", "--contimeout=2s", "--timeout=5s"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                bound_to_tests(command, at_end=self._unmounting()), stdout=log, stderr=log, env=environ
            )
        deadline = time.monotonic() + DEADLINE_S
        while not os.path.ismount(self.folder):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"rclone does not mount:\n{self._log.read_text()}")
            time.sleep(0.01)

    def unmount(self) -> None:
        """Unmount it, though files are open; what the page cache has of it is forgotten."""
        if self._process is not None:
            subprocess.run(self._unmounting(), stderr=subprocess.DEVNULL)
            self._process.terminate()
            self._process.wait(DEADLINE_S)
            self._process = None

    def _unmounting(self) -> list[str]:
        return [str(_unmounter()), "-u", "-q", "-z", str(self.folder)]
