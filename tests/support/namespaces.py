"""Network namespaces for the tests: machines of their own as far as the network goes, each pair joined by a veth pair.

They need root and `ip`. They are gone when the block is left; those of tests that were killed go when the next begin.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MARK = "wdsplit-test"
DELAY_MS = 2


@dataclass(frozen=True)
class Namespaces:
    """Namespaces that are joined with one another.

    Attributes:
        names: What the system calls each.
        delayed: Whether packets take DELAY_MS milliseconds from one to another: not every kernel has the means.
    """

    names: Sequence[str]
    delayed: bool

    def address(self, at: int, seen_from: int) -> str:
        """Return the address of one as another finds it."""
        return _address(*sorted((at, seen_from)), is_second=at > seen_from)

    def interface(self, at: int, towards: int) -> str:
        """Return the name of the interface of one towards another."""
        return _interface(at, towards)

    def prefix(self, at: int) -> list[str]:
        """Return the command that runs another in one of them."""
        return ["ip", "netns", "exec", self.names[at]]


def _address(low: int, high: int, is_second: bool) -> str:
    return f"10.83.{16 * low + high}.{2 if is_second else 1}"


def _interface(at: int, towards: int) -> str:
    return f"to{towards}of{at}"


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _remove_those_left() -> None:
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        mark, _, process = name.rpartition("-")[0].rpartition("-")
        if mark == MARK and not os.path.exists(f"/proc/{process}"):
            _ip("netns", "delete", name)


def why_not() -> str:
    """Return why there can be no namespaces here; nothing if there can."""
    if os.geteuid():
        return "network namespaces take root"
    probe = f"{MARK}-{os.getpid()}-probe"
    try:
        _remove_those_left()
        _ip("netns", "add", probe)
        _ip("netns", "delete", probe)
    except FileNotFoundError:
        return "network namespaces take the program ip (Debian: iproute2)"
    except subprocess.CalledProcessError as error:
        return f"the system makes no network namespaces: {error.stderr.strip()}"
    return ""


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[Namespaces]:
    """Make namespaces; each reaches each other one by an interface of its own."""
    names = [f"{MARK}-{os.getpid()}-{number}" for number in range(count)]
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            _ip("-n", name, "link", "set", "lo", "up")
        delayed = [_join(names, low, high) for low, high in itertools.combinations(range(count), 2)]
        yield Namespaces(names, all(delayed))


def _join(names: Sequence[str], low: int, high: int) -> bool:
    """Join two namespaces; return whether packets between them are delayed."""
    near, far = _interface(low, high), _interface(high, low)
    _ip("-n", names[low], "link", "add", near, "type", "veth", "peer", "name", far, "netns", names[high])
    delayed = True
    for name, interface, is_second in ((names[low], near, False), (names[high], far, True)):
        _ip("-n", name, "address", "add", f"{_address(low, high, is_second)}/24", "dev", interface)
        _ip("-n", name, "link", "set", interface, "up")
        delay = ["tc", "-n", name, "qdisc", "add", "dev", interface, "root", "netem", "delay", f"{DELAY_MS}ms"]
        try:
            delayed &= not subprocess.run(delay, capture_output=True).returncode
        except FileNotFoundError:
            delayed = False
    return delayed
