"""The epoch of a dataset, which its copies and worker processes share."""

from __future__ import annotations

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
    """An epoch number that stages share, and worker processes by shared memory.

    Ranks that were started with one dataset must not see each other's epochs, so each process has the number in its own
    memory too. A worker starts with what its process had set until then, whatever is set while it starts.

    Attributes:
        number: The epoch.
        times_set: How often it was set.
    """

    def __init__(self) -> None:
        self.number = self.times_set = 0
        self._cells = SharedIntegers(2)
        self._iterated_by = 0

    def set(self, epoch: int) -> None:
        """Set the epoch, and count this call."""
        self.number, self.times_set = epoch, self.times_set + 1
        self._cells.array[:] = epoch, self.times_set

    def latest(self) -> int:
        """Return the epoch that was set last, also in a worker process."""
        return int(self._cells.array[0])

    def follow(self) -> None:
        """Take over what was set since this worker process began its last iteration; nothing at its first one."""
        if self._iterated_by == os.getpid():
            self.number, self.times_set = self._cells.array.tolist()
        self._iterated_by = os.getpid()
