"""A loader that shows training libraries its batches, length and state, but no dataset or sampler to split."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from wdsplit.errors import InputError, TopologyError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.world import detect_rank

__all__ = ["OpaqueLoader", "check_ranks", "refuse_bundles", "refuse_other_length"]

logger = logging.getLogger(__name__)


def refuse_bundles(dataset: Dataset, what: str) -> None:
    """Refuse a view of packs or groups, whose batches have another shape each.

    Raises:
        InputError: The dataset has packs or groups in some epoch.
    """
    if any(dataset.source.form_at(epoch) is not None for epoch in dataset.source.view_epochs):
        raise InputError(
            f"{what} does not take packs or groups",
            place=dataset.source.url,
            expected="a view in which each position is one sample",
            found=dataset.source.view_text,
            remedy="iterate a wdsplit.Loader itself, or leave them out",
        )


class OpaqueLoader:
    """A loader without the attributes `dataset` and `sampler`.

    Libraries split the dataset of a torch DataLoader, or warn of an IterableDataset that has a length. An iteration
    starts when its first batch is requested, not before.

    Args:
        loader: The loader. A subclass may let a copy of it, `_position`, count the batches that were used.

    Raises:
        InputError: It is not a `wdsplit.Loader`.
    """

    def __init__(self, loader: Loader) -> None:
        if not isinstance(loader, Loader):
            raise InputError("not a wdsplit loader", expected="a wdsplit.Loader", found=f"a {type(loader).__name__}")
        self.loader = loader
        self._position = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch."""
        return len(self._position)

    @property
    def epoch(self) -> int:
        """The epoch of the current iteration, else of the next one."""
        return self._position.epoch

    @property
    def step(self) -> int:
        """The number of the next step, as `wdsplit.Loader.step` counts."""
        return self._position.step

    def enumerate(self) -> Iterator[tuple[int, Any]]:
        """Iterate this loader, and yield each batch with the number of its step, as `wdsplit.Loader.enumerate` does."""
        step = self._position.progress.step_at(self._position.progress.start)
        for batch in self:
            yield step, batch
            step = self.step

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position from `load_state_dict` is kept if it is in that epoch."""
        self._position.set_epoch(epoch)

    def skip(self, first: int, last: int) -> None:
        """Skip steps of the current epoch, or of the next one between epochs, as `wdsplit.Loader.skip` does."""
        self._position.skip(first, last)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, after the delivered batches.

        Warns during gradient accumulation: the checkpoint does not contain the gradients of some batches.
        """
        if self._is_accumulating() and self.loader.dataset.world().rank == 0:
            logger.warning(
                "%s: a checkpoint during gradient accumulation: it counts batches whose gradients it does not contain, "
                "so a resumed run will differ; save after an optimizer step",
                self.loader.dataset.source.url,
            )
        return self._position.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state dict was taken.

        Raises:
            StateError: The state belongs to another dataset or other options.
        """
        self._position.load_state_dict(state_dict)

    def _is_accumulating(self) -> bool:
        """Tell whether there are gradients that the optimizer has not used yet."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loader!r})"


def check_ranks(loader: Loader, rank: int, world_size: int, who: str, remedy: str) -> None:
    """Refuse a detected rank that is not the one that a library needs: some processes must read the same samples."""
    world = loader.dataset.world()
    if world == detect_rank() and (world.rank, world.world_size) != (rank, world_size):
        raise TopologyError(
            f"the dataset is split among all processes, but {who} needs it split among fewer",
            place=loader.dataset.source.url,
            expected=f"rank {rank} of {world_size}",
            found=f"rank {world.rank} of {world.world_size}",
            remedy=remedy,
        )


def refuse_other_length(loader: Loader, epoch: int, counted: int, remedy: str) -> None:
    """Refuse an epoch whose views have another number of batches than a library has counted.

    Args:
        loader: The loader.
        epoch: The epoch.
        counted: Number of batches that the library has counted.
        remedy: The remedy for this library.

    Raises:
        InputError: The numbers differ.
    """
    num_steps = loader.progress.num_steps(epoch)
    if num_steps != counted:
        raise InputError(
            "epochs with views of different sizes: the training would end too early, or leave samples out",
            place=f"epoch {epoch} of {loader.dataset.source.url}",
            expected=f"{counted:,} batches in each epoch, as the library has counted them",
            found=f"{num_steps:,} batches",
            remedy=remedy,
        )
