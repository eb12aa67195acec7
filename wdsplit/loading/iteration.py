"""An iteration of a dataset: the rest of an epoch, and its progress.

Its state is the number of samples that the stages have taken: the rest follows from the epoch by arithmetic. Stages
that keep samples between two items have no such state; they are recognised by name, or by counting what they take.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import StateError, WdsplitError
from wdsplit.loading.bad_samples import with_file
from wdsplit.loading.reading.reader import read_blocks
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.stages.columns import ColumnStage
from wdsplit.loading.stages.randomness import RandomMap
from wdsplit.loading.staging import Staging
from wdsplit.loading.transport.counters import Counters
from wdsplit.order.split import World, reader_positions, whole
from wdsplit.order.state import State, differences, dump_state, refuse_other_view, view_in

if TYPE_CHECKING:
    from webdataset.filters import FilterFunction

__all__ = ["Iteration", "resumable", "why_not_one_to_one"]

logger = logging.getLogger(__name__)

_ONE_TO_ONE = (ColumnStage, RandomMap)

_KEEP_NOTHING = {
    "associate",
    "decode",
    "extract_keys",
    "info",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "rename",
    "rename_keys",
    "rsample",
    "select",
    "to_tuple",
    "xdecode",
}
"""Webdataset's stages that are done with each sample before they take the next."""

_UNRESUMABLE = {
    "shuffle": "it buffers samples",
    "detshuffle": "it buffers samples",
    "unbatched": "it returns several samples for each input",
    "unlisted": "it returns several samples for each input",
    "slice": "it counts from where the iteration began",
    "Cached": "it remembers earlier samples",
    "LMDBCached": "it remembers earlier samples",
}
"""Webdataset's stages whose state is more than how many samples they took, and why."""

_NOT_ONE_TO_ONE = {**_UNRESUMABLE, "batched": "it returns one item for several samples"}

_DROPPING = {"rsample", "select"}


_FILTERS = "webdataset.filters"


def _is_of_filters(stage: Any) -> bool:
    """Tell whether a stage is a webdataset function with its arguments; none is before webdataset is imported."""
    filters = sys.modules.get(_FILTERS)
    return filters is not None and isinstance(stage, filters.FilterFunction)


def _function(stage: Any) -> Any:
    return stage.f if _is_of_filters(stage) else stage


def _name(stage: Any) -> str:
    """Return the name of a stage."""
    function = _function(stage)
    if function is islice:
        return "slice"
    return str(getattr(function, "__name__", type(function).__name__)).lstrip("_")


def _name_in_webdataset(stage: Any) -> str:
    """Return the name of a stage if it is one of webdataset's; else an empty text."""
    function = _function(stage)
    return _name(stage) if function is islice or getattr(function, "__module__", "") == _FILTERS else ""


def resumable(stage: Any, invoke: Callable[..., Any]) -> Any:
    """Return a stage that does the same as `stage` and knows its progress.

    Args:
        stage: A stage of a pipeline.
        invoke: Applies a stage to samples, as webdataset's pipelines do.
    """
    name = _name_in_webdataset(stage)
    if name == "batched":
        return _Batched.from_stage(stage) or stage
    if isinstance(stage, _ONE_TO_ONE) or name in _KEEP_NOTHING or name in _UNRESUMABLE:
        return stage
    return _Watched(stage, invoke)


def why_not_one_to_one(stage: Any, strict: bool = False) -> str:
    """Return the name of a stage that cannot return one sample for each input, and why; empty if it may.

    Args:
        stage: A stage of a pipeline.
        strict: Include stages that may drop samples.
    """
    name = _name_in_webdataset(stage)
    if name in _NOT_ONE_TO_ONE:
        return f"{name}: {_NOT_ONE_TO_ONE[name]}"
    return f"{name}: it may drop samples" if strict and _may_drop(stage) else ""


