"""Datasets of one rank, their states and their items, for the tests of iterations and stages."""

import json

import numpy as np
import torch
from PIL import Image

from wdsplit.loading.dataset import Dataset


def through_json(state):
    return json.loads(json.dumps(state))


def dataset_of(path, epoch=0, **options):
    dataset = Dataset(path, **{"rank": 0, "world_size": 1} | options)
    dataset.set_epoch(epoch)
    return dataset


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
