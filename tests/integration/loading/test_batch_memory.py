"""Batches of decoded images: their memory is used again, but never while the loop holds a batch, or a part of one."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import wdsplit
from media_files import jpeg_dataset
from wdsplit.loading.loader import Loader

NUM_IMAGES, BATCH_SIZE, PIXELS = 60, 12, 130
KINDS = {
    "none": {},
    "threads": {"num_workers": 3, "workers": "thread"},
    "processes": {"num_workers": 2},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "persistent, one ahead": {"num_workers": 3, "persistent_workers": True, "prefetch_bytes": 1},
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A dataset of JPEGs of several sizes."""
    return jpeg_dataset(tmp_path_factory.mktemp("pictures"), NUM_IMAGES, 140, 150)


def cropping(path, output="torch", **options):
    stage = wdsplit.resized(PIXELS, crop="random", flip=True, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), output=output)
    return wdsplit.Dataset(path, **options).decode(stage)


@functools.cache
def expected(path, epoch, **options):
    """Return the image at each position of an epoch, decoded one by one, into memory of its own."""
    dataset = cropping(path, **options).map(dict)
    dataset.set_epoch(epoch)
    return {sample["__position__"]: sample["jpg"].numpy() for sample in dataset}


def is_as(found, batch, images):
    return all(map(np.array_equal, found, (images[position] for position in batch["__position__"].tolist())))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "spawned"])
def test_what_the_loop_holds_of_a_batch_stays_as_it_is(pictures, kind):
    loader = Loader(cropping(pictures), BATCH_SIZE, **KINDS[kind])
    wholes, rows, arrays = [], [], []
    for epoch, stop in ((0, 2), (1, 99), (1, 3), (2, 99)):  # two of the iterations are abandoned
        loader.set_epoch(epoch)
        images = expected(pictures, epoch)
        for number, batch in enumerate(loader):
            assert is_as(batch["jpg"], batch, images)
            if number == stop:
                break
            kept = (wholes, rows, arrays)[number % 3]
            first = batch["jpg"][:1]
            kept.append((batch["jpg"] if kept is wholes else first if kept is rows else first.numpy(), batch, images))
            batch.pop("jpg")
    del batch, first
    assert min(map(len, (wholes, rows, arrays))) >= 3
    for found, batch, images in wholes + rows + arrays:
        assert is_as(found, batch, images)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "spawned" else kind for kind in KINDS]
)
def test_memory_that_nothing_refers_to_is_used_again(pictures, kind):
    loader = Loader(cropping(pictures), BATCH_SIZE, **KINDS[kind])
    found = set()  # of 20 batches
    for _ in range(1 if "process" in kind or kind == "spawned" else 4):
        for batch in loader:
            found.add(batch["jpg"].data_ptr())
            batch["jpg"].zero_()
            del batch
    assert len(found) <= {"none": 2, "threads": 8}.get(kind, 5)  # threads have several steps under way


@pytest.mark.parametrize("tail", ["pad", "uneven"])  # where ranks advance unevenly, rows of workers may not be slices
def test_arrays_are_made_in_place_and_uneven_rows_are_copied(pictures, tail):
    loader = Loader(cropping(pictures, "numpy", tail=tail), BATCH_SIZE, num_workers=2, output="numpy")
    kept = list(loader)
    assert tail == "uneven" or all(batch["jpg"].base is not None for batch in kept)
    images = {position: image.transpose(1, 2, 0) for position, image in expected(pictures, 0, tail=tail).items()}
    assert all(is_as(batch["jpg"], batch, images) for batch in kept)


def test_a_worker_that_decodes_sample_by_sample_is_copied_beside_the_others(pictures, tmp_path):
    files = pq.read_table(pictures.parent / "table.parquet")["image"].to_pylist()
    files[7] = files[7][:300]
    pq.write_table(pa.table({"image": files}), tmp_path / "table.parquet")
    wdsplit.convert(tmp_path / "table.parquet", tmp_path / "dataset")
    dataset = cropping(tmp_path / "dataset", on_bad_sample="substitute", max_bad_samples=1)
    alone = [batch["jpg"] for batch in Loader(dataset, BATCH_SIZE)]
    for workers in ("thread", "process"):
        together = [batch["jpg"] for batch in Loader(dataset, BATCH_SIZE, num_workers=2, workers=workers)]
        assert all(map(torch.equal, alone, together))
