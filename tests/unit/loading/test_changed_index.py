"""Every change of an index is noticed: when its shard is opened, or when the window that it is about is parsed."""

import itertools
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading import read_windows as read_windows_module
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.read_windows import read_window
from wdsplit.shards.files import write_shard
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.members import build_body

PAYLOADS = {
    "text": {"cls": [b"7"] * 3, "txt": [b"a cat"] * 3},
    "zeros": {"cls": [bytes(100)] * 3, "npy": [bytes(1500)] * 3},
    "empty": {"cls": [b""] * 3, "txt": [b""] * 3},
    "one field": {"npy": [bytes(512)] * 3},
    "unequal": {"cls": [None, b"", b"1"], "npy": [bytes(number * 600) for number in (2, 1, 0)]},
}
CHANGES = [-1024, -512, 512, 1024]


def written(folder, payloads, key="000"):
    columns = {name: pa.array(values, pa.large_binary()) for name, values in payloads.items()}
    keys = pa.array([f"{key}{number}" for number in range(3)])
    return write_shard(LocalStorage(str(folder)), "a.tar", [build_body(keys, columns)], 0)


def read_all(storage, shard, window):
    opened = open_shard(storage, shard)
    for first in range(0, shard.num_samples, window):
        list(read_window(opened, first, min(first + window, shard.num_samples)).take([0], [0], [False]))


@pytest.mark.parametrize("is_large", [False, True], ids=["at once", "headers only"])
@pytest.mark.parametrize("key", ["000", "0" * 150], ids=["plain", "pax"])
@pytest.mark.parametrize("payloads", PAYLOADS.values(), ids=PAYLOADS)
def test_each_change_of_an_index_entry_is_noticed(tmp_path, payloads, key, is_large):
    shard, storage = written(tmp_path, payloads, key), LocalStorage(str(tmp_path))
    right = np.fromfile(tmp_path / "a.tar.idx", "<u8").astype(np.int64)
    with patch.object(read_windows_module, "_SMALL_SAMPLE_BYTES", 0 if is_large else 16_384):
        read_all(storage, shard, window=2)
        for entry, change in itertools.product(range(len(right)), CHANGES):
            offsets = right.copy()
            offsets[entry] += change
            offsets.astype("<u8").tofile(tmp_path / "a.tar.idx")
            with pytest.raises(CorruptDataError):
                read_all(storage, shard, window=2)
                pytest.fail(f"entry {entry} changed by {change}: nothing was noticed")


def test_an_index_that_ends_early_is_noticed_when_its_shard_is_opened(tmp_path):
    shard = written(tmp_path, PAYLOADS["text"])
    offsets = np.fromfile(tmp_path / "a.tar.idx", "<u8")
    offsets[-1] -= 1024  # the last field of the last sample
    offsets.tofile(tmp_path / "a.tar.idx")
    with pytest.raises(CorruptDataError, match="continues after the last sample") as caught:
        open_shard(LocalStorage(str(tmp_path)), shard)
    assert caught.value.url.endswith("a.tar.idx") and "a.tar.idx" in caught.value.place
