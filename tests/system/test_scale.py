import json
import subprocess
import sys

from paths import SUPPORT

CHECKS = SUPPORT / "scale_checks.py"
GIB = 1024**3


def test_a_petabyte_in_a_million_shards_is_planned_and_the_drivers_memory_does_not_grow(tmp_path):
    """100,000 files of 10 GB in 80 row groups each; an engine completes a million tasks at once."""
    ended = subprocess.run([sys.executable, str(CHECKS), str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["peak_bytes"] < 4 * GIB
    assert found["tasks"] == found["shards"] == 1_000_000
    assert found["samples"] == 10_000_000_000
    assert max(found["held"]) - found["held"][0] < 16 * 1024**2
