"""The sidecars that need no dataset; real readers open the others in tests/integration/shards."""

import numpy as np
import pyarrow as pa
import pytest

from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.errors import InputError
from wdsplit.shards.emit import SIDECARS
from wdsplit.shards.sidecars import Catalog, dump_dali


def test_the_dali_index_of_a_small_shard_is_this():
    keys, starts, sizes = pa.array(["a/1", "a/2"], pa.large_string()), [[512, 0], [2048, 2560]], [[513, -1], [0, 1]]
    catalog = Catalog(keys, ("jpg", "cls"), np.array([0, 1536, 3072]), np.array(starts), np.array(sizes))
    assert dump_dali(catalog) == b"v1.2 2\njpg 512 513 a/1.jpg\njpg 2048 0 a/2.jpg cls 2560 1 a/2.cls\n"


def test_a_sidecar_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="no such sidecar"):
        ConvertOptions(emit=("wids", "tfrecord"))


def test_the_options_hold_each_sidecar_once():
    assert ConvertOptions(emit=("wids", "dali", "wids")).emit == ("dali", "wids")
    assert SIDECARS == ("dali", "energon", "wids")
