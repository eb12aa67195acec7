"""wdsplit.debug as a whole: what it needs, the blocks of its page, and loaders that are diagnosed while they run."""

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
    assert found.startswith("loader-bound: the training waits for batches ")
    median, most = re.search(r"wait for a batch: 50 % ([\d,.]+) ms, .* 100 % ([\d,.]+) ms", found).groups()
    assert 9 < float(median.replace(",", "")) < float(most.replace(",", "")) < 1000 * taken_s
    loader = Loader(Dataset(numbers), 27)
    for _ in loader:
        time.sleep(0.25)  # long enough that a machine with other work does not make the loader the slower one
    found = debug.diagnose(loader)
    assert found.startswith("compute-bound: the loader keeps up")
    assert "  4 batches, 108 samples: " in found
    assert float(re.search(r"time between batches: 50 % ([\d.]+) ms", found)[1]) > 249


def test_a_loader_is_diagnosed_also_as_an_integration_has_it_and_nothing_else(numbers):
    opaque = OpaqueLoader(Loader(Dataset(numbers), 12))
    assert debug.diagnose(opaque) == "no batches were delivered yet"
    list(opaque)
    assert "9 batches" in debug.diagnose(opaque)
    with pytest.raises(InputError, match=r"expected: a wdsplit\.Loader.*\n  found: list"):
        debug.diagnose([1, 2])
    debug.barrier(0.001)  # one process waits for nobody
    with pytest.raises(InputError, match="timeout_s"):
        debug.barrier(0)


def test_without_torch_all_works_that_needs_no_other_rank(numbers, tmp_path):
    script = f"""
import sys
sys.modules["torch"] = None
import wdsplit
assert not any(name.startswith("wdsplit.debug") for name in sys.modules)
from wdsplit import debug
debug.set_seed(3, 1)
with debug.audit(wdsplit.Loader(wdsplit.Dataset({numbers!r}), 12)) as audited, debug.LossLog({str(tmp_path)!r}) as log:
    for step, batch in enumerate(audited):
        log.log(step, 0.5)
assert audited.epochs[0].samples == 101, audited.epochs
assert len(debug.read_losses({str(tmp_path)!r})[0]) == 9
assert "9 batches" in debug.diagnose(audited)
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
