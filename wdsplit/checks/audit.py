"""Auditing the order: does each promise of loading hold for this dataset and a topology.

Each promise is a check over all positions of an epoch, which a wrong order would fail: of positions alone, or of what
real loaders read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.order.epoch import EpochOrder, Int64, OrderOptions
from wdsplit.order.mixing import mixing
from wdsplit.order.split import Steps, World, worker_of
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest
from wdsplit.storage.given import located_one
from wdsplit.storage.opening import open_readable_storage

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["AuditOptions", "AuditReport", "Finding", "audit"]

_POSITIONS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class AuditOptions:
    """What to audit.

    Attributes:
        world_size: Ranks (W).
        num_workers: Worker processes of each rank (N); 0 reads in the rank's own process.
        batch_size: Samples a batch and rank.
        epochs: Epochs, counted from 0.
        seed: As of the Dataset.
        shuffle: As of the Dataset.
        tail: As of the Dataset; `uneven` promises neither equal steps nor batches, and is checked for the rest.
        read: Run the real loaders and compare what they read.
    """

    world_size: int = 1
    num_workers: int = 0
    batch_size: int = 1
    epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    tail: Any = "pad"
    read: bool = False

    def __post_init__(self) -> None:
        lows = {"world_size": 1, "num_workers": 0, "batch_size": 1, "epochs": 1}
        problems = [
            f"{name} = {getattr(self, name)}: expected at least {low}"
            for name, low in lows.items()
            if getattr(self, name) < low
        ]
        if problems:
            raise InputError("invalid audit options", found="; ".join(problems))

    @property
    def global_batch(self) -> int:
        """Samples of a step over all ranks (B)."""
        return self.batch_size * self.world_size


@dataclass(frozen=True)
class Finding:
    """Whether a promise held in an epoch, and the figures that show it.

    Attributes:
        epoch: The epoch.
        promise: Its name, such as `exactly once`.
        held: Whether it held.
        evidence: The figures, as text.
        figure: For `mixing`, which is no promise: how much likelier than by chance two samples of a batch share one
            again in the next epoch; 1 is ideal.
    """

    epoch: int
    promise: str
    held: bool
    evidence: str
    figure: float | None = None


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        findings: Each promise in each epoch.
    """

    findings: tuple[Finding, ...]

    @property
    def held(self) -> bool:
        """Whether all promises held."""
        return all(finding.held for finding in self.findings)


