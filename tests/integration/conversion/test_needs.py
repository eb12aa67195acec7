"""What a conversion needs of memory and disk: said by the plan, and checked before anything is written."""

import numpy as np
import pyarrow as pa
import pytest

from tables import options, planned, write_files
from wdsplit import convert
from wdsplit.conversion.shuffle import steps
from wdsplit.conversion.shuffle.needs import loadable_bytes, needs_of
from wdsplit.engines.limits import usable_memory


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return a table of 4 MB in 40 row groups."""
    chance = np.random.default_rng(0)
    table = pa.table({"bin": [chance.bytes(10_000) for _ in range(400)], "label": range(400)})
    return write_files(tmp_path_factory.mktemp("input"), table, [200], 10)


def needs(inputs, memory, jobs=2, is_local=True, on_disk=True, **plan):
    return needs_of(planned(inputs, options(shuffle=True, **plan)), memory, jobs, is_local, on_disk)


def test_memory_is_a_quarter_of_what_this_process_may_use_and_shared_by_the_jobs(inputs):
    found = [needs(inputs, None, jobs) for jobs in (1, 2)]
    assert [need.memory for need in found] == [usable_memory() // 4] * 2
    assert found[0].loadable_bytes > found[1].loadable_bytes
    assert 2**30 > loadable_bytes(2**30, 1) > loadable_bytes(2**30, 2) > loadable_bytes(2**30, 64) == 0
    assert needs(inputs, 5 * 2**30).memory == 5 * 2**30
    assert needs(inputs, None, is_local=False).memory == 2**30, "of other machines nothing is known"
    assert needs(inputs, 64 * 2**30).buffer_bytes == 32 * 2**20, "no more than it must"
    assert needs(inputs, 64 * 2**30, on_disk=False).buffer_bytes == 2**30, "unless small reads are slow"


def test_rows_that_do_not_fit_take_temporary_space_twice_if_they_are_merged(inputs, monkeypatch):
    assert needs(inputs, 4 * 2**30).temporary_bytes == 0
    assert needs(inputs, 4 * 2**30, is_local=False).temporary_bytes > 4_000_000
    once = needs(inputs, 1).temporary_bytes
    assert 4_000_000 < once < 4_100_000
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)
    monkeypatch.setattr(steps, "_MAX_GATHERED", 3)
    assert needs(inputs, 1).temporary_bytes == 2 * once
    assert needs_of(planned(inputs, options(shuffle=False)), 1, 2, True, True).temporary_bytes == 0


def test_what_is_spilled_is_what_was_said(inputs, tmp_path):
    most = []

    def look(progress):
        spill = tmp_path / "out" / steps.SPILL_FOLDER
        most.append(sum(path.stat().st_size for path in spill.glob("*")) if spill.exists() else 0)

    convert(inputs, tmp_path / "out", options(shards=4, shuffle=True, memory=1), look)
    assert max(most) == pytest.approx(needs(inputs, 1).temporary_bytes, rel=0.1)
