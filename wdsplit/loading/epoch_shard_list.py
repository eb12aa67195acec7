"""The shard source of hand-written webdataset pipelines: a new order each epoch, the same on all ranks.

`wds.split_by_node` and `wds.split_by_worker` give each reader every n-th URL of a list, so all readers must make the
same list, in an order that changes with the epoch. Nothing here reads samples.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset
from webdataset.shardlists import expand_urls
from webdataset.utils import pytorch_worker_info

from wdsplit.errors import InputError
from wdsplit.loading.dataset import checked_epoch
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.order.epoch import OrderOptions, Tail, permutation
from wdsplit.order.split import World, whole
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_readable_storage
from wdsplit.urls import shown_url

__all__ = ["EpochShardList", "shard_urls"]

_SHARD_LIST = 11
"""The domain of the hash: numbers that other modules use never serve this purpose."""

_EPOCH, _FINISHED, _WARNED_TAIL, _WARNED_AGAIN = range(4)
"""Integers that copies and workers share: the epoch, the one last read to its end, and which warnings were given."""


class EpochShardList(IterableDataset[dict[str, str]]):
    """The shards of each epoch in a new order, which is the same on all ranks and workers: split it afterwards.

    The first stage of a pipeline that is written by hand (`wds.WebDataset` takes URLs only):

        shards = wdsplit.EpochShardList("data/{000..127}.tar", seed=0)
        pipeline = wds.DataPipeline(shards, wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples(), ...)
        for epoch in range(start, epochs):
            shards.set_epoch(epoch)
            for sample in torch.utils.data.DataLoader(pipeline, ...): ...

    Iterating gives `{"url": ...}` for each shard, once. The order is a function of the URLs, the seed and the epoch.

    `set_epoch` reaches all copies and all worker processes, persistent or not. The epoch, at first 0, stays until the
    next call, so call it before each epoch: an epoch that is read again in the same order brings a warning.

    Whole shards are dealt out. If their number is no multiple of ranks x workers, some readers get a shard more than
    others, and ranks do not end together: with DDP that hangs. `tail` can even out the shards, but a repeated shard
    is not flagged, and shards of unequal size still give ranks unequal numbers of samples. `wdsplit.Loader` promises
    equal steps and flags what it repeats; this list cannot.

    Args:
        urls: A pattern as webdataset has them (braces; `::` between several), a sequence of URLs, or the folder of a
            wdsplit dataset. Pads in the tars of a dataset come as any other sample; their keys begin with `_pad_/`.
        seed: What the shuffle depends on, besides the epoch.
        shuffle: Permute the shards each epoch; whatever order they were listed in does not matter then.
        tail: Where ranks x workers, as webdataset finds them, do not divide the shards: `uneven` leaves the list as it
            is and warns once; `pad` repeats shards from the start of the epoch's order; `drop` leaves out the last
            of the epoch's order.

    Raises:
        InputError: There are no shards, or an option is invalid.
        DatasetNotFoundError: The folder holds no dataset.
        CorruptDataError: Its manifest is damaged.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "uneven",
    ) -> None:
        options = OrderOptions(whole(seed), bool(shuffle), lanes=1, window=1, tail=tail)
        self.urls = shard_urls(urls)
        self.seed = options.seed
        self.shuffle = options.shuffle
        self.tail = options.tail
        self._shared = SharedIntegers(4)
        self._shared.array[_FINISHED] = -1

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._shared.array[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterations, here and in all workers, persistent or not.

        Raises:
            InputError: The epoch is negative or no integer.
        """
        cells = self._shared.array
        cells[_EPOCH], cells[_FINISHED] = checked_epoch(epoch), -1

    def order(self, epoch: int) -> list[str]:
        """Return the URLs of all shards in the order of an epoch, before anything is repeated or left out."""
        if not self.shuffle:
            return list(self.urls)
        listed = sorted(self.urls)
        return [listed[shard] for shard in permutation(len(listed), self.seed, checked_epoch(epoch), _SHARD_LIST)]

    def __len__(self) -> int:
        """Return the number of shards, before anything is repeated or left out."""
        return len(self.urls)

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Give the shards of this iteration's epoch, for all readers: the split comes after.

        Raises:
            InputError: `drop` would leave nothing.
            TopologyError: Rank and world size contradict each other.
        """
        # The split that follows is webdataset's, so ranks and workers are counted as it counts them.
        epoch, world = self.epoch, World(*pytorch_worker_info())
        leads = world.rank == 0 and world.worker == 0
        if leads and self.shuffle and epoch == self._shared.array[_FINISHED]:
            again = f"epoch {epoch} is read again in the same order, because set_epoch was not called since it ended"
            self._warn_once(_WARNED_AGAIN, again)
        urls = self.order(epoch)
        readers = world.world_size * world.num_workers
        if leads and self.tail == "uneven" and len(urls) % readers:
            self._warn_once(_WARNED_TAIL, _uneven(len(urls), world))
        for url in _evened(urls, readers, self.tail):
            yield {"url": url}
        if leads and epoch == self.epoch:
            self._shared.array[_FINISHED] = epoch

    def _warn_once(self, cell: int, text: str) -> None:
        """Warn, unless a copy in any process has."""
        if not self._shared.array[cell]:
            self._shared.array[cell] = 1
            warnings.warn(text, stacklevel=3)


def _uneven(num_shards: int, world: World) -> str:
    """Say how many readers get more shards than others, and what to do."""
    readers = world.world_size * world.num_workers
    each, over = divmod(num_shards, readers)
    return (
        f"{num_shards} shards do not divide by {world.world_size} ranks x {world.num_workers} workers: {over} of these "
        f"{readers} readers get {each + 1}, {readers - over} get {each}. Ranks that end early make DDP hang: write "
        'another number of shards, choose tail="pad" or "drop", or use wdsplit.Loader'
    )


def _evened(urls: list[str], readers: int, tail: Tail) -> list[str]:
    """Return the URLs, some repeated or left out so that all readers get equally many, unless the tail is uneven."""
    over = len(urls) % readers
    if tail == "uneven" or not over:
        return urls
    if tail == "pad":
        return [urls[place % len(urls)] for place in range(len(urls) + readers - over)]
    if len(urls) < readers:
        raise InputError(
            'with tail="drop" no shard is left',
            expected=f"at least {readers} shards, one for each reader",
            found=str(len(urls)),
            remedy='use fewer workers, write more shards, or choose tail="pad"',
        )
    return urls[: len(urls) - over]


def shard_urls(urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the URLs that a pattern, a sequence or the folder of a dataset means, in their order.

    Raises:
        InputError: There are none, or they are no URLs.
        DatasetNotFoundError: The folder holds no dataset.
        CorruptDataError: Its manifest is damaged.
    """
    if isinstance(urls, str | os.PathLike):
        pattern = os.fspath(urls)
        found: list[Any] = _of_dataset(pattern) if os.path.isdir(pattern) else _of_pattern(pattern)
    else:
        found = [os.fspath(url) if isinstance(url, os.PathLike) else url for url in urls]
    wrong = [type(url).__name__ if url else "nothing" for url in found if not isinstance(url, str) or not url]
    if wrong or not found:
        raise InputError(
            "invalid URLs of shards" if wrong else "there are no shards",
            place=shown_url(urls) if isinstance(urls, str) else "",
            expected="a pattern, a list of URLs, or the folder of a dataset",
            found=", ".join(wrong[:5]) or "nothing",
            remedy="check what the list is made from",
        )
    return found


def _of_dataset(folder: str) -> list[str]:
    storage = open_readable_storage(folder)
    paths = read_manifest(storage).shards.table.column("path").to_pylist()
    return [f"{storage.url}/{path}" for path in paths]


def _is_glob(url: str) -> bool:
    return "://" not in url and not url.startswith("pipe:") and glob.has_magic(url)


def _of_pattern(pattern: str) -> list[str]:
    try:
        urls = [str(url) for url in expand_urls(pattern)]
        return [path for url in urls for path in (sorted(glob.glob(url)) if _is_glob(url) else [url])]
    except (AssertionError, ValueError):
        raise InputError(
            "invalid pattern",
            place=shown_url(pattern),
            expected="braces that close, and ${NAME} for variables of the environment that are called WDS_NAME",
            remedy="correct the pattern, or pass a list of URLs",
        ) from None
