"""The first stage of a dataset: what reads the samples of an epoch's positions.

Composition of the manifest, the order and the reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

from wdsplit.block import Block
from wdsplit.errors import InputError
from wdsplit.manifest import Manifest
from wdsplit.order import EpochOrder, Int64, OrderOptions
from wdsplit.reader import SampleReader
from wdsplit.split import AnyOrder, World, assigned_lanes
from wdsplit.storage import Storage
from wdsplit.stores import open_storage

__all__ = ["AnySource", "BlockReader", "Source"]

_LEAST_AT_ONCE, _MOST_AT_ONCE = 1024, 65_536
_BYTES_AT_ONCE = 64 * 1024**2


class BlockReader(Protocol):
    """Reads the samples of positions."""

    @property
    def num_parsed(self) -> int:
        """Windows that were read and parsed so far."""

    @property
    def num_held(self) -> int:
        """Times that a window was at hand already."""

    def read(self, positions: Int64) -> Block:
        """Return the samples at the given positions, in their order."""


class AnySource(Protocol):
    """The first stage of a dataset."""

    @property
    def url(self) -> str:
        """What to call it."""

    @property
    def options(self) -> OrderOptions:
        """What its order depends on."""

    @property
    def fingerprint(self) -> str:
        """What a state belongs to."""

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, pads left out."""

    @property
    def sample_bytes(self) -> int:
        """About how many bytes of a shard a sample takes."""

    def order(self, epoch: int) -> AnyOrder:
        """Return the order of an epoch."""

    def reader(self, order: Any, world: World) -> BlockReader:
        """Return what reads the positions of an order of this source for one of its readers."""

    def samples_at_once(self, world: World) -> int:
        """Return how many samples a reader shall read at a time."""


class Source:
    """Reads one dataset.

    Args:
        url: The dataset's folder.
        manifest: Its manifest.
        options: The order's options.
        fields: The fields that are wanted; None for all.
        storage_options: How to reach a remote store.

    Raises:
        InputError: The dataset has no such field.
    """

    def __init__(
        self,
        url: str,
        manifest: Manifest,
        options: OrderOptions,
        fields: Collection[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url
        self.storage_options = storage_options
        self.manifest = manifest
        self.options = options
        if isinstance(fields, str):
            raise InputError("fields cannot be a text", expected="a list of names", found=repr(fields))
        self.fields = None if fields is None else frozenset(fields)
        known = [field.name for field in manifest.fields]
        unknown = sorted((self.fields or frozenset()).difference(known))
        if unknown:
            raise InputError(
                "the dataset has no such field", place=url, expected=", ".join(known), found=", ".join(unknown)
            )

    @cached_property
    def fingerprint(self) -> str:
        """What a state belongs to."""
        return self.manifest.fingerprint

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, pads left out."""
        return self.manifest.num_samples

    @property
    def sample_bytes(self) -> int:
        """About how many bytes of a shard a sample takes: the mean."""
        return self.manifest.num_bytes // max(1, self.manifest.num_samples + self.manifest.num_pads)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return EpochOrder(self.manifest.shards.num_real, self.options, epoch)

    def reader(self, order: EpochOrder, world: World) -> BlockReader:
        """Return what reads the positions of an order for one of its readers."""
        num_lanes = len(assigned_lanes(self.options.lanes, world))
        return SampleReader(self.storage(), self.manifest, order, num_lanes, self.fields)

    def storage(self) -> Storage:
        """Return where the dataset is."""
        return open_storage(self.url, self.storage_options)

    def samples_at_once(self, world: World) -> int:
        """Return how many samples a reader shall read at a time: about a window of each of its lanes."""
        num_samples = len(assigned_lanes(self.options.lanes, world)) * self.options.window
        return max(_LEAST_AT_ONCE, min(_MOST_AT_ONCE, num_samples, _BYTES_AT_ONCE // max(1, self.sample_bytes)))

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Webdataset calls a pipeline's first stage; ours is bound to an epoch by `Dataset.__iter__` instead."""
        raise InputError(
            "the pipeline of a Dataset cannot be run by another pipeline",
            remedy="iterate the Dataset itself, or append its stages to it",
        )
