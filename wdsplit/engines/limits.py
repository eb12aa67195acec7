"""The processors and memory that this process may use: those of the machine, or of its container.

The limits of all parent cgroups apply too, so all are read (cgroups(7), "cpu.max" and "memory.max" of version 2).
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["usable_memory", "usable_processors"]

_ROOT = Path("/")


def usable_processors(root: Path = _ROOT) -> int:
    """Return how many processors this process may use, at least 1, by its affinity mask and quotas (rounded up).

    Args:
        root: The folder that contains /proc and /sys.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [quota / period for quota, period in _quotas(root) if quota > 0 and period > 0]
    return max(1, min([count, *map(math.ceil, shares)]))


def usable_memory(root: Path = _ROOT) -> int:
    """Return how many bytes of memory this process may use; the argument is that of `usable_processors`."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += _numbers(folder / name)[:1]
    return min(limits)


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the processor quota and its period, both in microseconds, of each group that has one."""
    for folder in _groups(root, "cpu"):
        found = _numbers(folder / "cpu.max")
        found = found or _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
        if len(found) == 2:
            yield found[0], found[1]


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group for a controller, and of all its parents, in both cgroup versions.

    In a container, /proc may name the group by its path on the host, so folders may be missing.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = PurePosixPath(path)
            for each in (group, *group.parents):
                yield root / "sys/fs/cgroup" / controllers / each.relative_to("/")


def _numbers(path: Path) -> list[int]:
    """Return the numbers in a file; none if it does not exist, or contains "max"."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
