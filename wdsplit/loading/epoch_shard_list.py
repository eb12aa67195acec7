"""The shard source of hand-written webdataset pipelines: a new order each epoch, the same on all ranks.

`wds.split_by_node` and `wds.split_by_worker` give each reader every n-th URL of a list, so all readers must make the
same list, in an order that changes with the epoch. Which epoch it is lies in shared memory, because pipelines copy
their stages and workers hold copies. Samples are no matter of this module.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from webdataset.shardlists import expand_urls
from webdataset.utils import pytorch_worker_info

from wdsplit.errors import InputError, TopologyError
from wdsplit.loading.dataset import checked_epoch
from wdsplit.order.epoch import Int64, OrderOptions, Tail, hash_stream, permutation
from wdsplit.order.split import World, whole
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_readable_storage
from wdsplit.urls import shown_url

__all__ = ["EpochShardList", "next_turn", "shard_urls"]

_SHARD_LIST = 11
"""The domain of the hash: numbers that other modules use never serve this purpose."""

_MAX_WORKERS = 4096
_CHOSEN, _FINISHED, _TOLD_TAIL, _TOLD_AGAIN, _TURNS = range(5)
"""Words of the shared memory; from the last one on there is one for each reader, this process's first."""

_COUNT_BITS, _FIRST_BITS, _KEY_BITS = 21, 22, 20
_COUNT_MASK, _FIRST_MASK = (1 << _COUNT_BITS) - 1, (1 << _FIRST_BITS) - 1


def next_turn(turns: Int64, reader: int, key: int) -> int:
    """Return what a reader notes when it begins the list once more.

    Pure. A note is one 64-bit word, because a word is read and written whole, with no lock that a killed worker could
    keep: the key of the loader's iteration, the turn that this iteration began with, and how often the reader has
    begun since. Readers of one key thus agree on the turn, whoever comes first, and however many readers of an
    iteration that was left early never began.

    Args:
        turns: The notes of all readers: int64 of shape (readers,), 0 where a reader has not begun.
        reader: Its place among them.
        key: What the workers of one iteration of a loader have in common, from 1 to 2**20 - 1; 0 if the reader is
            alone and each time begins a turn of its own.

    Raises:
        InputError: There were more turns than can be counted.
    """
    keys = turns >> (_COUNT_BITS + _FIRST_BITS)
    firsts, counts = (turns >> _COUNT_BITS) & _FIRST_MASK, turns & _COUNT_MASK
    if key and keys[reader] == key:
        first, count = int(firsts[reader]), int(counts[reader]) + 1
    else:
        of_key = firsts[keys == key] if key else firsts[:0]
        first, count = int(of_key[0] if len(of_key) else (firsts + counts).max()), 1
    if count > _COUNT_MASK or first > _FIRST_MASK:
        raise InputError(
            "the shard list was begun too often to count its epochs",
            remedy="call set_epoch before each epoch",
        )
    return ((key << _FIRST_BITS) | first) << _COUNT_BITS | count


def _turns_done(turns: Int64) -> int:
    """Return how many turns have begun."""
    return int((((turns >> _COUNT_BITS) & _FIRST_MASK) + (turns & _COUNT_MASK)).max())


