"""The fluid stages, against webdataset's own pipelines: in this process, in a plain DataLoader and in the Loader."""

import copy
import gc
import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from made_datasets import converted, images_table
from wdsplit.loading.dataset import Dataset

NUM_IMAGES = 23


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(NUM_IMAGES), key="name", shards=4, lanes=4)


@pytest.fixture(scope="module")
def raw_samples(images):
    """Return the samples as webdataset reads them from the tars, pads left out; it leaves files open."""
    urls = sorted(map(str, Path(images).glob("*.tar")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(webdataset.WebDataset(urls, shardshuffle=False))
        gc.collect()
    return [sample for sample in samples if not sample["__key__"].startswith("_pad_/")]


def plain(value):
    """Return a value that can be compared."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [plain(each) for each in value]
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return type(value), str(value.dtype), value.tolist()
    if isinstance(value, Image.Image):
        return Image.Image, value.mode, np.asarray(value).tolist()
    return value


class Fluid(webdataset.DataPipeline, webdataset.compat.FluidInterface):
    """A pipeline of webdataset's."""


def doubled(number):
    return 2 * number


def with_twice(sample):
    return {**sample, "twice": 2 * sample["cls"]}


def decoded_numbers(pipeline):
    return pipeline.decode(only="cls npy").rename(npy="npy").to_tuple("cls", "npy")


ONE_TO_ONE = {
    "decode": lambda pipeline: pipeline.decode(),
    "decode pil": lambda pipeline: pipeline.decode("pil"),
    "decode rgb8": lambda pipeline: pipeline.decode("rgb8", only="png"),
    "decode torchrgb": lambda pipeline: pipeline.decode("torchrgb", partial=True),
    "map": lambda pipeline: pipeline.decode().map(with_twice),
    "map_dict": lambda pipeline: pipeline.decode().map_dict(cls=doubled, txt=str.upper),
    "to_tuple": lambda pipeline: pipeline.to_tuple("__key__", "png", "cls"),
    "to_tuple of one text": lambda pipeline: pipeline.decode().to_tuple("npy jpg;png cls"),
    "to_tuple without a field": lambda pipeline: pipeline.to_tuple("cls", "none", missing_is_error=False),
    "map_tuple": lambda pipeline: pipeline.decode().to_tuple("cls", "txt").map_tuple(doubled, str.upper),
    "rename": lambda pipeline: pipeline.rename(image="png;jpg", label="cls"),
    "rename only": lambda pipeline: pipeline.rename(image="png", __key__="__key__", keep=False),
    "rename_keys": lambda pipeline: pipeline.rename_keys(("image", "png"), ("key", "__key__")),
    "extract_keys": lambda pipeline: pipeline.extract_keys("*.png", "*.cls;*.cls2"),
    "xdecode": lambda pipeline: pipeline.to_tuple("txt").map_tuple(bytes.decode),
    "compose": lambda pipeline: pipeline.compose(
        lambda samples: ((number, sample["__key__"]) for number, sample in enumerate(samples))
    ),
    "compose of two": lambda pipeline: pipeline.decode().compose(
        webdataset.map(with_twice), webdataset.to_tuple("twice", "__key__")
    ),
}
OTHERS = {
    "select": lambda pipeline: pipeline.decode().select(lambda sample: sample["cls"] % 3),
    "map that drops": lambda pipeline: pipeline.decode().map(lambda sample: sample if sample["cls"] % 3 else None),
    "batched": lambda pipeline: decoded_numbers(pipeline).batched(4),
    "batched dicts": lambda pipeline: pipeline.decode(only="cls").batched(4),
    "batched by a function": lambda pipeline: pipeline.to_tuple("cls").batched(4, collation_fn=len),
    "whole batches only": lambda pipeline: decoded_numbers(pipeline).batched(4, partial=False),
    "unbatched": lambda pipeline: decoded_numbers(pipeline).batched(4).unbatched(),
    "listed": lambda pipeline: pipeline.to_tuple("cls").listed(4),
    "unlisted": lambda pipeline: pipeline.to_tuple("cls").listed(4).unlisted(),
    "slice": lambda pipeline: pipeline.to_tuple("cls").slice(2, 9),
    "mcached": lambda pipeline: pipeline.to_tuple("cls").mcached(),
    "a shuffle with a seed": lambda pipeline: pipeline.to_tuple("cls").shuffle(5, seed=1),
}
ALL = ONE_TO_ONE | OTHERS

OWN_NAMES = ("__url__", "__position__", "__pad__", "__local_path__")


def comparable(item):
    """Return an item to be compared, without what each reader adds of its own."""
    if isinstance(item, list):
        return [comparable(each) for each in item]
    if isinstance(item, dict):
        item = {name: value for name, value in item.items() if name not in OWN_NAMES}
    return plain(item)


def by_webdataset(samples, stages, num_workers=1):
    """Return what webdataset's stages make of every worker's samples, the workers' items in turn."""

    def of(worker):
        return list(stages(Fluid(lambda: iter(copy.deepcopy(samples[worker::num_workers])))))

    turns = itertools.zip_longest(*map(of, range(num_workers)), fillvalue=Fluid)
    return [comparable(item) for turn in turns for item in turn if item is not Fluid]


def in_table_order(path):
    return Dataset(path, shuffle=False, lanes=1, rank=0, world_size=1)


@pytest.mark.parametrize("stages", ALL)
def test_a_stage_gives_what_webdatasets_gives(images, raw_samples, stages):
    dataset = ALL[stages](in_table_order(images))
    expected = by_webdataset(raw_samples, ALL[stages])
    assert len(expected) > 0
    for _ in range(2):
        assert [comparable(item) for item in dataset] == expected
