"""How the tests run: hypothesis draws the same examples every time, and takes as long as a slow machine needs."""

import pytest
from hypothesis import HealthCheck, settings
from made_datasets import numbers_dataset

from wdsplit.formats import text

settings.register_profile(
    "wdsplit",
    derandomize=True,
    deadline=None,
    max_examples=100,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("wdsplit")


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    """Return a dataset of 101 samples whose 7 shards do not go into its 4 lanes, with pads in the tars."""
    return numbers_dataset(tmp_path_factory.mktemp("numbers"), 101, shards=7, lanes=4, window=4)


@pytest.fixture(scope="session")
def whole_lanes(tmp_path_factory):
    """Return a dataset of 96 samples with 2 whole shards in each of 12 lanes."""
    return numbers_dataset(tmp_path_factory.mktemp("whole_lanes"), 96, shards=24, lanes=12, window=3)


@pytest.fixture(params=[text.BLOCK_BYTES, 7], ids=["whole", "tiny"])
def block_bytes(request, monkeypatch):
    """Cut files of text into blocks of so many bytes."""
    monkeypatch.setattr(text, "BLOCK_BYTES", request.param)
