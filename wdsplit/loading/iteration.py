"""An iteration of a dataset: one reader's samples of an epoch, through all stages.

It keeps no position: `Loader` does. The state that torchdata's StatefulDataLoader asks for is the number of items that
were given; to resume, they are read again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from wdsplit.errors import StateError, WdsplitError
from wdsplit.loading.bad_samples import with_file
from wdsplit.loading.reading.reader import Reading
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.stage_kinds import why_not_repeatable
from wdsplit.loading.substitutes import ApplyStages
from wdsplit.loading.transport.counters import Counters
from wdsplit.order.split import World, reader_positions
from wdsplit.order.state import State, differences, dump_state, refuse_other_view, view_in

__all__ = ["Iteration"]


class Iteration(Iterator[Any]):
    """The results of a dataset's stages for one reader's samples of an epoch.

    `staged` is `Dataset.staged`; `on_end` is called with the epoch after its last item; `moves_on` says whether the
    next iteration has the epoch after that of any state, because none was set.
    """

    def __init__(
        self,
        source: AnySource,
        epoch: int,
        world: World,
        staged: Callable[..., ApplyStages],
        stages: Sequence[Any],
        on_end: Callable[[int], None],
        moves_on: bool,
    ) -> None:
        self._source = source
        self._world = world
        self._staged = staged
        self._stages = stages
        self._on_end: Callable[[int], None] | None = on_end
        self._moves_on = moves_on
        self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        order = self._source.order(epoch)
        positions = reader_positions(order, self._world, self._source.positions_at_once(self._world, epoch))
        blocks = Reading(self._source.reader(order, self._world), positions)
        samples = chain.from_iterable(chain.from_iterable(block.lists() for block in blocks))
        readers, count = self._world.world_size * self._world.num_workers, partial(Counters(1).bad, 0, 1)
        self._epoch, self._num_given = epoch, 0
        self._items = self._staged(self._source, order, readers, count)(samples)

    def __next__(self) -> Any:
        try:
            item = next(self._items)
        except StopIteration:
            self._end()
            raise
        except WdsplitError as error:
            with_file(error, self._source)
            raise
        self._num_given += 1
        return item

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self._epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return how many items were given, as plain JSON values, for torchdata's StatefulDataLoader.

        It belongs to this rank and worker, and to these numbers of both: `wdsplit.Loader` has states that resume on any
        other, and reads nothing again.

        Raises:
            StateError: A stage draws at random, so the same items would not come again.
        """
        reason = why_not_repeatable(self._stages)
        if reason:
            raise StateError(
                "this iteration has no state, because it cannot be repeated",
                place=self._source.url,
                expected="stages that give the same items again",
                found=reason,
                remedy="remove the stage (a Dataset shuffles by itself), or apply it to the loader's batches; or use "
                "torch's own DataLoader, which keeps no state",
            )
        return self._dumped(State(self._epoch, self._num_given, self._source.view_at(self._epoch)))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state dict was taken, to give the rest of its epoch; earlier samples are read again.

        The epoch is the state's, whatever the dataset is set to. The next iteration has the epoch after it; but in a
        worker process, or if another epoch was set, that which the dataset is set to then.

        Raises:
            StateError: The state is of another dataset, another view, other options, or another rank or worker.
        """
        found = differences(state_dict, self._dumped(State(0, 0)), counts=("epoch", "given"))
        if found:
            raise StateError(
                "the state does not belong to this reader of this dataset",
                place=self._source.url,
                found="; ".join(found),
                remedy="use the options and the numbers of ranks and workers of the saved state, and give each rank "
                "its own state; or use wdsplit.Loader, whose states resume on any number of ranks and workers",
            )
        epoch, given, chosen = state_dict["epoch"], state_dict["given"], self._epoch
        refuse_other_view(view_in(state_dict), self._source.view_at(epoch), epoch, self._source.url)
        self._begin(epoch)
        rest = list(islice(self._items, given, given + 1))
        self._num_given, self._items = given, chain(rest, self._items)
        if self._moves_on and not rest:  # libraries drop such an iteration and begin another
            self._end()
        elif not self._moves_on and chosen != epoch:
            self._on_end = None

    def _dumped(self, state: State) -> dict[str, Any]:
        values = dump_state(state, self._source.fingerprint, self._source.options, self._world)
        values["given"] = values.pop("position")
        return values | dataclasses.asdict(self._world)
