"""Programs run as in a small container: 64 MB of /dev/shm, 256 open files, no home, nowhere to write, and no rights."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paths import SUPPORT
from tables import DEADLINE_S

SETUP = """set -e
mount --bind /dev/shm /mnt
mount -t tmpfs -o size=64m tmpfs /dev/shm
for folder in /mnt/pytest-of-*; do  # files of tests, where they are written into memory
    [ ! -d "$folder" ] || { mkdir /dev/shm/${folder#/mnt/} && mount --bind $folder /dev/shm/${folder#/mnt/}; }
done
for folder in /tmp /var/tmp; do
    mount --bind $folder $folder
    mount -o remount,bind,ro $folder
done
mount -o remount,bind,ro /
ulimit -n 256
cd /
exec "$@"
"""


def in_container(program, *arguments):
    """Run a program of Python in namespaces of its own; return what it printed."""
    setup = ["sh", "-c", SETUP, "sh"]
    command = ["unshare", "--user", "--map-root-user", "--mount", *setup]
    nobody = ["unshare", "--user"]  # a user without an entry, whose files are still those of the one outside
    if not can_run([*command, *nobody, "true"]):
        command, nobody = ["unshare", "--mount", *setup], []
        if not can_run([*command, "true"]):
            pytest.skip("needs mount namespaces: root, or a kernel that lets users make them, and the program unshare")
    environ = {name: value for name, value in os.environ.items() if name not in ("HOME", "TMPDIR", "TEMP", "TMP")}
    environ["PYTHONPATH"] = os.pathsep.join([str(SUPPORT / "without_dill"), *filter(None, [environ.get("PYTHONPATH")])])
    return subprocess.run(
        [*command, *nobody, sys.executable, "-c", program, *map(str, arguments)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def can_run(command):
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
