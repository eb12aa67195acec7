"""What stages draw does not depend on ranks, workers and resumes."""

from functools import partial

import pytest

import wdsplit
from draws import KINDS, drawing, draws
from media_files import jpeg_dataset
from wdsplit.loading.loader import Loader


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A dataset of 60 JPEGs of several sizes."""
    return jpeg_dataset(tmp_path_factory.mktemp("pictures"), 60, 40, 50)


def cropping(path, world=(0, 1), **options):
    dataset = wdsplit.Dataset(path, rank=world[0], world_size=world[1], **options)
    return dataset.decode(wdsplit.resized(16, crop="random", flip=True))


def cropped(*loaders):
    """Return the pixels of the image at each position."""
    found = {}
    for loader in loaders:
        for batch in loader:
            for position, image in zip(batch["__position__"].tolist(), batch["jpg"], strict=True):
                assert found.setdefault(position, image.numpy().tobytes()) == image.numpy().tobytes()
    return found


@pytest.mark.parametrize("kind", ["numpy", "global", "random parts"])
def test_what_is_drawn_is_the_same_on_any_topology_and_after_a_resume(numbers, pictures, kind):
    make, found = (partial(drawing, numbers, kind), draws) if kind in KINDS else (partial(cropping, pictures), cropped)
    whole = found(Loader(make(), 12))
    assert list(whole) == list(range(108 if kind in KINDS else 60))
    assert found(Loader(make(), 12, num_workers=2)) == whole
    assert found(*(Loader(make((rank, 3)), 4) for rank in range(3))) == whole
    if kind != "global":
        assert found(Loader(make(), 12, num_workers=3, workers="thread")) == whole
    loader = Loader(make(), 12, num_workers=1)
    batches = iter(loader)
    next(batches), next(batches)
    rest = Loader(make(), 6)
    rest.load_state_dict(loader.state_dict())
    assert found(rest) == {position: whole[position] for position in range(24, 102 if kind in KINDS else 60)}


def test_random_parts_differ_and_are_the_same_sample_by_sample(pictures):
    whole, by_sample = cropped(Loader(cropping(pictures), 12)), cropping(pictures).map(dict)
    assert len(set(whole.values())) == len(whole) == 60
    assert cropped(Loader(by_sample, 12)) == whole
    assert {item["__position__"]: item["jpg"].numpy().tobytes() for item in by_sample} == whole
