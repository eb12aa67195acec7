"""The epoch of a dataset, which its copies and worker processes share."""

from __future__ import annotations

import copy
import operator
import os

from wdsplit.errors import InputError
from wdsplit.loading.transport.shared_integers import SharedIntegers

__all__ = ["SharedEpoch", "checked_epoch"]


def checked_epoch(epoch: int) -> int:
    """Return an epoch as a plain integer; raise InputError if it is negative, too large or no integer."""
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= operator.index(epoch) < 2**62:
        raise InputError("invalid epoch", expected="an integer of at least 0", found=repr(epoch))
    return operator.index(epoch)


class SharedEpoch:
    """An epoch number in memory that stages and worker processes share, and how often it was set."""

    def __init__(self) -> None:
        self._cells = SharedIntegers(2)
        self._process = os.getpid()

    def get(self) -> int:
        """Return the epoch."""
        return int(self._cells.array[0])

    def set(self, epoch: int) -> None:
        """Set the epoch, and count this call."""
        cells = self._cells.array
        cells[0] = epoch
        cells[1] += 1

    def times_set(self) -> int:
        """Return how often it was set.

        Only the process of a rank calls this, no worker. Ranks may have been started with one dataset, and must not see
        each other's epochs: so a process that did not make the numbers continues with a copy.
        """
        if self._process != os.getpid():
            self._cells, self._process = copy.deepcopy(self._cells), os.getpid()
        return int(self._cells.array[1])
