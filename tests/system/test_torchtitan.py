"""The example for torchtitan: what its Trainer gets, and a checkpoint that continues on other numbers of ranks."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed.checkpoint as dcp

import wdsplit
from paths import EXAMPLES

pytest.importorskip("torchtitan.components.dataloader")

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled:UserWarning"
)  # a checkpoint of one process

SEQ_LEN, GLOBAL_BATCH = 31, 4


@pytest.fixture(scope="module")
def texts():
    """Return texts whose tokens come once, so that an input says which token must follow."""
    ends = np.cumsum(np.random.default_rng(0).integers(2, SEQ_LEN + 1, 300))
    return np.split(np.arange(ends[-1]), ends[:-1])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("torchtitan") / "texts"
    table = pa.table({"npy": texts, "tokens": [len(text) for text in texts]})
    wdsplit.convert(table, path, keep=("tokens",), shards=4)
    return str(path)


@pytest.fixture
def build(dataset, monkeypatch):
    """Return a function that makes the dataloaders of all ranks, as torchtitan's Trainer does."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from torchtitan_loader import PackedTexts

    def build(world_size, global_batch=GLOBAL_BATCH):
        config = PackedTexts.Config(dataset_path=dataset, num_workers=0)
        sizes = {"seq_len": SEQ_LEN, "local_batch_size": global_batch // world_size, "snapshot_every_n_steps": None}
        return [
            config.build(dp_rank=rank, dp_world_size=world_size, tokenizer=None, **sizes) for rank in range(world_size)
        ]

    return build


def steps(loaders, number):
    """Return the next global batches of some ranks: rows of inputs, positions and labels, in the order of the packs."""
    found = []
    for _, *parts in zip(range(number), *map(iter, loaders), strict=False):
        ranks = [torch.stack([each["input"], each["positions"], labels], 1) for each, labels in parts]
        found.append(torch.stack(ranks, 1).flatten(0, 1).tolist())  # position g is of rank g % W
    return found


def test_each_token_of_an_epoch_is_predicted_once_from_the_one_before_in_its_text(build, texts):
    (loader,) = build(1, global_batch=1)
    pairs, firsts = Counter(), Counter()
    for ((inputs, positions, labels),) in steps([loader], len(loader.loader)):
        pairs.update((token, label) for token, label in zip(inputs, labels, strict=True) if label >= 0)
        firsts.update(
            token for token, place, label in zip(inputs, positions, labels, strict=True) if not place and label >= 0
        )
    assert pairs == Counter(
        (a, b) for text in texts for a, b in zip(text[:-1].tolist(), text[1:].tolist(), strict=True)
    )
    assert firsts == Counter(int(text[0]) for text in texts)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 1)])
def test_a_checkpoint_of_torch_continues_on_other_ranks_and_in_the_next_epoch(build, tmp_path, before, after):
    (whole,) = build(1)
    length = len(whole.loader)
    expected = steps([whole], length + 3)
    assert expected[length:] != expected[:3]
    ranks = build(before)
    assert steps(ranks, length - 2) == expected[: length - 2]
    dcp.save({"dataloader": ranks[0]}, checkpoint_id=tmp_path, no_dist=True)
    resumed = build(after)
    for rank in resumed:
        dcp.load({"dataloader": rank}, checkpoint_id=tmp_path, no_dist=True)
    assert steps(resumed, 5) == expected[length - 2 :]
