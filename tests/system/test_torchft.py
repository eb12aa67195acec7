"""Replica groups of torchft that come and go: each keeps its process, and its loader takes other ranks."""

import json
import subprocess
import sys
from itertools import chain

import pyarrow as pa
import pytest

import wdsplit
from made_datasets import converted
from paths import SUPPORT
from tables import DEADLINE_S, wait_until

torchft = pytest.importorskip("torchft")
GLOBAL_BATCH, NUM_SAMPLES = 12, 480


def test_groups_that_are_lost_and_added_train_on_each_sample_once(tmp_path):
    from torchft._torchft import LighthouseServer

    table = pa.table({"cls": pa.array(range(NUM_SAMPLES))})
    path = converted(tmp_path, table, shards=8, lanes=4)
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=200, heartbeat_timeout_ms=1000)
    logs = [tmp_path / f"replica{number}" for number in range(3)]

    def start(number):
        command = [sys.executable, SUPPORT / "torchft_worker.py", path, str(number), lighthouse.address()]
        with logs[number].open("w") as out, logs[number].with_suffix(".err").open("w") as errors:
            return subprocess.Popen([*command, tmp_path / "joining"], stdout=out, stderr=errors)

    replicas = [start(number) for number in range(2)]
    try:
        wait_until(lambda: logs[0].read_text(), "the first step")
        replicas.append(start(2))
        codes = [replica.wait(DEADLINE_S) for replica in replicas]
    finally:
        for replica in replicas:
            replica.kill()
        lighthouse.shutdown()
    assert codes == [0, -9, 0], [log.with_suffix(".err").read_text()[-3000:] for log in logs]
    found = [list(map(json.loads, log.read_text().splitlines())) for log in logs]
    assert found[0].pop() == found[2].pop(), "the same parameters"
    alone = wdsplit.Dataset(path, rank=0, world_size=1).to_tuple("__key__")
    due = [list(keys) for (keys,) in wdsplit.Loader(alone, GLOBAL_BATCH)]
    steps = {}
    for step, rank, size, keys in chain.from_iterable(found):
        steps.setdefault(step, {})[rank, size] = keys
    assert sorted(steps) == list(range(len(due)))
    assert {size for parts in steps.values() for _, size in parts} == {2, 3}
    for step, parts in steps.items():
        (size,) = {size for _, size in parts}
        assert len(parts) == size, "no rank has taken a step that another has not"
        assert sorted(chain.from_iterable(parts.values())) == sorted(due[step])
