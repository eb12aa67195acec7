"""The samples that the ranks saw in a step: `wdsplit.batch` and `wdsplit.batches`.

Combines the order, a loader's state and the headers of the samples, without making batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.checks.samples import keys_and_labels, parts_of, samples_at, save_samples
from wdsplit.checks.states import read_state
from wdsplit.errors import InputError, StateError, WdsplitError
from wdsplit.integers import at_least, whole
from wdsplit.loading.opening import open_source
from wdsplit.loading.options import CHOICES
from wdsplit.loading.reading.block import Objects, as_objects
from wdsplit.loading.reading.source import AnySource
from wdsplit.notebook import html_table
from wdsplit.order.epoch import Located, groups
from wdsplit.order.seen import SeenStep, SeenSteps
from wdsplit.order.split import World
from wdsplit.order.state import State, is_stored_name, parse_state, refuse_other_view
from wdsplit.texts import counted

__all__ = ["Batch", "batch", "batches"]

_MAX_SAMPLES = 2**20
"""With more, a number is probably mistyped."""
_ORDER_NAMES = ("seed", "shuffle", "tail", "lanes", "window")


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """The samples that the ranks see in a step. Arrays have the shape (samples,), in the order of the positions.

    Attributes:
        epoch: The epoch.
        step: Number of the step in the epoch, as in `Loader.step`: from 0, including skipped steps.
        num_steps: Number of steps in the whole epoch, including skipped steps.
        world_size: Number of ranks of the training.
        is_skipped: Whether the loader skips the step (`Loader.skip`): its samples are not seen.
        positions: int64: the position of each sample in the epoch's order, like `__position__`.
        ranks: int64: the rank that gets each sample.
        pads: bool: whether the sample is only a filler, like `__pad__`.
        keys: object: the key of each sample (str).
        shards: object: the path of its shard in the dataset (str).
        numbers: int64: its number in the shard, without pads.
        sources: object: the dataset that it is from (str), like `__source__` in a mixture.
        labels: object: its class (str), None without one; None if the dataset has no classes.
    """

    epoch: int
    step: int
    num_steps: int
    world_size: int
    is_skipped: bool
    positions: Int64
    ranks: Int64
    pads: npt.NDArray[np.bool_]
    keys: Objects
    shards: Objects
    numbers: Int64
    sources: Objects
    labels: Objects | None
    source: AnySource = field(compare=False)
    places: Located = field(compare=False)

    def __len__(self) -> int:
        return len(self.positions)

    def samples(self) -> Iterator[dict[str, Any]]:
        """Read the samples: dicts of `__key__`, `__url__`, `__position__`, `__pad__` and the fields as bytes.

        Raises:
            WdsplitError: A shard cannot be read.
        """
        read = samples_at(parts_of(self.source), self.places)
        for sample, position, pad in zip(read, self.positions.tolist(), self.pads.tolist(), strict=True):
            yield sample | {"__position__": position, "__pad__": pad}

    def save(self, folder: str | os.PathLike[str], overwrite: bool = False) -> list[str]:
        """Write the payloads as FOLDER/KEY.FIELD, each sample once, and return the paths.

        Folders in keys are kept. In a mixture, each dataset has its own folder: FOLDER/0 for the first.

        Args:
            folder: The folder; created if missing.
            overwrite: Replace existing files.

        Raises:
            OutputExistsError: A file exists already.
            StorageError: A file cannot be written.
            WdsplitError: A shard cannot be read.
        """
        columns, written = np.stack([self.places.source, self.places.shard, self.places.sample]), list[str]()
        once = self.take(np.sort(np.unique(columns, axis=1, return_index=True)[1]))
        is_mixture = len(parts_of(self.source)) > 1
        for part, rows in groups(once.places.source):
            place = Path(folder) / str(part) if is_mixture else Path(folder)
            written += save_samples(once.take(rows).samples(), place, overwrite)
        return written

    def of_rank(self, rank: int) -> Batch:
        """Return the part of a rank: the batch that its loader yields.

        Raises:
            TopologyError: There is no such rank.
        """
        return self.take(np.flatnonzero(self.ranks == World(whole(rank), self.world_size).rank))

    def take(self, rows: Int64 | slice) -> Batch:
        """Return some of the samples."""
        arrays = ("positions", "ranks", "pads", "keys", "shards", "numbers", "sources")
        places = Located(*(column[rows] for column in vars(self.places).values()))
        labels = None if self.labels is None else self.labels[rows]
        own = {name: getattr(self, name)[rows] for name in arrays}
        return Batch(**{**vars(self), **own, "labels": labels, "places": places})

    def __repr__(self) -> str:
        return f"<Batch: epoch {self.epoch}, step {self.step}: {self.summary}>"

    def _repr_html_(self) -> str:
        columns = {"rank": self.ranks, "position": self.positions, "shard": self.shards, "key": self.keys}
        columns |= {} if self.labels is None else {"class": self.labels}
        columns |= {"part": self.parts} if self.parts.any() else {}
        title = f"Epoch {self.epoch}, step {self.step}: {self.summary}"
        return html_table(title, zip(*(column.tolist() for column in columns.values()), strict=True), tuple(columns))

    @property
    def parts(self) -> Int64:
        """int64 of shape (samples,): which copy or part of its sample each is, like `__repeat__` and `__part__`."""
        return self.places.part

    @property
    def summary(self) -> str:
        """The number of samples and of their shards, as text."""
        num_shards = len(set(zip(self.places.source.tolist(), self.places.shard.tolist(), strict=True)))
        text = f"{counted(len(self), 'sample')} of {counted(num_shards, 'shard')}"
        num_pads = int(self.pads.sum())
        return f"{text}, {counted(num_pads, 'pad')}" if num_pads else text


def batch(dataset: Any, step: int, **arguments: Any) -> Batch:
    """Return the samples that the ranks see in a training step: keys, shards, positions, ranks, pads and classes.

        seen = wdsplit.batch("data/train", step=1, epoch=0, batch_size=8, world_size=4)
        print(seen.keys, seen.labels)

    Args:
        dataset: As for `batches`.
        step: The number of the step.
        arguments: As for `batches`.

    Raises:
        InputError: The step does not exist, or an argument is invalid.
        WdsplitError: The dataset cannot be read, or the state does not belong to it.
    """
    return batches(dataset, [step], **arguments)[0]


def batches(
    dataset: Any,
    steps: Iterable[int] | None = None,
    *,
    last: int | None = None,
    epoch: int | None = None,
    batch_size: int | None = None,
    world_size: int | None = None,
    state: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    **options: Any,
) -> list[Batch]:
    """Return the samples that the ranks see in training steps. Reads only headers and classes of the samples.

    Steps have the numbers of `Loader.step`: from 0 in each epoch, including skipped steps (`Loader.skip`). If a run
    was resumed with another global batch size, pass a state that was saved since then, or the one it resumed from.

        for seen in wdsplit.batches("data/train", last=3, state="checkpoint.pt"):
            print(seen.step, seen.keys)

    Args:
        dataset: The dataset's folder, or tars, as for `Dataset`; or an open `Dataset` or mixture.
        steps: The numbers of the steps.
        last: Instead of `steps`: the number of steps before the state, without skipped ones. If its epoch has fewer,
            they continue at the end of the previous epoch. Fewer are returned if the run began, or was resumed with
            another global batch, fewer steps before.
        epoch: The epoch; by default that of the state, else 0.
        batch_size: Samples per batch on each rank; by default from the global batch of the state.
        world_size: Number of ranks; by default from the global batch of the state, else 1.
        state: A result of `Loader.state_dict`, or a file with one: JSON, or a torch checkpoint. It
            determines seed, shuffle, tail, lanes, window and a stored view. Steps are those of the
            loader that saved it or, with another global batch, of one that resumes from it.
        options: Arguments of `Dataset`, if the dataset is a folder: `seed`, `limit`, `view`, `storage_options`, ...

    Returns:
        A batch for each step, in order.

    Raises:
        InputError: A step does not exist, or an argument is invalid.
        StateError: The state does not belong to the dataset.
        WdsplitError: The dataset cannot be read.
    """
    if isinstance(state, (str, os.PathLike)):
        state = read_state(state)
    source = _opened(dataset, state, options)
    size, ranks = _topology(batch_size, world_size, state or {})
    found = None
    if state is not None:
        _refuse_other_dataset(state, source)
        is_uneven = source.options.tail == "uneven"
        world = World(state.get("rank", 0), state.get("world_size", 1)) if is_uneven else World()
        found = parse_state(state, source.fingerprint, source.options, world)
        _refuse_view_of(found, source)
    if (steps is None) == (last is None) or (last is not None and found is None):
        expected = "steps=[...], or state= and last="
        raise InputError("cannot tell which steps to list", expected=expected, remedy="give one of them")
    numbers = [at_least(0, "step", each) for each in steps or ()]
    last = None if last is None else at_least(1, "last", last)
    count = (len(numbers) if last is None else last) * size * ranks
    if count > _MAX_SAMPLES:
        raise InputError(
            "too many samples to list",
            expected=f"at most {_MAX_SAMPLES:,}",
            found=f"{count:,}",
            remedy="request fewer steps at a time",
        )

    def seen_of(epoch: int) -> SeenSteps:
        states = () if found is None else (found, found.previous)
        own = next((each for each in states if each is not None and each.epoch == epoch), None)
        if own is not None:
            _refuse_view_of(own, source)
        return SeenSteps(source.order(epoch), size, ranks, own, (state or {}).get("rank"))

    if found is not None and last is not None:
        return _read(source, _last(found, last, size, ranks, seen_of), ranks)
    start = 0 if found is None else found.epoch
    seen = seen_of(start if epoch is None else at_least(0, "epoch", epoch))
    return _read(source, [seen.step(number) for number in numbers], ranks)


def _last(state: State, count: int, size: int, ranks: int, seen_of: Callable[[int], SeenSteps]) -> list[SeenStep]:
    """Return the last steps before a state, also from the previous epoch."""
    if state.global_batch not in (None, size * ranks):
        raise InputError(
            "the steps before the state have another size",
            expected=f"batch_size x world_size = {state.global_batch}, the global batch of the state",
            found=f"{size} x {ranks}",
            remedy="pass the values of the training that saved the state",
        )
    found, previous = list(islice(seen_of(state.epoch).before(), count)), state.previous
    if len(found) < count and not state.since and previous and previous.global_batch == size * ranks:
        found += islice(seen_of(previous.epoch).before(), count - len(found))
    return found[::-1]


def _opened(dataset: Any, state: Mapping[str, Any] | None, options: dict[str, Any]) -> AnySource:
    if state is not None and not (isinstance(state, Mapping) and state.keys() >= set(_ORDER_NAMES)):
        expected = "what loader.state_dict() returned"
        raise StateError("not the state of a loader", expected=expected, found=repr(state)[:200])
    source: AnySource | None = getattr(dataset, "source", None)
    if source is not None:
        if options:
            raise InputError(
                "the options of an open dataset cannot be changed", found=", ".join(options), remedy="leave them out"
            )
        return source
    if state is not None:
        options = {name: state[name] for name in _ORDER_NAMES} | options
        if not options.keys() & set(CHOICES) and is_stored_name(state.get("view")):
            options["view"] = state["view"]
    try:
        return open_source(dataset, state=state, **options)
    except WdsplitError:
        if state is not None and options.keys() & set(CHOICES):  # the missing view may be of another dataset
            all_samples = {name: value for name, value in options.items() if name not in CHOICES}
            _refuse_other_dataset(state, open_source(dataset, **all_samples))
        raise


def _refuse_other_dataset(state: Mapping[str, Any], source: AnySource) -> None:
    found = state.get("fingerprint")
    if isinstance(found, str) and found != source.fingerprint:
        raise StateError(
            "the state is of another dataset",
            place=source.url,
            expected=f"fingerprint {source.fingerprint}",
            found=f"fingerprint {found}",
            remedy="use the dataset that the training read; converting it again may have changed it",
        ) from None


def _refuse_view_of(state: State, source: AnySource) -> None:
    """Refuse a state whose epoch has another view than the source.

    Raises:
        StateError: It has.
    """
    try:
        refuse_other_view(state.view, source.view_at(state.epoch), state.epoch, source.url)
    except StateError as error:
        error.remedy = "choose the samples as the training did: view=, where=, keys=, exclude= (--view, --where, ...)"
        raise


def _topology(batch_size: int | None, world_size: int | None, state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the batch size and the number of ranks; the state may contain their product."""
    size = None if batch_size is None else at_least(1, "batch_size", batch_size)
    ranks = None if world_size is None else at_least(1, "world_size", world_size)
    if ranks is None and state.get("tail") == "uneven":
        ranks = at_least(1, "world_size", state.get("world_size"))
    global_batch = whole(state.get("global_batch"))
    if type(global_batch) is int and global_batch > 0:
        if size is None and global_batch % (ranks or 1) == 0:
            size = global_batch // (ranks or 1)
        elif size is not None and ranks is None and global_batch % size == 0:
            ranks = global_batch // size
    if size is None:
        found = f"a global batch of {global_batch} in the state, {ranks} ranks" if global_batch else ""
        raise InputError(
            "the batch size is unknown",
            expected="batch_size, the samples per batch on each rank"
            + ("; and world_size, unless it is 1" if ranks is None else ""),
            found=found,
            remedy="pass the values of the training",
        )
    return size, ranks or 1


def _read(source: AnySource, seen: list[SeenStep], world_size: int) -> list[Batch]:
    """Read the keys and classes of the samples of all steps together, and return the batches."""
    if not seen:
        return []
    located = [source.order(step.epoch).locate(step.positions) for step in seen]
    together = Located(*map(np.concatenate, zip(*(vars(each).values() for each in located), strict=True)))
    parts = parts_of(source)
    keys, labels = keys_and_labels(parts, together)
    pairs = zip(together.source.tolist(), together.shard.tolist(), strict=True)
    shards = as_objects([parts[part].manifest.shards[shard].path for part, shard in pairs])
    sources = as_objects([part.url for part in parts])[together.source]
    made, stop = [], 0
    for step, places in zip(seen, located, strict=True):
        rows = slice(stop, stop := stop + len(places.pad))
        own = keys[rows], shards[rows], places.sample, sources[rows], None if labels is None else labels[rows]
        which = step.epoch, step.number, step.num_steps, world_size, step.is_skipped
        made.append(Batch(*which, step.positions[places.row], step.ranks[places.row], places.pad, *own, source, places))
    return made
