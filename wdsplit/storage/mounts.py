"""Recognizes network file systems in the system's list of mounts."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_network_mount"]

_KINDS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"}
)
_LOCAL_FUSE = frozenset({"fuse.bindfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.ntfs-3g"})
_MOUNTS = Path("/proc/self/mountinfo")


def is_network_mount(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is on NFS or another file system whose reads are requests; False if that is unknown.

    In the format of proc_pid_mountinfo(5), the third field is the device, and the one after the dash the kind.
    """
    try:
        device = os.stat(path).st_dev
        mounts = _MOUNTS.read_text(errors="replace")
    except OSError:
        return False
    device_id = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split(" ", 1)[0] for line in mounts.splitlines() if line.split()[2] == device_id]
    return any(kind in _KINDS or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE) for kind in kinds)
