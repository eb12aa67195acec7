"""Others read our shards: `tarfile`, GNU tar, and stock webdataset."""

import gc
import itertools
import json
import warnings
from pathlib import Path

import pytest
import webdataset
from webdataset.tariterators import base_plus_ext

from made_datasets import converted, images_table
from tables import is_pad_key, tar_samples
from tars import gnu_tar
from wdsplit.tar.names import unescape_key

NUM_ROWS = 45
NUM_SHARDS = 12


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Return the shards of a dataset, 12 of 4 samples, the last 3 with a pad."""
    path = converted(tmp_path_factory.mktemp("images"), images_table(NUM_ROWS), key="name", shards=NUM_SHARDS)
    return sorted(map(str, Path(path).glob("*.tar")))


@pytest.fixture(scope="session")
def rows():
    """Return the rows of the table by their keys, as pyarrow has them."""
    return {row["name"]: row for row in images_table(NUM_ROWS).to_pylist()}


def assert_payloads(fields, row):
    """Check the bytes of a sample against the row they were made from."""
    assert list(fields) == ["png", "cls", "txt", "npy", "json"]
    assert fields["png"] == row["png"]
    assert fields["cls"] == str(row["cls"]).encode()
    assert fields["txt"].decode() == row["txt"]
    assert json.loads(fields["json"]) == row["json"]
    npy = webdataset.autodecode.npy_loads(fields["npy"])
    assert (str(npy.dtype), npy.tolist()) == ("float32", row["npy"])


def assert_samples(samples, rows):
    """Check (key, fields) pairs: each row once and in order, its bytes, and pads that repeat a row of their shard."""
    keys = [unescape_key(key) for key, _ in samples if not is_pad_key(key)]
    assert keys == list(rows)
    assert sum(is_pad_key(key) for key, _ in samples) == -NUM_ROWS % NUM_SHARDS
    assert len({key for key, _ in samples}) == len(samples)
    by_number = {str(row["cls"]).encode(): row for row in rows.values()}
    for _, fields in samples:
        assert_payloads(fields, by_number[fields["cls"]])


def test_tarfile_reads_every_row_once_and_pads_told_by_their_keys(images, rows):
    """All shards have equally many samples: whoever splits by shards, as webdataset's splitters do, has equal parts."""
    shards = [tar_samples(path) for path in images]
    assert set(map(len, shards)) == {-(-NUM_ROWS // NUM_SHARDS)}
    assert_samples(list(itertools.chain(*shards)), rows)


def test_gnu_tar_extracts_the_same_files(images, rows, tmp_path):
    samples = []
    for path in images:
        folder = tmp_path / Path(path).stem
        folder.mkdir()
        names = gnu_tar("-xvf", path, "-C", str(folder), cwd=tmp_path).split()
        for key, members in itertools.groupby(names, lambda name: base_plus_ext(name)[0]):
            samples.append((key, {base_plus_ext(name)[1]: (folder / name).read_bytes() for name in members}))
    assert_samples(samples, rows)


def test_webdataset_reads_every_row_once(images, rows):
    with warnings.catch_warnings():  # it leaves files open, which must not be held against other tests
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(webdataset.WebDataset(images, shardshuffle=False))
        gc.collect()
    keys = [sample["__key__"] for sample in samples]
    fields = [{name: value for name, value in sample.items() if not name.startswith("__")} for sample in samples]
    assert_samples(list(zip(keys, fields, strict=True)), rows)
