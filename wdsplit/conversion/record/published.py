"""The published shards of a run, checked against the plan.

Pure (no I/O). Uses arrays of about 60 bytes per shard, allocated at the start, so that the driver's memory does not
grow during a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.plan.plan import Plan
from wdsplit.errors import WdsplitError
from wdsplit.shards.manifest import Shard, Shards, shard_path

__all__ = ["Published"]

_CHECKSUM_BYTES = 48


class Published(Mapping[int, Shard]):
    """The published shards of a plan, by number.

    Args:
        plan: The plan.
        shards: The shards that exist already.

    Attributes:
        num_samples: Number of samples in published shards, including pads.
        num_bytes: Bytes of published shards.
    """

    def __init__(self, plan: Plan, shards: Mapping[int, Shard] | None = None) -> None:
        self.num_samples = self.num_bytes = 0
        self._plan = plan
        self._sizes: Int64 = np.full(plan.num_shards, -1, np.int64)
        self._checksums = np.full(plan.num_shards, b"", f"S{_CHECKSUM_BYTES}")
        self._length = 0
        self.add(shards or {})

    def add(self, shards: Mapping[int, Shard]) -> None:
        """Add shards; existing ones count once.

        Raises:
            WdsplitError: A shard does not match the plan.
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
        """Return the missing ones of the shards first, ..., stop - 1, ascending: int64 of shape (missing,)."""
        return first + np.flatnonzero(self._sizes[first:stop] < 0)

    def table(self) -> Shards:
        """Return all shards of the plan as rows of the manifest; none may be missing."""
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
        """Return the number of samples of a shard, including pads, and the number of pads."""
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
