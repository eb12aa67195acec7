"""Which samples a batch holds, by what stands in it: keys, positions and pad flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.reading.source import Source
from wdsplit.loading.stages.columns import ToTuple
from wdsplit.order.epoch import Int64
from wdsplit.order.split import AnyOrder

__all__ = ["AUDITED", "Identifier", "Identities", "key_hash"]

AUDITED = ("__key__", "__position__", "__pad__")
"""The fields that identify a sample: `dataset.to_tuple("jpg", "cls", *AUDITED)`."""

_KEY, _POSITION, _PAD = AUDITED


@dataclass(frozen=True)
class Identities:
    """The samples of a batch, pads left out.

    Attributes:
        hashes: uint64 of shape (n,): of their keys; None if the batch has none.
        positions: int64 of shape (n,); None if the batch has none.
        num_pads: How many pads there were besides.
    """

    hashes: npt.NDArray[np.uint64] | None
    positions: Int64 | None
    num_pads: int


def key_hash(key: Any) -> int:
    """Return a 64-bit hash of a key."""
    return int(xxhash.xxh3_64_intdigest(str(key).encode()))


class Identifier:
    """Finds keys, positions and pad flags in the batches of a loader.

    A batch that is a dict has them by their names. One that is a tuple has them where the dataset's `to_tuple`, if that
    is its last stage, has put them. In all other batches the user finds them.

    Args:
        loader: The loader.
        columns_of: Returns of a batch a dict of `__key__` (str), `__position__` (int) and `__pad__` (bool), or some of
            them; None to look by name.
    """

    def __init__(self, loader: Loader, columns_of: Callable[[Any], Mapping[str, Any]] | None) -> None:
        last = loader.dataset.pipeline[-1]
        self._names = last.names if isinstance(last, ToTuple) else ()
        self._columns_of = columns_of
        self._has_own_keys = isinstance(loader.dataset.source, Source)
        self._may_pad = loader.dataset.options.tail == "pad"

    def __call__(self, batch: Any, order: AnyOrder) -> Identities:
        """Return which samples a batch holds.

        A mixture may have a key several times an epoch, so of mixtures the positions count alone.

        Raises:
            InputError: The batch does not identify its samples.
        """
        columns = self._columns(batch)
        keys = columns.get(_KEY) if self._has_own_keys else None
        positions, pads = columns.get(_POSITION), columns.get(_PAD)
        if (keys is None and positions is None) or (pads is None and positions is None and self._may_pad):
            raise self._unknown(columns)
        at = None if positions is None else _array(positions).astype(np.int64)
        if pads is not None:
            is_real = ~_array(pads).astype(np.bool_)
        else:
            is_real = np.ones(len(keys or ()), np.bool_) if at is None else np.asarray(order.is_real(at))
        sizes = {len(column) for column in (keys, at, is_real) if column is not None}
        if len(sizes) != 1:
            raise InputError(
                "the batch has different numbers of keys, positions and pad flags", found=", ".join(map(str, sizes))
            )
        hashes = None
        if keys is not None:
            hashes = np.fromiter(map(key_hash, keys), np.uint64, len(keys))[is_real]
        return Identities(hashes, None if at is None else at[is_real], int((~is_real).sum()))

    def _columns(self, batch: Any) -> Mapping[str, Any]:
        if self._columns_of is not None:
            batch = self._columns_of(batch)
        if isinstance(batch, Mapping):
            return batch
        if isinstance(batch, (tuple, list)) and len(batch) == len(self._names):
            return dict(zip(self._names, batch, strict=True))
        return {}

    def _unknown(self, columns: Mapping[str, Any]) -> InputError:
        needed = f"{_KEY} or {_POSITION}" if self._has_own_keys else f"{_POSITION} (of a mixture, a key may come again)"
        return InputError(
            "the audit cannot tell which samples a batch holds",
            expected=f"{needed}" + (f", and {_PAD} or {_POSITION}" if self._may_pad else ""),
            found=", ".join(map(str, columns)) or "a batch without names",
            remedy="let the dataset keep them: .to_tuple('jpg', 'cls', *wdsplit.debug.AUDITED), or in a map return "
            "{**sample, ...}; or pass identify=, a function that finds them in a batch and returns a dict",
        )


def _array(values: Any) -> npt.NDArray[Any]:
    """Return a column of numbers as an array: of a tensor, on whatever device, or a list."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