@dataclasses.dataclass(frozen=True)
class _Batched:
    """Like webdataset's `batched`, but takes no sample of the next batch before it gives a batch."""

    size: int
    collate: Callable[[list[Any]], Any] | None
    partial: bool

    @classmethod
    def from_stage(cls, stage: FilterFunction) -> _Batched | None:
        """Return the equivalent of webdataset's stage; None if its size is invalid, which that stage reports."""
        bound = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
        bound.apply_defaults()
        size = whole(bound.arguments["batchsize"])
        if not isinstance(size, int) or size < 1:
            return None
        return cls(size, bound.arguments["collation_fn"], bound.arguments["partial"])

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        samples = iter(samples)
        while batch := list(islice(samples, self.size)):
            if len(batch) == self.size or self.partial:
                yield batch if self.collate is None else self.collate(batch)


class _Watched:
    """A stage of unknown kind, with counts of the items that go in and come out."""

    def __init__(self, stage: Any, invoke: Callable[..., Any]) -> None:
        self._stage = stage
        self._invoke = invoke
        self._taken = self._given = 0

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        self._taken = self._given = 0
        return self._counted_out(self._invoke(self._stage, self._counted_in(samples)))

    def _counted_out(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._given += 1
            yield item

    def _counted_in(self, samples: Iterable[Any]) -> Iterator[Any]:
        for sample in samples:
            self._taken += 1
            yield sample

    def refuse_kept_items(self) -> None:
        """Raise StateError unless as many items came out as went in."""
        if self._taken != self._given:
            counts = f"{self._taken} items taken, {self._given} given: it may buffer some of them"
            raise _unresumable(_name(self._stage), counts)


class _Taken:
    """Counts the samples that are taken from lists, from `before` on, without work for each sample."""

    def __init__(self, lists: Iterator[list[Any]], before: int) -> None:
        self._num_opened = before
        self._current: Iterator[Any] = iter(())
        self.samples = chain.from_iterable(map(self._open, lists))

    @property
    def number(self) -> int:
        """Samples that were taken: those of all lists so far, without the rest of the last one."""
        return self._num_opened - length_hint(self._current)

    def _open(self, samples: list[Any]) -> Iterator[Any]:
        self._current = iter(samples)
        self._num_opened += len(samples)
        return self._current


class Iteration(Iterator[Any]):
    """The results of a dataset's stages for one reader's samples of an epoch.

    Args:
        source: The source to read.
        epoch: The epoch.
        world: The rank and worker of this reader.
        staging: The stages; those that are not guarded, as `resumable` returns them.
        on_end: Called with the epoch after its last item.
        moves_on: Whether the next iteration has the epoch after that of any state, because none was set.
    """

    def __init__(
        self,
        source: AnySource,
        epoch: int,
        world: World,
        staging: Staging,
        on_end: Callable[[int], None],
        moves_on: bool,
    ) -> None:
        self._source = source
        self._world = world
        self._on_end: Callable[[int], None] | None = on_end
        self._moves_on = moves_on
        self._stages = staging.others
        self._staging = staging
        _warn_of_dropped_samples(source, world, staging.others)
        self._begin(epoch, 0)

    def _begin(self, epoch: int, taken: int) -> int:
        """Go to where `taken` samples were taken. Return how many samples this reader lacks for that: 0 if none."""
        order = self._source.order(epoch)
        chunks = reader_positions(order, self._world, self._source.samples_at_once(self._world))
        first, missing = _after(chunks, taken)
        if missing:
            return missing
        reader = self._source.reader(order, self._world)
        lists = chain.from_iterable(block.lists() for block in read_blocks(reader, chain([first], chunks)))
        self._epoch, self._taken, self._is_over = epoch, _Taken(lists, taken), not len(first)
        readers, count = self._world.world_size * self._world.num_workers, partial(Counters(1).bad, 0, 1)
        self._items = self._staging.applied_to(self._source, order, readers, count)(self._taken.samples)
        return 0

    def __next__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            self._end()
            raise
        except WdsplitError as error:
            with_file(error, self._source)
            raise

    def _end(self) -> None:
        self._is_over = True
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self._epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of this iteration as plain JSON values.

        It counts the samples that went into the items given so far. It belongs to this rank and worker, and to these
        numbers of both: `wdsplit.Loader` has states that resume on any other.

        Raises:
            StateError: A stage keeps samples, so that no number says where to continue.
        """
        self._refuse_unresumable()
        for stage in self._stages:
            if isinstance(stage, _Watched) and not self._is_over:
                stage.refuse_kept_items()
        return self._dumped(State(self._epoch, self._taken.number, self._source.view_at(self._epoch)))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state dict was taken, to give the rest of its epoch; earlier samples are not read.

        The epoch is the state's, whatever the dataset is set to. The next iteration has the epoch after it; but in a
        worker process, or if another epoch was set, that which the dataset is set to then. A state after the last item
        gives no more items.

        Raises:
            StateError: The state is of another dataset, another view, other options, or another rank or worker, or it
                is damaged.
        """
        self._refuse_unresumable()
        found = differences(state_dict, self._dumped(State(0, 0)), counts=("epoch", "taken"))
        if found:
            raise StateError(
                "the state does not belong to this reader of this dataset",
                place=self._source.url,
                found="; ".join(found),
                remedy="use the options and the numbers of ranks and workers of the saved state, and give each rank "
                "its own state; or use wdsplit.Loader, whose states resume on any number of ranks and workers",
            )
        epoch, taken, chosen = state_dict["epoch"], state_dict["taken"], self._epoch
        view = view_in(state_dict)
        if taken:  # before its first sample, an epoch may have any view
            refuse_other_view(view, self._source.view_at(epoch), epoch, self._source.url)
        missing = self._begin(epoch, taken)
        if missing:
            raise StateError(
                "the state is past the end of its epoch",
                place=self._source.url,
                expected=f"at most {taken - missing} samples taken",
                found=str(taken),
                remedy="the state is damaged: use an earlier checkpoint",
            )
        if self._moves_on:
            if self._is_over:  # libraries drop such an iteration and begin another
                self._end()
        elif chosen != epoch:
            self._on_end = None
            if not self._is_over:
                logger.warning(
                    "%s: resuming epoch %d of the state, but the dataset is set to epoch %d: "
                    "call set_epoch before each epoch, also before a resumed one",
                    self._source.url,
                    epoch,
                    chosen,
                )

    @cached_property
    def _fingerprint(self) -> str:
        return self._source.fingerprint

    def _dumped(self, state: State) -> dict[str, Any]:
        values = dump_state(state, self._fingerprint, self._source.options, self._world)
        values["taken"] = values.pop("position")
        return values | dataclasses.asdict(self._world)

    def _refuse_unresumable(self) -> None:
        for stage in self._stages:
            name = _name_in_webdataset(stage)
            if name in _UNRESUMABLE:
                raise _unresumable(name, _UNRESUMABLE[name])


def _after(chunks: Iterator[Int64], taken: int) -> tuple[Int64, int]:
    """Skip `taken` positions. Return the rest of the chunk they end in, and how many positions are missing."""
    chunk = np.zeros(0, np.int64)
    while taken >= len(chunk):
        taken -= len(chunk)
        following = next(chunks, None)
        if following is None:
            return np.zeros(0, np.int64), taken
        chunk = following
    return chunk[taken:], 0


def _unresumable(name: str, why: str) -> StateError:
    return StateError(
        "this iteration has no state, because it cannot be resumed exactly",
        place=f"stage {name}",
        expected="stages that keep nothing between two items, such as map, select and batched",
        found=why,
        remedy="remove the stage (a Dataset shuffles by itself), or apply it to the loader's batches; or use torch's "
        "own DataLoader, which keeps no state",
    )


_warned: set[tuple[str, str]] = set()


def _warn_of_dropped_samples(source: AnySource, world: World, stages: Iterable[Any]) -> None:
    """Log once per process and dataset that stages may drop samples, so that ranks may have different steps."""
    names = [_name(stage) for stage in stages if _may_drop(stage)]
    if not names or world.world_size == 1 or source.options.tail == "uneven" or world.rank or world.worker:
        return
    key = source.url, ", ".join(names)
    if key in _warned:
        return
    _warned.add(key)
    logger.warning(
        "%s: %s may drop samples, so ranks may have different numbers of steps and wait for each other forever: "
        "filter the rows when you convert the table (--where), or end all ranks after the fewest steps",
        *key,
    )


def _may_drop(stage: Any) -> bool:
    """Tell whether a stage of webdataset may drop samples, also by a handler that continues after errors."""
    handler = stage.kw.get("handler") if _is_of_filters(stage) else None
    drops = handler is not None and handler is not sys.modules[_FILTERS].reraise_exception
    return drops or _name_in_webdataset(stage) in _DROPPING