class _SharedTurns:
    """Which epoch is next, in memory that copies and worker processes share: the one chosen, else counted.

    Args:
        first: The epoch that counting starts from.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._words = torch.zeros(_TURNS + 1 + _MAX_WORKERS, dtype=torch.int64)
        self._words[_CHOSEN] = self._words[_FINISHED] = -1
        self.__setstate__(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share the memory of a copy too: pickles and deep copies go their own way, but their workers with them."""
        self.__dict__.update(state)
        self._words.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        words = self._words.numpy()
        return int(words[_CHOSEN]) if words[_CHOSEN] >= 0 else self._first + _turns_done(words[_TURNS:])

    def choose(self, epoch: int) -> None:
        """Set the epoch, from now on."""
        self._words[_FINISHED] = -1
        self._words[_CHOSEN] = epoch

    def begin(self) -> int:
        """Return the epoch of an iteration that this reader begins; count it, if epochs are counted."""
        words = self._words.numpy()
        chosen = int(words[_CHOSEN])
        if chosen >= 0:
            return chosen
        info = get_worker_info()
        if info is not None and info.id >= _MAX_WORKERS:
            raise TopologyError(
                "there are too many workers", expected=f"at most {_MAX_WORKERS}", found=f"{info.id + 1}"
            )
        reader = 0 if info is None else 1 + info.id
        key = 0 if info is None else 1 + hash_stream(info.seed - info.id) % ((1 << _KEY_BITS) - 1)
        word = next_turn(words[_TURNS:].copy(), reader, key)
        words[_TURNS + reader] = word
        return self._first + ((word >> _COUNT_BITS) & _FIRST_MASK) + (word & _COUNT_MASK) - 1

    def finish(self, epoch: int) -> None:
        """Note that an epoch was read to its end."""
        self._words[_FINISHED] = epoch

    def is_again(self, epoch: int) -> bool:
        """Tell whether an epoch was chosen once and has been read to its end since."""
        return epoch == int(self._words[_CHOSEN]) == int(self._words[_FINISHED])

    def tell_once(self, word: int, text: str) -> None:
        """Warn, unless a copy in any process has."""
        if not self._words[word]:
            self._words[word] = 1
            warnings.warn(text, stacklevel=3)


class EpochShardList(IterableDataset[dict[str, str]]):
    """The shards of each epoch in a new order, which is the same on all ranks and workers: split it afterwards.

    The first stage of a pipeline that is written by hand (`wds.WebDataset` takes URLs only):

        shards = wdsplit.EpochShardList("data/{000..127}.tar", seed=0)
        pipeline = wds.DataPipeline(shards, wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples(), ...)
        for epoch in range(start, epochs):
            shards.set_epoch(epoch)
            for sample in torch.utils.data.DataLoader(pipeline, ...): ...

    Iterating gives `{"url": ...}` for each shard, once. The order is a function of the URLs, the seed and the epoch.

    `set_epoch` reaches all copies and all worker processes, persistent or not; an epoch that was set stays until the
    next call, so call it before each epoch. If nobody calls it, the epoch advances by itself with each iteration,
    one that was left early too. Each rank counts its own iterations, so all ranks must begin equally many; and a list
    that counts can feed only one loader at a time.

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
        epoch: The epoch of the first iteration, if nobody calls `set_epoch`: where a run that counts goes on.

    Raises:
        InputError: There are no shards, or an option cannot be.
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
        epoch: int = 0,
    ) -> None:
        options = OrderOptions(whole(seed), bool(shuffle), lanes=1, window=1, tail=tail)
        self.urls = shard_urls(urls)
        self.seed = options.seed
        self.shuffle = options.shuffle
        self.tail = options.tail
        self._turns = _SharedTurns(checked_epoch(epoch))

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration: put it into a checkpoint at the end of an epoch."""
        return self._turns.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterations, here and in all workers, persistent or not.

        Raises:
            InputError: The epoch is negative or no integer.
        """
        self._turns.choose(checked_epoch(epoch))

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
        epoch, world = self._turns.begin(), World(*pytorch_worker_info())
        leads = world.rank == 0 and world.worker == 0
        if leads and self.shuffle and self._turns.is_again(epoch):
            self._turns.tell_once(
                _TOLD_AGAIN,
                f"epoch {epoch} is read again in the same order, because set_epoch was not called since it ended",
            )
        urls = self.order(epoch)
        readers = world.world_size * world.num_workers
        if leads and self.tail == "uneven" and len(urls) % readers:
            self._turns.tell_once(_TOLD_TAIL, _uneven(len(urls), world))
        for url in _evened(urls, readers, self.tail):
            yield {"url": url}
        if leads:
            self._turns.finish(epoch)


def _uneven(num_shards: int, world: World) -> str:
    """Say who gets more shards than others, and what to do."""
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
        InputError: There are none, or they cannot be.
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
            "these are not URLs of shards" if wrong else "there are no shards",
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
            "the pattern cannot be expanded",
            place=shown_url(pattern),
            expected="braces that close, and ${NAME} for variables of the environment that are called WDS_NAME",
            remedy="correct the pattern, or pass a list of URLs",
        ) from None
