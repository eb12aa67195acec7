import re
import subprocess
import sys

import pytest

from paths import ROOT
from tables import DEADLINE_S


def run(*command):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_benchmark_prints_a_row_for_each_mesh(tmp_path):
    options = ["--rows=32", "--batch-size=16", "--features=4", "--devices=1,2", "--rounds=1"]
    said = run("-m", "tools.bench.jax", *options, f"--output={tmp_path}")
    rows = [re.split(r" *\| *", line.strip("| ")) for line in said.splitlines() if line.startswith("|")]
    columns = ["arrays in memory", "Loader, device_put", "JaxLoader, prefetch 0", "JaxLoader, prefetch 2"]
    assert rows[0] == ["devices", "mesh", *columns, "the last one: x Loader, device_put"]
    assert [row[:2] for row in rows[2:]] == [["1", "(1)"], ["1", "(1, 1)"], ["2", "(2)"], ["2", "(1, 2)"]]
    for row in rows[2:]:
        *rates, ratio = (float(cell.replace(",", "")) for cell in row[2:])
        assert min(rates) > 0
        assert ratio == pytest.approx(rates[3] / rates[1], abs=0.02)
    assert list(tmp_path.iterdir()) == []
