"""Ranks without torch on two nodes, of which one is killed and one has a slow link, and a store that refuses requests.

`tools.bench.cluster` fails by itself unless all ranks have equally many steps, each sample once an epoch, and the
batches of one rank alone.
"""

import subprocess
import sys

import pytest

from paths import ROOT
from tools.bench.core import cells_of
from tools.bench.link import why_not

EPOCHS, NODES = 3, 2
OPTIONS = f"--nodes {NODES} --ranks 4 --samples 512 --batch-size 8 --epochs {EPOCHS} --link 400 --step-ms 20"
TROUBLE = "--refuse 0.05 --slow-node 0 --kill 1 --launcher slurm"


def test_a_node_killed_and_replaced_a_slow_one_and_a_store_that_refuses_change_no_batch(tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    words = [*OPTIONS.split(), *TROUBLE.split(), "--output", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.cluster", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 epochs have each sample once, and in 8 steps the batches of one rank alone" in done.stdout
    rows = [cells_of(line) for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert [row[:2] for row in rows] == [
        [epoch, node] for epoch in ("0", "1, killed", "2") for node in ("0, slow", "1")
    ]
    assert sum(int(row[8]) for row in rows) > 0, "nothing was refused"
    for epoch, _, _, _, bytes_ratio, _, _, requests_ratio, *_ in rows:
        if epoch != "1, killed":  # there the ranks fetch again what was ahead
            assert 0.9 <= float(bytes_ratio) <= 1.1, done.stdout
            assert 0.9 <= float(requests_ratio) <= 1.1, done.stdout
