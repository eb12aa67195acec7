"""The stages of a dataset, applied to samples, and the replacement of bad samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wdsplit.loading.bad_samples import BadSamples
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.stages.randomness import Shift, at_epoch
from wdsplit.loading.substitutes import ApplyStages, Substitutes
from wdsplit.order.split import AnyOrder

__all__ = ["Staging"]


@dataclass(frozen=True)
class Staging:
    """The stages of a dataset after its source.

    Attributes:
        guarded: The first of them, which take one sample at a time: an error there means a bad sample. Empty if errors
            are raised.
        others: The stages after them.
        invoke: Applies a stage to samples, as webdataset's pipelines do.
        bad_samples: How to replace bad samples; None to raise errors.
    """

    guarded: Sequence[Any]
    others: Sequence[Any]
    invoke: Callable[..., Any]
    bad_samples: BadSamples | None

    def applied_to(self, source: AnySource, order: AnyOrder, readers: int, count: Callable[[], int]) -> ApplyStages:
        """Return a function that applies the stages to samples of an order.

        Args:
            source: The source of the samples.
            order: The order.
            readers: How many readers share its samples, and count bad ones separately.
            count: Counts a bad sample; returns how many were found in the epoch so far.
        """
        apply = partial(self._applied, self.others, order.epoch)
        if self.bad_samples is None:
            return apply
        found = self.bad_samples.found(source.url, order.epoch, order.num_samples, readers, count)
        substitutes = Substitutes(source, order, partial(self._applied, self.guarded, order.epoch), found)
        return lambda samples: apply(substitutes.apply(samples))

    def _applied(
        self, stages: Sequence[Any], epoch: int, samples: Iterator[Any], shift: Shift | None = None
    ) -> Iterator[Any]:
        stream: Any = samples
        for stage in stages:
            stream = self.invoke(at_epoch(stage, epoch, shift), stream)
        return iter(stream)
