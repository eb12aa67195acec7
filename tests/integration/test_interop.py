"""Others read our shards: `tarfile`, GNU tar, and stock webdataset with its own splitters."""

import gc
import itertools
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data
import webdataset
from webdataset.tariterators import base_plus_ext

from made_datasets import converted, image_pixels, images_table
from tables import is_pad_key, tar_samples
from tars import gnu_tar
from wdsplit.tar.names import PAD_PREFIX, unescape_key

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
    assert webdataset.autodecode.npy_loads(fields["npy"]).tolist() == row["npy"]


def assert_samples(samples, rows):
    """Check (key, fields) pairs: each row once and in order, its bytes, and pads that repeat a row of their shard."""
    keys = [unescape_key(key) for key, _ in samples if not is_pad_key(key)]
    assert keys == list(rows)
    assert sum(is_pad_key(key) for key, _ in samples) == -NUM_ROWS % NUM_SHARDS
    assert len({key for key, _ in samples}) == len(samples)
    by_number = {str(row["cls"]).encode(): row for row in rows.values()}
    for _, fields in samples:
        assert_payloads(fields, by_number[fields["cls"]])


# tarfile and GNU tar


def test_tarfile_reads_every_row_once_and_pads_told_by_their_keys(images, rows):
    assert_samples([sample for path in images for sample in tar_samples(path)], rows)


def test_gnu_tar_extracts_the_same_files(images, rows, tmp_path):
    samples = []
    for path in images:
        folder = tmp_path / Path(path).stem
        folder.mkdir()
        names = gnu_tar("-xvf", path, "-C", str(folder), cwd=tmp_path).split()
        for key, members in itertools.groupby(names, lambda name: base_plus_ext(name)[0]):
            samples.append((key, {base_plus_ext(name)[1]: (folder / name).read_bytes() for name in members}))
    assert_samples(samples, rows)


# webdataset


def stock(urls):
    return webdataset.WebDataset(
        urls,
        nodesplitter=webdataset.split_by_node,
        workersplitter=webdataset.split_by_worker,
        shardshuffle=False,
    )


def read(samples):
    """Return samples that webdataset reads; it leaves files open, which must not be held against other tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(samples)
        gc.collect()
    return samples


def fields_of(sample):
    return {name: value for name, value in sample.items() if not name.startswith("__")}


def test_webdataset_reads_every_row_once(images, rows):
    assert_samples([(sample["__key__"], fields_of(sample)) for sample in read(stock(images))], rows)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 3), (2, 2)])
def test_webdatasets_own_splitters_give_equal_and_disjoint_parts(images, rows, monkeypatch, world_size, num_workers):
    """Its documented environment variables make this process each of the readers in turn."""
    counts, samples = set(), {}
    for rank, worker in itertools.product(range(world_size), range(num_workers)):
        for name, value in (
            ("RANK", rank),
            ("WORLD_SIZE", world_size),
            ("WORKER", worker),
            ("NUM_WORKERS", num_workers),
        ):
            monkeypatch.setenv(name, str(value))
        part = {sample["__key__"]: fields_of(sample) for sample in read(stock(images))}
        assert not part.keys() & samples.keys()
        counts.add(len(part))
        samples |= part
    assert len(counts) == 1
    plain = sorted((item for item in samples.items() if not is_pad_key(item[0])), key=lambda item: int(item[1]["cls"]))
    pads = [item for item in samples.items() if is_pad_key(item[0])]
    assert_samples(plain + pads, rows)


@pytest.mark.slow
def test_webdataset_in_dataloader_workers_reads_every_row_once(images, rows):
    loader = torch.utils.data.DataLoader(stock(images), batch_size=None, num_workers=2)
    samples = [(sample["__key__"], fields_of(sample)) for sample in read(loader)]
    order = {key: number for number, key in enumerate(rows)}
    samples.sort(key=lambda item: order.get(unescape_key(item[0]), NUM_ROWS))
    assert_samples(samples, rows)


def test_webdataset_decodes_every_field_to_the_values_of_the_table(images, rows):
    for sample in read(stock(images).decode("pil")):
        if sample["__key__"].startswith(PAD_PREFIX):
            continue
        row = rows[unescape_key(sample["__key__"])]
        assert sample["png"].mode == "RGB"
        assert (np.asarray(sample["png"]) == image_pixels(row["cls"])).all()
        assert type(sample["cls"]) is int
        assert sample["npy"].dtype == np.float32
        assert sample["npy"].tolist() == row["npy"]
        assert {name: sample[name] for name in ("cls", "txt", "json")} == {
            name: row[name] for name in ("cls", "txt", "json")
        }
