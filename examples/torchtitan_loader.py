"""torchtitan trains on packs of texts, and resumes on other numbers of data-parallel ranks with the same global batch.

`dataloader=PackedTexts.Config(dataset_path="data/texts")`; tokens: field `npy`, their numbers: column `tokens`.
"""

import json
from dataclasses import dataclass

import torch
from torchtitan.components.dataloader import BaseDataLoader

import wdsplit


class PackedTexts(BaseDataLoader):
    """Batches of sequences as torchtitan's Trainer takes them, epoch after epoch."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        num_workers: int = 2

    def __init__(self, config, *, dp_rank, dp_world_size, seq_len, local_batch_size, **_):
        packs = {"pack": "tokens", "capacity": seq_len + 1, "long": "drop", "fields": ["npy"]}
        dataset = wdsplit.Dataset(config.dataset_path, rank=dp_rank, world_size=dp_world_size, **packs).decode()
        self.loader = wdsplit.Loader(dataset, local_batch_size, num_workers=config.num_workers, pad_to="capacity")

    def __iter__(self):
        while True:
            for batch in self.loader:
                tokens, texts = batch["npy"], batch["__segment_ids__"]
                follows = (texts[:, 1:] == texts[:, :-1]) & batch["__mask__"][:, 1:]
                inputs = {"input": tokens[:, :-1], "positions": batch["__position_ids__"][:, :-1]}
                yield inputs, torch.where(follows, tokens[:, 1:], -100)  # which torchtitan's losses leave out

    def state_dict(self):
        return {"loader": json.dumps(self.loader.state_dict())}  # the same on all ranks

    def load_state_dict(self, state):
        self.loader.load_state_dict(json.loads(state["loader"]))
