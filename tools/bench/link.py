"""A network of this machine alone, whose devices carry no more than a given rate: links that fill up.

Needs root, and the programs unshare, nsenter, ip and tc (Debian: util-linux, iproute2). A network ends with its
processes, so nothing is left of one whose benchmark was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

OURS = "WDSPLIT_BENCH_NETWORK"


def why_not() -> str:
    """Return why there cannot be such a network; nothing if there can."""
    missing = [program for program in ("unshare", "nsenter", "ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    if os.geteuid():
        return "only root may make networks"
    return subprocess.run(["unshare", "--net", *_limit("lo", 1)], capture_output=True, text=True).stderr.strip()


def enter() -> None:
    """Run this program again from its beginning in a network of its own, unless it is there already."""
    if OURS not in os.environ:
        os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.orig_argv[1:]], {**os.environ, OURS: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def _limit(device: str, megabits: float) -> list[str]:
    rate = ["rate", f"{megabits}mbit", "burst", "1mb", "latency", "50ms"]
    return ["tc", "qdisc", "add", "dev", device, "root", "tbf", *rate]


@contextlib.contextmanager
def limited(megabits: float, device: str = "lo") -> Iterator[None]:
    """Let a device, such as the loopback device, carry so many Mbit/s meanwhile; as much as it can for 0."""
    if not megabits:
        yield
        return
    subprocess.run(_limit(device, megabits), check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=True)


def sent_bytes() -> dict[str, int]:
    """Return the bytes that each limited device has carried, with the headers of HTTP and TCP."""
    shown = subprocess.run(["tc", "-s", "-j", "qdisc", "show"], check=True, capture_output=True, text=True)
    return {each["dev"]: each["bytes"] for each in json.loads(shown.stdout) if each["kind"] == "tbf"}


@contextlib.contextmanager
def node(number: int, megabits: float) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Make another network, joined with this one by a device that carries so many Mbit/s from here to there.

    Gives the name of the device, the address of this end, and the command that runs another in that network.
    """
    device, near, far = f"node{number}", f"10.83.{number}.1", f"10.83.{number}.2"
    held = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with held:  # ends with this process: then `cat` has no more to read
        assert held.stdout is not None
        held.stdout.readline()
        inside = ["nsenter", f"--net=/proc/{held.pid}/ns/net"]
        for command in (
            ["ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", str(held.pid)],
            ["ip", "address", "add", f"{near}/24", "dev", device],
            ["ip", "link", "set", device, "up"],
            [*inside, "ip", "address", "add", f"{far}/24", "dev", "eth0"],
            [*inside, "ip", "link", "set", "eth0", "up"],
        ):
            subprocess.run(command, check=True)
        with limited(megabits, device):
            yield device, near, inside
