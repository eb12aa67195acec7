"""Seeds of the global random generators: different on each rank, the same in each run."""

from __future__ import annotations

import importlib.util
import random

import numpy as np

from wdsplit.errors import InputError
from wdsplit.loading.world import detect_rank
from wdsplit.order.epoch import hash_stream
from wdsplit.order.limits import MAX_SEED
from wdsplit.order.split import whole

__all__ = ["set_seed"]

_DOMAIN = 13
"""Domain of the hash, beside those of `order`."""


def set_seed(seed: int, rank: int | None = None) -> int:
    """Seed the global generators of Python, numpy and, if it is installed, torch (of the CPU and all GPUs).

    All are seeded with `hash_stream(seed, 13, rank)`, the splitmix64 hash that the order is made from (numpy's with its
    two halves). So ranks draw different numbers, no sum of seed and rank collides with another, and a run draws the
    same numbers again.

    Some values must be the same on all ranks, such as a model's parameters (unless they are broadcast, as DDP does).
    Then call `set_seed(seed, rank=0)` on all ranks, make the model, and call `set_seed(seed)`. The batches of a
    `Loader`, and `map_random`, depend only on the dataset's seed.

    Args:
        seed: 0 <= seed < 2**63.
        rank: At least 0; detected if None.

    Returns:
        The 64-bit hash that the generators were seeded with.

    Raises:
        InputError: The seed or the rank is not an integer from 0 to 2**63 - 1.
        TopologyError: The rank cannot be detected, because its sources contradict each other.
    """
    seed, rank = whole(seed), detect_rank().rank if rank is None else whole(rank)
    for name, number in (("seed", seed), ("rank", rank)):
        if type(number) is not int or not 0 <= number <= MAX_SEED:
            raise InputError(f"invalid {name}", expected="an integer from 0 to 2**63 - 1", found=repr(number))
    value = hash_stream(seed, _DOMAIN, rank)
    random.seed(value)
    np.random.seed([value & 0xFFFFFFFF, value >> 32])
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.manual_seed(value)
    return value
