"""A network of this machine alone, whose loopback device carries no more than a given rate: a link that fills up.

Needs root, and the programs unshare, ip and tc (Debian: util-linux, iproute2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

OURS = "WDSPLIT_BENCH_NETWORK"


def why_not() -> str:
    """Return why there cannot be such a network; nothing if there can."""
    missing = [program for program in ("unshare", "ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "only root may make networks"


def enter() -> None:
    """Run this program again from its beginning in a network of its own, unless it is there already."""
    if OURS not in os.environ:
        os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.orig_argv[1:]], {**os.environ, OURS: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@contextlib.contextmanager
def limited(megabits: int) -> Iterator[None]:
    """Let the loopback device carry so many Mbit/s meanwhile; as much as it can for 0."""
    if not megabits:
        yield
        return
    rate = ["rate", f"{megabits}mbit", "burst", "1mb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "tbf", *rate], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)
