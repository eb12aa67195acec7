"""Stages that draw random numbers, and what they drew at each position."""

import random

import numpy as np
import torch

from wdsplit.loading.dataset import Dataset

KINDS = ["numpy", "torch", "python", "global"]


def drawn(generator=None):
    """Return a number that a generator gives; of the global ones, all three."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(2**62))
    if isinstance(generator, random.Random):
        return generator.getrandbits(62)
    if generator is not None:
        return int(torch.randint(2**62, (), generator=generator))
    return random.getrandbits(20) << 40 | int(np.random.randint(2**20)) << 20 | int(torch.randint(2**20, ()))


def replaced(value, generator=None):
    return drawn(generator)


def whole_sample(sample, generator=None):
    return {**sample, "txt": drawn(generator)}


def drawing(path, kind, world=(0, 1), **options):
    dataset = Dataset(path, rank=world[0], world_size=world[1], **options)
    return dataset.map_random(replaced, "cls", kind).map_random(whole_sample, None, kind)


def draws(*loaders):
    """Return what was drawn at each position, by both stages."""
    found = {}
    for loader in loaders:
        for batch in loader:
            columns = (batch[name].tolist() for name in ("__position__", "cls", "txt"))
            for position, first, second in zip(*columns, strict=True):
                assert found.setdefault(position, (first, second)) == (first, second)
    return found
