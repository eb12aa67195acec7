"""What every task of a conversion gets, and the shards that tasks have published, checked against the plan."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.plan.plan import Plan
from wdsplit.errors import WdsplitError
from wdsplit.jobs.run import Job
from wdsplit.order.defaults import default_window
from wdsplit.shards.manifest import RUN_FOLDER, Manifest, Shards, shard_path

__all__ = ["SHARDS_FOLDER", "ConvertJob", "Published", "ShardRow", "parse_row"]

SHARDS_FOLDER = f"{RUN_FOLDER}/shards"
"""The folder of the notes of published shards."""

_CHECKSUM_BYTES = 48
_SIZES = range(2**63)


@dataclass(frozen=True, kw_only=True)
class ConvertJob(Job):
    """The input of every task of a conversion.

    Attributes:
        plan: The plan.
        buffer_bytes: Bytes of rows that a task may buffer, if the plan reorders rows.
        emit: The sidecars to write.
    """

    plan: Plan
    buffer_bytes: int
    emit: tuple[str, ...] = ()
    run_folder = RUN_FOLDER

    @property
    def run(self) -> str:
        """The hash of the plan."""
        return self.plan.hash


class ShardRow(NamedTuple):
    """What a task notes of a published shard: samples with pads, pads, bytes and checksum."""

    num_samples: int
    num_pads: int
    num_bytes: int
    checksum: str


def parse_row(note: Any) -> ShardRow:
    """Return the noted row of a shard."""
    match note:
        case [int(num_samples), int(num_pads), int(num_bytes), str(checksum)] if num_bytes in _SIZES:
            return ShardRow(num_samples, num_pads, num_bytes, checksum)
    raise ValueError


class Published:
    """The published shards of a plan, by number.

    About 60 bytes per shard, allocated at the start, so that the driver's memory does not grow during a run.

    Attributes:
        num_samples: Number of samples in published shards, including pads.
        num_bytes: Bytes of published shards.
    """

    def __init__(self, plan: Plan) -> None:
        self.num_samples = self.num_bytes = 0
        self._plan = plan
        self._sizes: Int64 = np.full(plan.num_shards, -1, np.int64)
        self._checksums = np.full(plan.num_shards, b"", f"S{_CHECKSUM_BYTES}")

    def add(self, number: int, row: ShardRow) -> None:
        """Add a shard.

        Raises:
            WdsplitError: It does not match the plan.
        """
        first, stop = self._plan.rows(number)
        num_pads = self._plan.num_pads_of(number)
        planned = stop - first + num_pads, num_pads
        if row[:2] != planned or not 0 < len(row.checksum) <= _CHECKSUM_BYTES:
            raise WdsplitError(
                "a task wrote another shard than was planned",
                place=shard_path(number),
                expected=f"{stop - first} samples and {num_pads} pads",
                found=str(row),
                remedy="convert again with --overwrite; if it happens again, please report it",
            )
        self.num_samples += row.num_samples
        self.num_bytes += row.num_bytes
        self._sizes[number], self._checksums[number] = row.num_bytes, row.checksum.encode()

    def manifest(self, emit: Sequence[str]) -> Manifest:
        """Return the manifest of the dataset; no shard may be missing. `emit` are the sidecars that it has."""
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
        versions = {"wdsplit": version("wdsplit"), "pyarrow": pa.__version__, "numpy": np.__version__}
        provenance = {
            **plan.provenance,
            "emit": list(emit),
            "versions": {**versions, "python": platform.python_version()},
        }
        window = plan.options.window or default_window(self.num_bytes, self.num_samples, plan.lanes)
        shards = Shards.of_columns(columns)
        return Manifest(shards, plan.fields, plan.lanes, window, plan.options.pad, provenance, plan.samples)
