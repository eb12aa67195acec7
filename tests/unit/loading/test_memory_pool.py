import gc
import os

import numpy as np
import pytest
import torch

from wdsplit.loading.transport.batch_memory import Pool

PARTS = {
    "memory": lambda memory: memory,
    "slice": lambda memory: memory[8:16],
    "array": lambda memory: memory.view(np.float32).reshape(4, 4)[1],
    "tensor": torch.from_numpy,
    "part of a tensor": lambda memory: torch.from_numpy(memory).view(torch.bfloat16).reshape(4, 8)[:, 1],
    "array of a tensor": lambda memory: torch.from_numpy(memory)[3:].numpy(),
    "storage": lambda memory: torch.from_numpy(memory).untyped_storage(),
    "bytes": lambda memory: memoryview(memory)[3:],
    "DLPack": lambda memory: np.from_dlpack(torch.from_numpy(memory)[2:]),
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_block_is_used_again_only_when_no_part_of_it_is_left(kind):
    blocks = Pool(lambda: np.zeros(64, np.uint8), lambda block: None)
    memory = blocks.take()
    address, part = memory.ctypes.data, PARTS[kind](memory)
    del memory
    gc.collect()
    assert blocks.take().ctypes.data != address
    del part
    gc.collect()
    assert address in {memory.ctypes.data for memory in (blocks.take(), blocks.take())}


def test_a_pool_keeps_few_blocks_and_none_once_it_is_closed():
    released = []
    blocks = Pool(lambda: np.zeros(64, np.uint8), released.append)
    held = [blocks.take() for _ in range(9)]
    del held
    assert len(released) == 5
    kept = blocks.take()
    blocks.close()
    assert len(released) == 8
    kept[:] = 1
    del kept
    assert len(released) == 9


def test_a_forked_copy_gives_nothing_back(monkeypatch):
    released = []
    blocks = Pool(lambda: np.zeros(64, np.uint8), released.append)
    memory = blocks.take()
    blocks.close()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del memory
    assert not released
