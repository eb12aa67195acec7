"""The shard source of hand-written webdataset pipelines: a new order each epoch, the same on all ranks.

`wds.split_by_node` and `wds.split_by_worker` give each reader every n-th URL of a list, so all readers must make the
same list, in an order that changes with the epoch. Nothing here reads samples.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset
from webdataset.shardlists import expand_urls
from webdataset.utils import pytorch_worker_info

from wdsplit.errors import InputError
from wdsplit.integers import whole
from wdsplit.loading.options import checked_epoch
from wdsplit.loading.shard_streams import ShardUrl, is_ours
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.hashing import permutation
from wdsplit.order.limits import Tail
from wdsplit.order.split import World
from wdsplit.shards.files import read_manifest
from wdsplit.storage.given import located
from wdsplit.storage.opening import open_readable_storage
from wdsplit.storage.patterns import Files, has_magic, names_tar
from wdsplit.texts import counted
from wdsplit.urls import joined_url, shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["EpochShardList"]

_SHARD_LIST = 11
"""The domain of the hash: numbers that other modules use never serve this purpose."""

_EPOCH, _FIRST, _FINISHED, _WARNED_TAIL, _WARNED_AGAIN = range(5)
"""Integers that copies and workers share: the epoch and its first shard, the epoch last read to its end, and which
warnings were given."""


class EpochShardList(IterableDataset[dict[str, str]]):
    """A list of shards in a new order each epoch, the same on all ranks and workers, to be split afterwards.

    It is the first stage of a `wds.DataPipeline` (`wds.WebDataset` accepts only URLs):

        shards = wdsplit.EpochShardList("data/train/{000000..000007}.tar", seed=0)
        pipeline = wds.DataPipeline(shards, wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples())
        for epoch in range(2):
            shards.set_epoch(epoch)
            for sample in torch.utils.data.DataLoader(pipeline, batch_size=None): ...

    Iterating yields `{"url": ...}` for each shard, once. The URLs, the seed and the epoch fix the order.

    `set_epoch` reaches all copies and all worker processes, persistent or not. The epoch starts at 0 and stays until
    the next call, so call it before each epoch; repeating an epoch in the same order raises a warning.

    wdsplit opens the shards of remote stores (`s3://`, `gs://`, `https://` and others that `wdsplit.Dataset` reads):
    it retries requests, and a shard that ends early is an error. For that it adds an opener to
    `webdataset.gopen.gopen_schemes`, only for the URLs of such lists; other URLs, and schemes with an opener of your
    own, are opened as before. A `pipe:` URL runs as it is.

    Each reader gets whole shards. If their number is not a multiple of ranks x workers, some readers get one more, and
    ranks do not end together, which makes DDP hang. `tail` can even out the shards, but a repeated shard is not
    flagged, and shards of unequal size still give ranks unequal numbers of samples. `wdsplit.Loader` has equal steps
    and flags repeated samples. Views choose samples, so this list has none.

    Args:
        urls: Shards: a URL or a path; a glob; webdataset's braces (`::` between several patterns); the folder of a
            wdsplit dataset; each local or remote, or a sequence of them. A remote URL that does not end in `.tar`,
            `.tgz` or `.tar.*` is a dataset's folder. Pads in the tars of a dataset are read like other samples; their
            keys begin with `_pad_/`.
        seed: Seed of the shuffle, which also depends on the epoch.
        shuffle: Permute the shards each epoch; the order in which they were listed then has no influence.
        tail: What to do if the number of shards is not a multiple of ranks x workers, as webdataset detects them:
            `uneven` keeps the list and warns once; `pad` repeats shards from the start of the epoch's order; `drop`
            leaves out the last shards of the epoch's order.
        storage_options: How to reach remote stores, as for `wdsplit.Dataset`.
        fs: The file system of the shards, an fsspec object; None to choose it by the URLs.

    Raises:
        InputError: There are no shards, or an option is invalid.
        DatasetNotFoundError: The folder is not a dataset.
        CorruptDataError: The manifest is damaged.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "uneven",
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
    ) -> None:
        options = OrderOptions(whole(seed), bool(shuffle), lanes=1, window=1, tail=tail)
        if fs is not None:
            given = [urls] if isinstance(urls, (str, os.PathLike)) else urls
            urls, storage_options = located(given, storage_options, fs)
        found = _shard_urls(urls, storage_options)
        self.urls = [url for url, _ in found]
        self._sizes = dict(found)
        self._storage_options = storage_options
        self.seed = options.seed
        self.shuffle = options.shuffle
        self.tail = options.tail
        self._shared = SharedIntegers(5)
        self._shared.array[_FINISHED] = -1

    def __repr__(self) -> str:
        return f"<EpochShardList: {counted(len(self.urls), 'shard')}, seed {self.seed}, epoch {self.epoch}>"

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._shared.array[_EPOCH])

    def set_epoch(self, epoch: int, first_shard: int = 0) -> None:
        """Choose the epoch of the next iterations, here and in all workers, persistent or not.

            shards.set_epoch(3, first_shard=2)

        Args:
            epoch: The epoch.
            first_shard: Number of shards to leave out at the start of the epoch's order, to resume an epoch: n x ranks
                x workers if each reader has finished n. The rest is split among the readers of this run, which may be
                of another number.

        Raises:
            InputError: The epoch is not an integer of at least 0, or there are fewer shards.
        """
        first = whole(first_shard)
        if type(first) is not int or not 0 <= first <= len(self.urls):
            expected = f"an integer from 0 to {len(self.urls)}, the number of shards"
            raise InputError("invalid first_shard", expected=expected, found=repr(first_shard))
        cells = self._shared.array
        cells[_EPOCH], cells[_FIRST], cells[_FINISHED] = checked_epoch(epoch), first, -1

    def order(self, epoch: int) -> list[str]:
        """Return the URLs of all shards in the order of an epoch, before shards are repeated or left out.

            print(shards.order(epoch=3)[:2])

        Args:
            epoch: The epoch.
        """
        if not self.shuffle:
            return list(self.urls)
        listed = sorted(self.urls)
        return [listed[shard] for shard in permutation(len(listed), self.seed, checked_epoch(epoch), _SHARD_LIST)]

    def __len__(self) -> int:
        """Return the number of shards, before shards are repeated or left out."""
        return len(self.urls)

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Yield the shards of this iteration's epoch, for all readers: the split comes afterwards.

        Raises:
            InputError: `drop` would leave nothing.
            TopologyError: Rank and world size contradict each other.
        """
        # The split that follows is webdataset's, so ranks and workers are counted as it counts them.
        epoch, first, world = self.epoch, int(self._shared.array[_FIRST]), World(*pytorch_worker_info())
        leads = world.rank == 0 and world.worker == 0
        if leads and self.shuffle and epoch == self._shared.array[_FINISHED]:
            again = f"epoch {epoch} is repeated in the same order: call set_epoch before each epoch"
            self._warn_once(_WARNED_AGAIN, again)
        urls = self.order(epoch)
        readers = world.world_size * world.num_workers
        each, over = divmod(len(urls) - first, readers)
        if leads and self.tail == "uneven" and over:
            self._warn_once(
                _WARNED_TAIL,
                f"{counted(len(urls) - first, 'shard')} cannot be divided by {counted(world.world_size, 'rank')} x "
                f"{counted(world.num_workers, 'worker')}: {over} of these {readers} readers get {each + 1}, "
                f"{readers - over} get {each}. Ranks that end early make DDP hang: write another number of shards, "
                'choose tail="pad" or "drop", or use wdsplit.Loader',
            )
        for url in _evened(urls, first, readers, self.tail):
            yield {"url": ShardUrl.of(url, self._sizes[url], self._storage_options) if is_ours(url) else url}
        if leads and epoch == self.epoch:
            self._shared.array[_FINISHED] = epoch

    def _warn_once(self, cell: int, text: str) -> None:
        """Warn, unless a copy in any process has."""
        if not self._shared.array[cell]:
            self._shared.array[cell] = 1
            warnings.warn(text, stacklevel=3)


def _evened(urls: list[str], first: int, readers: int, tail: Tail) -> list[str]:
    """Return the URLs from `first` on; with `pad` or `drop`, so many that all readers get equally many."""
    left = urls[first:]
    over = len(left) % readers
    if tail == "uneven" or not over:
        return left
    if tail == "pad":
        return left + [urls[place % len(urls)] for place in range(readers - over)]
    if len(left) < readers:
        raise InputError(
            'with tail="drop" no shard is left',
            expected=f"at least {readers} shards, one for each reader",
            found=str(len(left)),
            remedy='use fewer workers, write more shards, or choose tail="pad"',
        )
    return left[: len(left) - over]


def _shard_urls(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: Mapping[str, Any] | None
) -> list[tuple[str, int | None]]:
    """Return the URLs of shards that `EpochShardList` takes, in their order, each with its bytes if they are known.

    Raises:
        InputError: There are none, or they are not URLs.
        DatasetNotFoundError: The folder is not a dataset.
        CorruptDataError: Its manifest is damaged.
    """
    is_listed = not isinstance(urls, str | os.PathLike)
    given: Any = urls if is_listed else [urls]
    texts = [os.fspath(url) if isinstance(url, os.PathLike) else url for url in given]
    wrong = [type(text).__name__ if text else "nothing" for text in texts if not isinstance(text, str) or not text]
    found = [] if wrong else [named for text in texts for named in _named(text, options, is_listed)]
    if wrong or not found:
        raise InputError(
            "invalid URLs of shards" if wrong else "there are no shards",
            place=shown_url(urls) if isinstance(urls, str) else "",
            expected="a pattern, a list of URLs, or the folder of a dataset",
            found=", ".join(wrong[:5]) or "nothing",
            remedy="check the code that makes the list",
        )
    return found


def _named(text: str, options: Mapping[str, Any] | None, is_listed: bool) -> Iterator[tuple[str, int | None]]:
    """Give the shards that a text names; in a list, it may be a command, or a file with a name like a pattern."""
    literal = is_listed and (text.startswith("pipe:") or os.path.isfile(text))
    for url in [text] if literal else _expanded(text):
        if literal or url.startswith("pipe:") or not has_magic(url) or os.path.isdir(url):
            is_remote_folder = is_ours(url) and not names_tar(url)
            yield from _of_dataset(url, options) if is_remote_folder or os.path.isdir(url) else [(url, None)]
            continue
        place = Files(url, options)
        matched = sorted(place.matched(place.pattern))
        if not matched:
            raise InputError(
                "there are no shards",
                place=shown_url(url),
                expected="a pattern that matches files",
                found="no match",
                remedy="check the path",
            )
        for path, is_folder in matched:
            yield from _of_dataset(path, options) if is_folder else [(path, None)]


def _of_dataset(folder: str, options: Mapping[str, Any] | None) -> Iterator[tuple[str, int]]:
    storage = open_readable_storage(folder, options)
    table = read_manifest(storage).shards.table
    root = folder if storage.is_remote else storage.url
    for path, num_bytes in zip(table.column("path").to_pylist(), table.column("num_bytes").to_pylist(), strict=True):
        yield joined_url(root, path), num_bytes


def _expanded(pattern: str) -> list[str]:
    try:
        return [str(url) for url in expand_urls(pattern)]
    except (AssertionError, ValueError):
        raise InputError(
            "invalid pattern",
            place=shown_url(pattern),
            expected="matching braces; ${NAME} stands for the environment variable WDS_NAME",
            remedy="correct the pattern, or pass a list of URLs",
        ) from None
