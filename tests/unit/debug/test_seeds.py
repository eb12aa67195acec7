"""Seeds of the global random generators."""

import random

import numpy as np
import pytest
import torch

from wdsplit import debug
from wdsplit.errors import InputError
from wdsplit.order.hashing import hash_stream


def drawn():
    return random.random(), float(np.random.random()), float(torch.rand(1))


def test_a_seed_gives_each_rank_numbers_of_its_own_again_and_again():
    by_rank = []
    for rank in range(3):
        for _ in range(2):
            debug.set_seed(7, rank)
            by_rank.append(drawn())
    assert by_rank[::2] == by_rank[1::2]
    assert all(len(set(values)) == 3 for values in zip(*by_rank[::2], strict=True))


def test_a_seed_is_the_documented_hash_and_invalid_ones_are_refused():
    assert debug.set_seed(7, 2) == hash_stream(7, 13, 2) == torch.initial_seed()
    assert debug.set_seed(7) == debug.set_seed(7, 0)
    assert debug.set_seed(2, 7) != debug.set_seed(7, 2)
    for arguments in ((-1,), (1.5,), (True,), (2**63,), (0, -1), ("0",)):
        with pytest.raises(InputError, match=r"invalid (seed|rank)"):
            debug.set_seed(*arguments)
