"""Whether two values are the same: of the same types, with the same parts in the same order."""

import numpy as np
import pyarrow as pa
import torch

from wdsplit.loading.transport.collate import Column


def alike(one, other):
    """Tell whether two values have the same types, dtypes and contents, a nan being the same as a nan."""
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and alike([*one.values()], [*other.values()])
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Column):
        data = [each.data.to_pylist() if isinstance(each.data, pa.Array) else each.data for each in (one, other)]
        return (one.kind, one.is_plain) == (other.kind, other.is_plain) and alike(*data)
    return one == other or (one != one and other != other)
