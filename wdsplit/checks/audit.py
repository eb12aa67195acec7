"""Auditing the order: checks the loading promises for a dataset and a topology.

Each check covers all positions of an epoch, or some of a very large one that a hash draws: the computed positions, or
also the samples that real loaders read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.checks.classes import measure_classes
from wdsplit.checks.mixing import draw_numbers, mixing
from wdsplit.conversion.plan.options import chosen, invalid_values, raise_if_any
from wdsplit.loading.announcing import announce
from wdsplit.loading.opening import open_source
from wdsplit.loading.reading.source import Source
from wdsplit.notebook import html_table
from wdsplit.order.bundles import Grouping, Groups, items_of
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Step, Steps, World, worker_of
from wdsplit.texts import counted

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["AuditOptions", "AuditReport", "Finding", "audit", "audit_order"]

_POSITIONS_AT_ONCE = 1 << 20
_MAX_READERS, _MAX_GLOBAL_BATCH = 2**20, 2**26
"""More ranks x workers, or samples per step, would take hours or all memory: a number is probably mistyped."""
_MAX_POSITIONS = 2**26
"""Of an epoch with more positions, or samples in packs, some are drawn: all would take minutes, and gigabytes."""
_DRAWN_POSITIONS, _DRAWN_SAMPLES = 2**16, 2**13
_LISTED = 16
"""A view whose units are listed, shard by shard, is asked for so many times fewer."""
_NOTHING = Step(np.zeros(0, np.int64), 0)


@dataclass(frozen=True)
class AuditOptions:
    """What to audit.

    Attributes:
        world_size: Number of ranks (W).
        num_workers: Worker processes per rank (N); 0 reads in the rank's own process.
        batch_size: Samples per batch on each rank.
        epochs: Number of epochs to check, from epoch 0.
        seed: As for `Dataset`.
        shuffle: As for `Dataset`.
        tail: As for `Dataset`; `uneven` promises neither equal steps nor equal batches, so these are not checked.
        read: Also run real loaders, and check what they read.
        class_field: The field with the classes, to measure how they are mixed; None for `cls` or fields that end in
            `.cls`, if there are any.
        view: As for `Dataset`.
        where: As for `Dataset`.
        version: As for `Dataset`.
    """

    world_size: int = field(default=1, metadata={"low": 1, "high": _MAX_READERS})
    num_workers: int = field(default=0, metadata={"low": 0, "high": _MAX_READERS})
    batch_size: int = field(default=1, metadata={"low": 1, "high": _MAX_GLOBAL_BATCH})
    epochs: int = field(default=1, metadata={"low": 1, "high": 2**53})
    seed: int = 0
    shuffle: bool = True
    tail: Any = "pad"
    read: bool = False
    class_field: str | None = None
    view: Any = None
    where: str | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        raise_if_any(invalid_values(self))
        products = {
            "num_workers": (self.world_size * max(1, self.num_workers), _MAX_READERS),
            "batch_size": (self.global_batch, _MAX_GLOBAL_BATCH),
        }
        raise_if_any(
            [
                f"world_size x {name} = {number:,}: expected at most {most:,}"
                for name, (number, most) in products.items()
                if number > most
            ]
        )

    @property
    def global_batch(self) -> int:
        """Samples of a step over all ranks (B)."""
        return self.batch_size * self.world_size


@dataclass(frozen=True)
class Finding:
    """The result of a check in an epoch.

    Attributes:
        epoch: The epoch.
        promise: Name of the check, such as `exactly once`.
        held: Whether the check passed; always true for `mixing of epochs` and `mixing of classes`, which only measure.
        evidence: The figures, as text.
        figure: For `mixing of epochs`: how often two samples of a batch share a batch again in the next epoch, relative
            to chance. For `mixing of classes`: mean chi-squared of a rank's batch over the classes.
        ideal: The figure for batches drawn at random: 1, or classes - 1.
        error: Standard error of the figure, if only some batches were counted; 0 if all were.
        remedy: What to do if the classes are badly mixed; else empty.
    """

    epoch: int
    promise: str
    held: bool
    evidence: str
    figure: float | None = None
    ideal: float | None = None
    error: float = 0.0
    remedy: str = ""


@dataclass(frozen=True)
class AuditReport:
    """The results of an audit.

    Attributes:
        findings: The result of each check in each epoch.
    """

    findings: tuple[Finding, ...]

    @property
    def held(self) -> bool:
        """Whether all checks passed."""
        return all(finding.held for finding in self.findings)

    def __repr__(self) -> str:
        failed = ", ".join(dict.fromkeys(finding.promise for finding in self.findings if not finding.held))
        return f"<AuditReport: {f'FAILED: {failed}' if failed else 'all checks passed'}; {len(self.findings)} findings>"

    def _repr_html_(self) -> str:
        rows = [(one.promise, "✓ ok" if one.held else "✗ FAILED", one.epoch, one.evidence) for one in self.findings]
        return html_table("Audit", rows, ("promise", "", "epoch", "evidence"))


def audit(
    url: str,
    options: AuditOptions | None = None,
    progress: Callable[[Finding], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> AuditReport:
    """Check each loading promise in each epoch.

        report = wdsplit.audit("data/train", world_size=2, num_workers=2, batch_size=8)
        for finding in report.findings:
            print(finding)

    Args:
        url: The dataset's folder, or tars, as for `Dataset`.
        options: Topology and order; None for one rank without workers.
        progress: Called with each finding as soon as it is known.
        storage_options: Options for a remote store, as for `Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.
        **keywords: Fields of `AuditOptions`. They replace those of `options`.

    Raises:
        WdsplitError: The dataset, or one of its shards, cannot be read.
    """
    findings, options = [], chosen(AuditOptions, options, keywords)
    for finding in _findings(url, {"storage_options": storage_options, "fs": fs}, options):
        findings.append(finding)
        if progress is not None:
            progress(finding)
    return AuditReport(tuple(findings))


def _findings(url: str, how: dict[str, Any], options: AuditOptions) -> Iterator[Finding]:
    how |= {"seed": options.seed, "shuffle": options.shuffle, "tail": options.tail, "version": options.version}
    source: Any = open_source(url, view=options.view, where=options.where, **how)
    how["view"] = dict(source.views)  # as chosen, so that no loader chooses again
    for epoch in range(options.epochs):
        order = source.order(epoch)
        yield from audit_order(order, options)
        if epoch == 0 and not isinstance(source.form_at(epoch), Grouping):  # their batches are alike on purpose
            yield from _measured(source, order, options)
        if options.read:
            yield from _audit_read(_loaders(url, how, epoch), order, options)


def _ranks(order: EpochOrder, options: AuditOptions, start: int = 0) -> list[Steps]:
    return [
        Steps(order, World(rank, options.world_size), options.batch_size, start) for rank in range(options.world_size)
    ]


def audit_order(order: EpochOrder, options: AuditOptions) -> Iterator[Finding]:
    """Check the promises on the positions alone, of a very large epoch on some; no shard is touched."""
    items, even = items_of(order.selection), order.options.tail != "uneven"
    is_drawn = max(order.num_positions, 0 if items is None else items.num_samples) > _MAX_POSITIONS
    num_steps = _positions_given(order, options.global_batch) // options.global_batch
    same, once = _audit_drawn(order, options, num_steps) if is_drawn else _audit_all(order, options)
    if even:
        lengths = sorted({len(rank) for rank in _ranks(order, options)})
        few = "" if any(lengths) else ", so there is nothing to train on"
        evidence = f"batches of each rank: {' to '.join(f'{each:,}' for each in lengths)}{few}"
        yield Finding(order.epoch, "equal steps", lengths == [num_steps], evidence)
        yield same
    yield once
    if even:
        yield _audit_resume(order, options, num_steps, is_drawn)


def _audit_all(order: EpochOrder, options: AuditOptions) -> tuple[Finding, Finding]:
    """Compare each step with that of a single reader, and count each sample."""
    same, count = order.options.tail != "uneven", 0
    alone = iter(Steps(order, World(), options.global_batch))

    def given() -> Iterator[Int64]:
        nonlocal same, count
        for batches in zip_longest(*_ranks(order, options), fillvalue=_NOTHING):
            positions = [batch.positions for batch in batches]
            if same:
                whole = next(alone, _NOTHING).positions
                same = _is_woven(positions, whole, options)
                count += len(whole) if same else 0
            yield from positions

    once = _audit_once(order, given(), options)
    evidence = f"{count:,} positions: the same steps as 1 rank without workers, batch {options.global_batch}"
    return Finding(order.epoch, "same batches", same and next(alone, None) is None, evidence), once


def _is_woven(batches: list[Int64], whole: Int64, options: AuditOptions) -> bool:
    """Tell whether the ranks' batches, taken in turn, are the step of a single reader, and go to the right workers."""
    if len({len(batch) for batch in batches}) > 1:
        return False
    woven, num_workers = np.stack(batches, axis=1).reshape(-1), max(1, options.num_workers)
    # Rank r of W reads the positions g with g % W == r, and its worker w of N those with g // W % N == w.
    workers = worker_of(woven, options.world_size, num_workers)
    return np.array_equal(woven, whole) and np.array_equal(workers, whole // options.world_size % num_workers)


def _measured(source: Source, order: EpochOrder, options: AuditOptions) -> Iterator[Finding]:
    """Say how often samples that share a batch share one again in the next epoch, and how well classes are mixed."""
    met = mixing(order, options.global_batch) if options.shuffle else None
    if met is not None:
        error = f" (+- {met.error:.2g}, estimated from some batches)" if met.error else ""
        evidence = (
            f"times as often as by chance, two {'pack' if order.is_bundled else 'sample'}s of a batch of "
            f"{options.global_batch:,} share a batch again in the next epoch{error}; ideal: 1"
        )
        yield Finding(order.epoch, "mixing of epochs", True, evidence, round(met.figure, 4), 1, met.error)
    if not options.shuffle and options.class_field is None:
        return
    found = measure_classes(source, order, options.world_size, options.batch_size, options.class_field)
    if found is None:
        return
    mixed = found.mixing
    drawn = f" (+- {mixed.error:.2g}, estimated from {mixed.num_batches:,} batches)"
    verdict = "badly mixed: " if found.remedy else ""
    evidence = (
        f"{verdict}mean chi-squared of the {mixed.ideal + 1:,} classes of {found.field} in a rank's batch of "
        f"{options.batch_size:,}{'' if mixed.is_all else drawn}; random batches have {mixed.ideal:,}; "
        f"a batch has {mixed.classes_in_batch:,.1f} classes"
    )
    evidence, figure = "; ".join(filter(None, (evidence, found.remedy))), round(mixed.chi_squared, 4)
    measured = evidence, figure, mixed.ideal, mixed.shown_error, found.remedy
    yield Finding(order.epoch, "mixing of classes", True, *measured)


def _audit_once(order: EpochOrder, given: Iterable[Int64], options: AuditOptions) -> Finding:
    """Check that each sample is given once, that only what the tail allows is left out, and the rest are pads."""
    base = np.concatenate([[0], np.cumsum(order.totals)])
    seen, due, pads, given = np.zeros(int(base[-1]), np.int64), [np.zeros(0, np.int64)], 0, iter(given)
    together = max(1, _POSITIONS_AT_ONCE // options.batch_size)  # locating many positions at once is faster
    while some := list(islice(given, together)):
        positions = np.concatenate(some)
        located = order.locate(positions)
        pads += int((~order.is_real(positions)).sum())
        np.add.at(seen, base[located.shard[~located.pad]] + located.sample[~located.pad], 1)
    for shard, (count, total) in enumerate(zip(order.counts.tolist(), order.totals.tolist(), strict=True)):
        items = order.shard_units(shard).items(np.arange(count))
        samples = items.samples if items.pads is None else items.samples[~items.pads]
        due.append(np.bincount(samples, minlength=total))
    times = np.concatenate(due)
    num_others, repeated = int(seen[times == 0].sum()), int(((seen > times) & (times > 0)).sum())
    missing, num_given = int(np.maximum(times - seen, 0).sum()), _positions_given(order, options.global_batch)
    allowed, expected_pads = max(0, order.num_samples - num_given), max(0, num_given - order.num_samples)
    if order.options.tail == "uneven":
        allowed = expected_pads = 0
    elif order.is_bundled:  # of whole packs, the samples in them
        covered = order.locate(np.arange(min(num_given, order.num_positions)))
        allowed = int(times.sum() - (~covered.pad).sum())
    held = repeated == num_others == 0 and missing == allowed and pads == expected_pads
    left = "left out" if order.options.tail == "drop" else "missing"
    evidence = (
        f"{counted(int(times.sum()), 'sample')}: {int(seen[times > 0].sum()):,} seen, {repeated:,} repeated, "
        f"{missing:,} {left}; {counted(pads, 'pad')}"
        + (f"; {num_others:,} that are not selected" if num_others else "")
    )
    return Finding(order.epoch, "exactly once", held, evidence)


def _positions_given(order: EpochOrder, global_batch: int) -> int:
    """Return how many positions whole steps cover: the last one is filled or dropped."""
    total = order.num_positions
    steps = total // global_batch if order.options.tail == "drop" else -(-total // global_batch)
    return steps * global_batch


def _audit_resume(order: EpochOrder, options: AuditOptions, num_steps: int, is_drawn: bool) -> Finding:
    """Stop after some steps, go on with one rank more, and compare with the epoch that was not stopped.

    Of a very large epoch only the first and the last step after each stop are compared.
    """
    other, held = replace(options, world_size=options.world_size + 1), True
    points = sorted({step for step in (1, num_steps // 2, num_steps - 1) if 0 < step < num_steps})
    for point in points:
        if is_drawn:
            end = point * options.global_batch
            lengths = {len(rank) for rank in _ranks(order, other, end)}
            last = end + (max(lengths) - 1) * other.global_batch
            held &= len(lengths) == 1 and _is_end(order, last + other.global_batch, other.global_batch)
            for begin in (end, last) if max(lengths) else ():
                step = begin + np.arange(other.global_batch)
                held &= np.array_equal(np.sort(np.concatenate(_step_at(order, other, begin))), step)
            continue
        delivered = [step for rank in _ranks(order, options) for step in islice(rank, point)]
        rest = [step for rank in _ranks(order, other, delivered[-1].end if delivered else 0) for step in rank]
        positions = np.sort(np.concatenate([step.positions for step in [*delivered, *rest]]))
        held &= _is_end(order, len(positions), other.global_batch)
        held &= np.array_equal(positions, np.arange(len(positions)))
    where = ", ".join(f"{point:,}" for point in points) or "no"
    what = "the first and the last step drawn" if is_drawn else "consumed + rest = whole epoch"
    evidence = (
        f"stopped after {where} {'step' if points == [1] else 'steps'}, resumed on {other.world_size} ranks: {what}"
    )
    return Finding(order.epoch, "resume", held, evidence)


def _is_end(order: EpochOrder, end: int, global_batch: int) -> bool:
    """Tell whether an epoch whose last step has such a global batch ends there."""
    num_fills = end - order.num_positions
    return -global_batch < num_fills <= 0 if order.options.tail == "drop" else 0 <= num_fills < global_batch


def _audit_drawn(order: EpochOrder, options: AuditOptions, num_steps: int) -> tuple[Finding, Finding]:
    """Compare the first and the last step of an epoch, and steps and samples that a hash draws."""
    batch = options.global_batch
    num_positions = _DRAWN_POSITIONS // (1 if order.is_even else _LISTED)
    drawn = draw_numbers(num_steps, max(1, num_positions // batch), order)
    steps = np.unique([0, *drawn.tolist(), num_steps - 1])[:, None] * batch + np.arange(batch)
    same = order.options.tail != "uneven" and all(
        _is_woven(_step_at(order, options, int(step[0])), step, options) for step in steps
    )
    evidence = f"{len(steps):,} of {num_steps:,} steps drawn: as of 1 rank without workers, batch {batch}"
    once = _audit_once_drawn(order, steps.reshape(-1), num_steps * batch)
    return Finding(order.epoch, "same batches", same, evidence), once


def _step_at(order: EpochOrder, options: AuditOptions, begin: int) -> list[Int64]:
    """Return the positions of all ranks in the step that begins at a position."""
    return [next(iter(rank), _NOTHING).positions for rank in _ranks(order, options, begin)]


def _audit_once_drawn(order: EpochOrder, positions: Int64, num_given: int) -> Finding:
    """Check that the sample of each of some positions is at no other one, and that some samples have a position.

    Each sample has one position by `positions_of`. So a sample that is given twice is at one position too many, which
    is wrong.
    """
    is_real = order.is_real(positions)
    given = positions[is_real]
    located, (shard, unit, pad) = order.locate(positions), order.units(given)
    wrong = int(((order.positions_of(shard, unit) != given) | pad).sum())
    if order.selection is None:
        wrong += int(((located.shard[is_real] != shard) | (located.sample[is_real] != unit)).sum())
    flagged = located.pad | is_real[located.row] if order.is_bundled else located.pad != is_real[located.row]
    num_samples = _DRAWN_SAMPLES // (1 if order.is_even else _LISTED)
    numbers, ends = draw_numbers(order.num_samples, num_samples, order), np.cumsum(order.counts)
    shard = np.searchsorted(ends, numbers, side="right")
    unit = numbers - (ends[shard] - order.counts[shard])
    places = order.positions_of(shard, unit)
    found_shard, found_unit, pad = order.units(places)
    missing = (found_shard != shard) | (found_unit != unit) | pad
    if order.options.tail != "drop":
        missing |= places >= num_given
    evidence = (
        f"drawn of {order.num_samples:,}: {len(given):,} positions, {wrong:,} with a sample of another one, and "
        f"{len(numbers):,} samples, {int(missing.sum()):,} missing"
    )
    held = wrong == 0 and bool(flagged.all()) and not missing.any()
    return Finding(order.epoch, "exactly once", held, evidence)


_Open = Callable[[int, int, int, int], Any]
"""Opens a loader for a rank, world size, number of workers and batch size."""


def _loaders(url: str, how: dict[str, Any], epoch: int) -> _Open:
    """Return what opens loaders of an epoch."""
    from wdsplit.loading.dataset import Dataset
    from wdsplit.loading.loader import Loader

    def open_loader(rank: int, world_size: int, num_workers: int, batch_size: int) -> Any:
        dataset = Dataset(url, rank=rank, world_size=world_size, **how)
        part = getattr(dataset.order(epoch), "part_name", "")
        names = ["__position__", "__pad__", "__key__", *filter(None, [part])]
        together = None if dataset.source.form_at(epoch) is None else _packs_of
        loader = Loader(dataset.to_tuple(*names), batch_size, num_workers=num_workers, collate_fn=together)
        loader.set_epoch(epoch)
        return loader

    return open_loader


def _packs_of(packs: list[list[tuple[Any, ...]]]) -> tuple[Int64, Any, list[Any]]:
    """Return positions, pad flags and keys of packs; a pack has the keys of its samples, without its own pads."""
    positions, pads, *_ = zip(*(pack[0] for pack in packs), strict=True)
    keys = [tuple(sample[2:] for sample in pack if pack[0][1] or not sample[1]) for pack in packs]
    return np.array(positions), np.array(pads), keys


class _Read:
    """What loaders read, one after another, compared with the positions that they should read.

    Attributes:
        keys: The key at each position, as it was first read, and which of the units of its sample it is.
        is_same: Whether all loaders gave the planned positions, and the same key at each.
        is_flagged: Whether they flagged pads, and nothing else.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self.keys: dict[int, tuple[Any, ...]] = {}
        self.is_same = self.is_flagged = True

    def note(self, loader: Any, planned: Iterable[Step], num_steps: int | None = None) -> int:
        """Read a loader's steps; return the position after the last planned one."""
        end = 0
        for batch, step in zip_longest(islice(loader, num_steps), islice(planned, num_steps)):
            if batch is None or step is None:
                self.is_same = False
                break
            positions, pads, keys, *parts = batch
            keys = list(zip(keys, *(each.tolist() for each in parts), strict=True))
            self.is_same &= np.array_equal(positions, step.positions)
            self.is_same &= list(map(self.keys.setdefault, positions.tolist(), keys)) == keys
            self.is_flagged &= np.array_equal(pads, ~self._order.is_real(np.asarray(positions)))
            end = step.end
        return end


@contextmanager
def _without_advice() -> Iterator[None]:
    """Log no warnings about numbers of ranks that the user did not choose."""
    logger = logging.getLogger(announce.__module__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _audit_read(open_loader: _Open, order: EpochOrder, options: AuditOptions) -> Iterator[Finding]:
    """Run one plain loader and those of all ranks, one after another; then stop one, and resume it on one rank more."""
    read, world_size, batch_size = _Read(order), options.world_size, options.batch_size
    if isinstance(order.selection, Groups):  # each is a batch, so one reader takes those of all ranks one by one
        read.note(open_loader(0, 1, 0, 1), Steps(order, World(), 1), _positions_given(order, options.global_batch))
    else:
        read.note(open_loader(0, 1, 0, options.global_batch), Steps(order, World(), options.global_batch))
    for rank, steps in enumerate(_ranks(order, options)):
        read.note(open_loader(rank, world_size, options.num_workers, batch_size), steps)
    is_even = options.tail != "uneven"
    if is_even:
        readers = f"{counted(world_size, 'rank')} x {counted(options.num_workers, 'worker')}"
        evidence = f"{counted(len(read.keys), 'position')} read by {readers}"
        yield Finding(order.epoch, "same batches, read", read.is_same, evidence)
    positions = np.array(list(read.keys), np.int64)
    real = [read.keys[position] for position in positions[order.is_real(positions)].tolist()]
    num_pads, items = len(positions) - len(real), items_of(order.selection)
    num_samples = expected = order.num_samples if items is None else items.num_samples
    if options.tail == "drop":
        given = min(order.num_positions, _positions_given(order, options.global_batch))
        expected = int((~order.locate(np.arange(given)).pad).sum())
    if order.is_bundled:
        real = [sample for (pack,) in real for sample in pack]
    held = read.is_same and read.is_flagged and len(set(real)) == len(real) == expected
    once = "each once" if len(set(real)) == len(real) else f"{len(set(real)):,} different"
    pads = counted(num_pads, "pad") + ("" if read.is_flagged else ", wrongly flagged")
    evidence = f"{len(real):,} of {num_samples:,} keys read, {once}; {pads}"
    yield Finding(order.epoch, "exactly once, read", held, evidence)
    if not is_even:
        return
    first, rest = open_loader(0, world_size, options.num_workers, batch_size), _Read(order)
    rest.keys = read.keys
    stop = len(first) // 2
    if not stop:
        yield Finding(order.epoch, "resume, read", True, "one step only: nothing to resume")
        return
    end = rest.note(first, Steps(order, World(0, world_size), batch_size), stop)
    with _without_advice():
        for rank in range(world_size + 1):
            resumed = open_loader(rank, world_size + 1, 0, batch_size)
            resumed.load_state_dict(first.state_dict())
            rest.note(resumed, Steps(order, World(rank, world_size + 1), batch_size, end))
    evidence = f"stopped after {stop:,} of {len(first):,} steps, resumed on {world_size + 1} ranks: the rest as before"
    yield Finding(order.epoch, "resume, read", rest.is_same and rest.is_flagged, evidence)
