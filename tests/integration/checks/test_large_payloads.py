"""Payloads of large samples are read when they are needed: by whatever reads samples without a loader."""

import numpy as np
import pyarrow as pa
import pytest

from made_datasets import converted
from media_files import encoded
from wdsplit.checks.batch import batch
from wdsplit.checks.inspect import inspect
from wdsplit.checks.samples import read_texts
from wdsplit.loading.dataset import Dataset

ROWS = 6


def png(row):
    return encoded(np.random.default_rng(row).integers(0, 255, (90, 100 + row, 3), np.uint8), "PNG")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Return a dataset whose payloads have 27 kB, 3 kB and 600 bytes."""
    table = pa.table(
        {
            "picture": [png(row) for row in range(ROWS)],
            "caption": [str(row) * 3000 for row in range(ROWS)],
            "name": [b"%d" % row * 600 for row in range(ROWS)],
        }
    )
    mapping = {"png": "picture", "txt": "caption", "cls": "name"}
    return converted(tmp_path_factory.mktemp("large"), table, mapping=mapping, shards=1, lanes=1, window=ROWS)


def test_their_sizes_are_inspected(large):
    fields = {field.name: field for field in inspect(large, samples=ROWS).contents.fields}
    assert fields["png"].images.width[::2] == (100, 100 + ROWS - 1) and fields["png"].images.height == (90,) * 3
    assert fields["png"].num_bytes[::2] == (len(png(0)), len(png(ROWS - 1)))
    assert fields["cls"].num_bytes == (600,) * 3 and fields["cls"].classes == {}


def test_one_that_is_too_large_for_a_class_has_none(large):
    seen = batch(large, step=0, batch_size=ROWS)
    assert sorted(seen.keys) == [f"{row:08d}" for row in range(ROWS)] and not any(seen.labels)
    zeros = np.zeros(1, np.int64)
    assert read_texts(Dataset(large).source, zeros, zeros, ["__key__", "cls"]) == [["00000000"], [None]]
