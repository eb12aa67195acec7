"""A loader as training libraries may hold it: its batches, its length, its state, and nothing that they could split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wdsplit.errors import InputError
from wdsplit.loader import Loader
from wdsplit.split import Steps

__all__ = ["Delegate", "steps_left"]


def steps_left(loader: Loader) -> int:
    """Return how many batches of the epoch a loader has not yet delivered."""
    state, dataset = loader.state_dict(), loader.dataset
    return len(Steps(dataset.order(state["epoch"]), dataset.world(), loader.batch_size, state["position"]))


class Delegate:
    """A loader behind which no dataset and no sampler can be found.

    Libraries split what they take for a torch DataLoader, or warn of an IterableDataset that has a length. Iterating
    begins with the first batch that is asked for, not before.

    Args:
        loader: The loader.

    Raises:
        InputError: It is no `wdsplit.Loader`.
    """

    def __init__(self, loader: Loader) -> None:
        if not isinstance(loader, Loader):
            raise InputError(
                "this is no loader of wdsplit", expected="a wdsplit.Loader", found=f"a {type(loader).__name__}"
            )
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader

    def __len__(self) -> int:
        """Return the steps of a whole epoch."""
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """The epoch under way, else the next one."""
        return self.loader.epoch

    @property
    def step(self) -> int:
        """Steps of the epoch before the next batch."""
        return self.loader.step

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position that was loaded is kept if it lies in that epoch."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the loader has got: the batches that were delivered."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state dict was taken.

        Raises:
            StateError: It is of another dataset or other options.
        """
        self.loader.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loader!r})"