def audit(
    url: str,
    options: AuditOptions | None = None,
    progress: Callable[[Finding], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> AuditReport:
    """Check each promise in each epoch.

    Args:
        url: The dataset's folder.
        options: Topology and order; None for one rank without workers.
        progress: Called with each finding as soon as there is one.
        storage_options: How to reach a remote store, as of `Dataset`.
        fs: The file system that the folder is on, as of `Dataset`.

    Raises:
        WdsplitError: The dataset, or one of its shards, cannot be read.
    """
    findings = []
    for finding in _findings(*located_one(url, storage_options, fs), options or AuditOptions()):
        findings.append(finding)
        if progress is not None:
            progress(finding)
    return AuditReport(tuple(findings))


def _findings(url: str, storage_options: Mapping[str, Any] | None, options: AuditOptions) -> Iterator[Finding]:
    manifest = read_manifest(open_readable_storage(url, storage_options))
    order_options = OrderOptions(options.seed, options.shuffle, manifest.lanes, manifest.window, options.tail)
    for epoch in range(options.epochs):
        order = EpochOrder(manifest.shards.num_real, order_options, epoch)
        yield from _audit_order(order, options)
        if options.read:
            yield from _audit_read(_loaders(url, storage_options, epoch, options), manifest, order, options)


def _ranks(order: EpochOrder, options: AuditOptions, start: int = 0) -> list[Steps]:
    return [
        Steps(order, World(rank, options.world_size), options.batch_size, start) for rank in range(options.world_size)
    ]


def _audit_order(order: EpochOrder, options: AuditOptions) -> Iterator[Finding]:
    """Check the promises on the positions alone; no shard is touched."""
    epoch, ranks = order.epoch, _ranks(order, options)
    even = order.options.tail != "uneven"
    steps = [len(rank) for rank in ranks]
    if even:
        yield Finding(
            epoch,
            "equal steps",
            len(set(steps)) == 1,
            f"batches of each rank: {_spread(steps)}" + ("" if any(steps) else ", so there is nothing to train on"),
        )
        same, count = _same_batches(order, options)
        reference = f"as 1 rank without workers, batch {options.global_batch}"
        yield Finding(epoch, "same batches", same, f"{count:,} positions are dealt to ranks and workers {reference}")
    yield _audit_once(order, ranks, options)
    if even:
        yield _audit_resume(order, options)
    if epoch == 0 and order.options.shuffle:
        yield from _measure_mixing(order, options)


def _measure_mixing(order: EpochOrder, options: AuditOptions) -> Iterator[Finding]:
    """Say how often samples that share a batch share one again in the next epoch, if batches have two samples."""
    following = EpochOrder(order.counts, order.options, order.epoch + 1)
    found = mixing(order, following, options.global_batch)
    if found is None:
        return
    error = f" +- {found.error:.2g} (estimated from some batches)" if found.error else ""
    evidence = (
        f"1 is ideal: two samples of a batch of {options.global_batch:,} share a batch again in the next epoch "
        f"{found.figure:.2f}{error} times as often as by chance; of the {options.global_batch - 1:,} others in its "
        f"batch, a sample meets {found.met_again:.2g} again, by chance {found.by_chance:.2g}"
    )
    yield Finding(order.epoch, "mixing", True, evidence, round(found.figure, 4))


def _audit_once(order: EpochOrder, ranks: list[Steps], options: AuditOptions) -> Finding:
    """Check that each sample is given once, that only what the tail allows is left out, and the rest are pads."""
    seen, pads = _count_seen(order, ranks)
    missing, repeated = int((seen == 0).sum()), int((seen > 1).sum())
    given = _positions_left(order, options.global_batch)
    allowed = max(0, order.num_samples - given)
    expected_pads = max(0, given - order.num_samples)
    if order.options.tail == "uneven":
        allowed = expected_pads = 0
    held = repeated == 0 and missing == allowed and pads == expected_pads
    left = "left out" if order.options.tail == "drop" else "missing"
    evidence = (
        f"{len(seen):,} samples: {int(seen.sum()):,} seen, {repeated:,} repeated, {missing:,} {left}; {pads:,} pads"
    )
    return Finding(order.epoch, "exactly once", held, evidence)


def _positions_left(order: EpochOrder, global_batch: int, start: int = 0) -> int:
    """Return how many positions the steps from `start` on must cover: whole steps, filled or dropped."""
    left = max(0, order.num_positions - start)
    steps = left // global_batch if order.options.tail == "drop" else -(-left // global_batch)
    return steps * global_batch


def _spread(values: list[int]) -> str:
    return f"{values[0]:,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}"


def _same_batches(order: EpochOrder, options: AuditOptions) -> tuple[bool, int]:
    """Weave each step from the batches of all workers of all ranks, and compare it with the step of a single reader.

    Returns:
        Whether all steps are equal, and how many positions were compared.
    """
    num_workers = max(1, options.num_workers)
    alone = Steps(order, World(), options.global_batch)
    count = 0
    for whole, *batches in zip_longest(alone, *_ranks(order, options)):
        if whole is None or not all(batches):
            return False, count
        woven = np.full(options.global_batch, -1, np.int64)
        for rank, batch in enumerate(batches):
            is_read = worker_of(batch.positions, options.world_size, num_workers) < num_workers
            # Rank r of W reads the positions g with g % W == r.
            places = np.arange((rank - whole.positions[0]) % options.world_size, len(woven), options.world_size)
            if len(places) != len(batch.positions):
                return False, count
            woven[places] = np.where(is_read, batch.positions, -1)
        if not np.array_equal(woven, whole.positions):
            return False, count
        count += len(woven)
    return True, count


def _count_seen(order: EpochOrder, ranks: list[Steps]) -> tuple[Int64, int]:
    """Count how often each sample of the dataset is given, pads left out, and the pads."""
    base = np.concatenate([[0], np.cumsum(order.counts)])
    seen = np.zeros(order.num_samples, np.int64)
    pads = 0
    for rank in ranks:
        for positions in _in_large_chunks(step.positions for step in rank):
            located = order.locate(positions)
            real = ~located.pad
            pads += int(located.pad.sum())
            np.add.at(seen, base[located.shard[real]] + located.sample[real], 1)
    return seen, pads


def _in_large_chunks(arrays: Iterator[Int64]) -> Iterator[Int64]:
    """Concatenate arrays to chunks of about a million entries: locating many positions at once is faster."""
    chunk: list[Int64] = []
    for array in arrays:
        chunk.append(array)
        if len(chunk) * len(array) >= _POSITIONS_AT_ONCE:
            yield np.concatenate(chunk)
            chunk = []
    if chunk:
        yield np.concatenate(chunk)


def _resume_points(num_steps: int) -> list[int]:
    """Return some steps to stop after: the first, one in the middle, the last but one."""
    return sorted({step for step in (1, num_steps // 2, num_steps - 1) if 0 < step < num_steps})


def _audit_resume(order: EpochOrder, options: AuditOptions) -> Finding:
    """Stop after some steps, go on with one rank more, and compare with the epoch that was not stopped."""
    other = replace(options, world_size=options.world_size + 1)
    points = _resume_points(len(_ranks(order, options)[0]))
    held = True
    for point in points:
        end = point * options.global_batch
        parts = [step.positions for rank in _ranks(order, other, end) for step in rank]
        rest = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
        held = held and np.array_equal(rest, np.arange(end, end + _positions_left(order, other.global_batch, end)))
    where = ", ".join(f"{point:,}" for point in points) or "no"
    evidence = f"stopped after {where} steps, resumed on {other.world_size} ranks: consumed + rest = the whole"
    return Finding(order.epoch, "resume", held, evidence)


_Open = Callable[[int, int, int, int], Any]
"""Opens a loader for a rank, world size, number of workers and batch size."""


def _audit_read(open_loader: _Open, manifest: Manifest, order: EpochOrder, options: AuditOptions) -> Iterator[Finding]:
    """Run the loaders of all ranks, one after another, and compare what they read with one plain reader."""
    alone, _ = _read_keys(open_loader(0, 1, 0, options.global_batch))
    merged: dict[int, tuple[str, bool]] = {}
    delivered = 0
    for rank in range(options.world_size):
        entries, count = _read_keys(open_loader(rank, options.world_size, options.num_workers, options.batch_size))
        merged |= entries
        delivered += count
    is_even = options.tail != "uneven"
    if is_even:
        evidence = f"{len(merged):,} samples read by {options.world_size} ranks x {options.num_workers} workers"
        yield Finding(order.epoch, "same batches, read", merged == alone, evidence)
    real = [key for key, pad in merged.values() if not pad]
    expected = manifest.num_samples
    if options.tail == "drop":
        expected = min(expected, _positions_left(order, options.global_batch))
    held = delivered == len(merged) and len(set(real)) == len(real) == expected
    once = "each once" if len(set(real)) == len(real) else f"{len(set(real)):,} different"
    evidence = f"{len(real):,} of {manifest.num_samples:,} keys read, {once}; {delivered - len(real):,} pads"
    yield Finding(order.epoch, "exactly once, read", held, evidence)
    if is_even:
        yield _audit_read_resume(open_loader, order, alone, options)


def _loaders(url: str, storage_options: Mapping[str, Any] | None, epoch: int, options: AuditOptions) -> _Open:
    """Return what opens loaders of an epoch."""
    try:
        from wdsplit.loading.dataset import Dataset
        from wdsplit.loading.loader import Loader
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torch") from error

    def open_loader(rank: int, world_size: int, num_workers: int, batch_size: int) -> Any:
        dataset = Dataset(
            url,
            seed=options.seed,
            shuffle=options.shuffle,
            tail=options.tail,
            rank=rank,
            world_size=world_size,
            storage_options=storage_options,
        )
        loader = Loader(dataset.to_tuple("__position__", "__pad__", "__key__"), batch_size, num_workers=num_workers)
        loader.set_epoch(epoch)
        return loader

    return open_loader


def _read_keys(batches: Any) -> tuple[dict[int, tuple[str, bool]], int]:
    """Return key and pad flag of each position that was read, and how many samples that took."""
    found: dict[int, tuple[str, bool]] = {}
    count = 0
    for positions, pads, keys in batches:
        entries = zip(keys, pads.tolist(), strict=True)
        for position, entry in zip(positions.tolist(), entries, strict=True):
            found[position] = entry
            count += 1
    return found, count


def _audit_read_resume(
    open_loader: _Open,
    order: EpochOrder,
    alone: dict[int, tuple[str, bool]],
    options: AuditOptions,
) -> Finding:
    """Stop one loader in the middle, hand its state to one more rank, and compare what is read from there."""
    first = open_loader(0, options.world_size, options.num_workers, options.batch_size)
    stop = len(first) // 2
    for _, _ in zip(range(stop), first, strict=False):
        state = first.state_dict()
    if not stop:
        return Finding(order.epoch, "resume, read", True, "one step only: nothing to resume")
    rest: dict[int, tuple[str, bool]] = {}
    for rank in range(options.world_size + 1):
        resumed = open_loader(rank, options.world_size + 1, 0, options.batch_size)
        resumed.load_state_dict(state)
        rest |= _read_keys(resumed)[0]
    expected = {position: entry for position, entry in alone.items() if position >= state["position"]}
    common = expected.keys() & rest.keys()
    held = all(expected[position] == rest[position] for position in common)
    beyond = [pad for position, (_, pad) in (expected | rest).items() if position not in common]
    held = held and (all(beyond) or options.tail == "drop")
    evidence = f"stopped after {stop:,} of {len(first):,} steps, resumed on {options.world_size + 1} ranks"
    return Finding(order.epoch, "resume, read", held, f"{evidence}: {len(rest):,} samples as before")
