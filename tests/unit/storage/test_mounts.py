import os

import pytest

from wdsplit.storage import local
from wdsplit.storage.local import is_network_mount


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [
        ("nfs4", True),
        ("fuse.rclone", True),
        ("lustre", True),
        ("ext4", False),
        ("fuseblk", False),
        ("fuse.fuse-overlayfs", False),
        ("overlay", False),
    ],
)
def test_a_file_system_is_known_by_the_kind_of_its_mount(tmp_path, monkeypatch, kind, is_network):
    device = os.stat(tmp_path).st_dev
    mine = f"{os.major(device)}:{os.minor(device)}"
    table = tmp_path / "mountinfo"
    table.write_text(
        f"22 27 0:9999 / /other rw - nfs4 server:/x rw\n23 27 {mine} / /my\\040data rw shared:1 - {kind} a rw\n"
    )
    monkeypatch.setattr(local, "_MOUNTS", table)
    assert is_network_mount(tmp_path) is is_network
    assert not is_network_mount(tmp_path / "nothing")
    table.unlink()  # the system tells nothing
    assert not is_network_mount(tmp_path)
