"""Datasets with bad samples for the tests, and what takes their places, told again in plain Python.

The datasets are those of numbers: `cls` is the number of the table's row, and rows kept their order.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from made_datasets import expected_epoch
from wdsplit.shards.files import read_manifest
from wdsplit.shards.places import read_places
from wdsplit.storage.opening import open_storage


class Refusing:
    """A stage that raises an error for some rows; as a class it can be sent to any worker process."""

    def __init__(self, rows):
        self.rows = frozenset(rows)

    def __call__(self, sample):
        if sample["cls"] in self.rows:
            raise ValueError(f"row {sample['cls']} is bad")
        return sample


def refusing(dataset, rows):
    """Make each sample a delivery; some rows are bad."""
    return dataset.decode().map(Refusing(rows)).to_tuple("__position__", "cls", "__pad__")


def with_substitutes(positions, lanes, bad):
    """Return the deliveries of an epoch in which some rows are bad; the positions given must cover all lanes."""
    delivered = []
    for position, row, pad, *others in positions:
        if row in bad:
            candidates = _candidates(positions, lanes, position)
            row, pad, *others = next((row, True, *others) for _, row, _, *others in candidates if row not in bad)
        delivered.append((position, row, pad, *others))
    return delivered


def _candidates(positions, lanes, position):
    """Give what may take the place of a position: of its lane, then of the next ones, from the same offset back."""
    offset, own = divmod(position, lanes)
    yield from positions[own:position:lanes][::-1]
    yield from positions[position + lanes :: lanes]
    for lane in [*range(own + 1, lanes), *range(own)]:
        real = [each for each in positions[lane::lanes] if not each[2]]
        yield from real[: offset + 1][::-1]
        yield from real[offset + 1 :]


def expected_substitutes(path, num_positions, bad, lanes=None, **order):
    """Return the deliveries of the first positions of an epoch in which some rows are bad."""
    manifest = read_manifest(open_storage(str(path)))
    lanes = lanes or manifest.lanes
    enough = max(num_positions, lanes * (manifest.num_samples + 1))
    positions = list(itertools.islice(expected_epoch(str(path), lanes=lanes, **order), enough))
    return with_substitutes(positions, lanes, bad)[:num_positions]


def in_batches(delivered, size):
    return [delivered[first : first + size] for first in range(0, len(delivered), size)]


# Damage


def place_of(path, row):
    """Return the shard of a row, the offset of its first header, and of the end of its sample."""
    storage = open_storage(str(path))
    manifest = read_manifest(storage)
    shards = manifest.shards
    number = int(np.searchsorted(np.cumsum(shards.num_real), row, side="right"))
    sample = row - int(shards.num_real[:number].sum())
    tar = Path(path, shards[number].path)
    offsets = read_places(storage, shards[number], manifest.field_names).offsets()
    return tar, int(offsets[sample]), int(offsets[sample + 1])


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def damage_header(path, row):
    """Change a byte of the mode in a row's first header: the hash of the sample differs."""
    tar, offset, _ = place_of(path, row)
    flip(tar, offset + 101)


def truncate_shard(path, row):
    """Cut off the shard of a row in the row's sample; return the rows of the shard."""
    tar, offset, _ = place_of(path, row)
    with open(tar, "r+b") as file:
        file.truncate(offset + 600)
    return rows_of(path, tar.name)


def rows_of(path, name):
    """Return the rows of a shard."""
    shards = read_manifest(open_storage(str(path))).shards
    number = [shard.path for shard in shards].index(name)
    first = int(shards.num_real[:number].sum())
    return set(range(first, first + int(shards.num_real[number])))
