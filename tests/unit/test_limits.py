import os
import resource
from pathlib import Path

import pytest

from wdsplit.engines.limits import usable_memory, usable_processors

MASK = len(os.sched_getaffinity(0))
PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
UNLIMITED_V1 = 9223372036854771712
GROUPS_V1 = "5:memory:/job/7\n4:cpu,cpuacct:/job/7\n1:name=systemd:/\n0::/\n"


def machine(root, groups, files):
    """Write what /proc and /sys/fs/cgroup of a machine have."""
    for name, text in {"../../../proc/self/cgroup": groups, **files}.items():
        path = Path(os.path.normpath(root / "sys/fs/cgroup" / name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def many(monkeypatch):
    """Have a mask of 64 processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "3000000 100000\n"}, 8),
        (GROUPS_V1, {"cpu,cpuacct/job/7/cpu.cfs_quota_us": "-1", "cpu,cpuacct/job/7/cpu.cfs_period_us": "100000"}, 64),
        (GROUPS_V1, {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000", "cpu,cpuacct/job/cpu.cfs_period_us": "10000"}, 5),
        (GROUPS_V1, {"cpu,cpuacct/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 2),
    ],
    ids=str,
)
def test_processors_are_those_of_the_mask_that_quotas_grant(tmp_path, many, groups, files, expected):
    root = machine(tmp_path, groups, files)
    assert usable_processors(root) == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, PHYSICAL),
        ("0::/\n", {"memory.max": "max\n"}, PHYSICAL),
        ("0::/a/b\n", {"a/b/memory.max": "3000000\n", "a/memory.max": "2000000\n"}, 2_000_000),
        (GROUPS_V1, {"memory/job/7/memory.limit_in_bytes": f"{UNLIMITED_V1}\n"}, PHYSICAL),
        (GROUPS_V1, {"memory/job/7/memory.limit_in_bytes": "5000000\n"}, 5_000_000),
    ],
    ids=str,
)
def test_memory_is_that_of_the_machine_that_groups_grant(tmp_path, groups, files, expected):
    root = machine(tmp_path, groups, files)
    assert usable_memory(root) == expected


def test_a_system_without_groups_has_what_the_machine_has(tmp_path):
    assert usable_processors(tmp_path) == MASK
    assert usable_memory(tmp_path) == PHYSICAL


def test_memory_is_no_more_than_the_address_space(tmp_path, monkeypatch):
    limits = {resource.RLIMIT_AS: (5000, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert usable_memory(tmp_path) == 5000
