"""wdsplit.debug as a whole: what it needs, the blocks of its page, and loaders that are diagnosed while they run."""

import json
import re
import time

import pytest
import torch

from loaded import modules_loaded_by
from made_datasets import numbers_dataset
from paths import ROOT
from wdsplit import debug
from wdsplit.errors import InputError
from wdsplit.integrations.opaque_loader import OpaqueLoader
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

PAGE = ROOT / "docs" / "debugging.md"


def slow(value, seconds):
    time.sleep(seconds)
    return value


def test_a_slow_loader_is_distinguished_from_a_slow_model(numbers):
    loader, begun = Loader(Dataset(numbers).map(lambda sample: slow(sample, 0.001)), 12), time.perf_counter()
    list(loader)
    taken_s = time.perf_counter() - begun
    found = debug.diagnose(loader)
    assert found.bottleneck == "loader"
    assert str(found).startswith("loader-bound: the training waits for batches ")
    assert any("more workers" in each for each in found.advice)
    assert 0.009 < found.waits["50"] < found.waits["100"] < taken_s
    loader = Loader(Dataset(numbers), 12)
    for _ in loader:
        time.sleep(0.25)  # long enough that a machine with other work does not make the loader the slower one
    found = debug.diagnose(loader)
    assert (found.bottleneck, found.advice) == ("model", ())
    assert str(found).startswith("compute-bound: the loader keeps up")
    assert found.computes["50"] > 0.249
    values = json.loads(json.dumps(found.as_dict()))
    assert (values["batches"], values["samples"], values["bottleneck"]) == (9, 108, "model")


def test_a_loader_is_diagnosed_also_as_an_integration_has_it_and_nothing_else(numbers):
    opaque = OpaqueLoader(Loader(Dataset(numbers), 12))
    assert str(debug.diagnose(opaque)) == "no batches were delivered yet"
    list(opaque)
    assert debug.diagnose(opaque).statistics.batches == 9
    with pytest.raises(InputError, match=r"expected: a wdsplit\.Loader.*\n  found: list"):
        debug.diagnose([1, 2])


def test_importing_wdsplit_does_not_load_it():
    script = "import sys, wdsplit\nassert not any(name.startswith('wdsplit.debug') for name in sys.modules)"
    assert "wdsplit" in modules_loaded_by(script)


def test_without_torch_all_works_that_needs_no_other_rank(numbers, tmp_path):
    script = f"""
import sys
sys.modules["torch"] = None
import wdsplit
from wdsplit import debug
debug.set_seed(3, 1)
with debug.audit(wdsplit.Loader(wdsplit.Dataset({numbers!r}), 12)) as audited, debug.LossLog({str(tmp_path)!r}) as log:
    for step, batch in enumerate(audited):
        log.log(step, 0.5)
assert audited.epochs[0].samples == 101, audited.epochs
assert debug.read_losses({str(tmp_path)!r}).losses.shape == (9, 1)
assert debug.diagnose(audited).statistics.batches == 9
debug.barrier(1)
try:
    debug.param_hash({{}})
except wdsplit.MissingDependencyError as error:
    assert "torch is not installed" in str(error)
else:
    raise AssertionError
"""
    assert "wdsplit" in modules_loaded_by(script)


def documented_blocks():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch):
    numbers_dataset(tmp_path / "data", 101, shards=7, lanes=4, window=4)
    (tmp_path / "data" / "out").rename(tmp_path / "data" / "train")
    monkeypatch.chdir(tmp_path)
    linear = torch.nn.Linear(1, 1)

    def train_step(batch):
        loss = linear(torch.as_tensor([[float(len(batch))]])).square().sum()
        linear.zero_grad()
        loss.backward()
        return loss

    names = {"make_model": lambda: linear, "train_step": train_step}
    assert len(documented_blocks()) >= 4
    for block in documented_blocks():
        exec(compile(block, "debugging.md", "exec"), names)
    assert (tmp_path / "losses" / "rank-00000.jsonl").exists()


def test_one_process_waits_for_nobody():
    debug.barrier(0.001)
    with pytest.raises(InputError, match="timeout_s"):
        debug.barrier(0)
