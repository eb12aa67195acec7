"""The shards that a run has published: what the driver keeps of each, checked against the plan.

Pure (no I/O). Kept in arrays, some 60 bytes a shard, that are there from the beginning: a run of a million shards
takes the driver no more memory at its end than at its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.plan import Plan
from wdsplit.errors import WdsplitError
from wdsplit.order.epoch import Int64
from wdsplit.shards.manifest import Shard, Shards, shard_path

__all__ = ["Published"]

_CHECKSUM_BYTES = 48


class Published(Mapping[int, Shard]):
    """The shards of a plan that are there, by their numbers.

    Args:
        plan: The plan.
        shards: Those that are there already.

    Attributes:
        num_samples: Samples of those that are there, pads included.
        num_bytes: Their bytes.
    """

    def __init__(self, plan: Plan, shards: Mapping[int, Shard] | None = None) -> None:
        self.num_samples = self.num_bytes = 0
        self._plan = plan
        self._sizes: Int64 = np.full(plan.num_shards, -1, np.int64)
        self._checksums = np.full(plan.num_shards, b"", f"S{_CHECKSUM_BYTES}")
        self._length = 0
        self.add(shards or {})

    def add(self, shards: Mapping[int, Shard]) -> None:
        """Take shards in; one that is there already counts once.

        Raises:
            WdsplitError: One is not the planned one.
        """
        for number, shard in shards.items():
            self._check(number, shard)
            if number not in self:
                self._length += 1
                self.num_samples += shard.num_samples
                self.num_bytes += shard.num_bytes
            self._sizes[number] = shard.num_bytes
            self._checksums[number] = shard.checksum.encode()

    def missing(self, first: int = 0, stop: int | None = None) -> Int64:
        """Return which of the shards first, ..., stop - 1 are not there, rising: int64 of shape (missing,)."""
        return first + np.flatnonzero(self._sizes[first:stop] < 0)

    def table(self) -> Shards:
        """Return all shards of the plan, as the manifest has them; they must be there."""
        plan = self._plan
        firsts, stops = np.array([plan.rows(number) for number in range(plan.num_shards)], np.int64).T
        pads = plan.max_samples - (stops - firsts) if plan.options.pad == "repeat" else np.zeros_like(firsts)
        columns = {
            "path": pa.array([shard_path(number) for number in range(plan.num_shards)]),
            "num_samples": stops - firsts + pads,
            "num_pads": pads,
            "num_bytes": self._sizes,
            "checksum": pa.array(self._checksums.astype(str)),
        }
        return Shards.of_columns(columns)

    def __getitem__(self, number: int) -> Shard:
        if number not in self:
            raise KeyError(number)
        checksum = self._checksums[number].decode()
        num_samples, num_pads = self._counts(number)
        return Shard(shard_path(number), num_samples, num_pads, int(self._sizes[number]), checksum)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self._sizes) and bool(self._sizes[number] >= 0)

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._sizes >= 0).tolist())

    def __len__(self) -> int:
        return self._length

    def _counts(self, number: int) -> tuple[int, int]:
        """Return how many samples a shard has, pads included, and how many of them are pads."""
        first, stop = self._plan.rows(number)
        num_pads = self._plan.num_pads_of(number)
        return stop - first + num_pads, num_pads

    def _check(self, number: int, shard: Shard) -> None:
        num_samples, num_pads = self._counts(number)
        right = (shard.path, shard.num_samples, shard.num_pads) == (shard_path(number), num_samples, num_pads)
        if not right or shard.num_bytes < 0 or not 0 < len(shard.checksum) <= _CHECKSUM_BYTES:
            raise WdsplitError(
                "a task wrote another shard than was planned",
                place=shard_path(number),
                expected=f"{num_samples - num_pads} samples and {num_pads} pads",
                found=str(shard),
                remedy="convert again with --overwrite; if it happens again, please report it",
            )
