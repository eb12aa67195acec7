import itertools
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from made_datasets import converted, sized_dataset
from orders import TAILS, VIEWS, masks_of
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.reader import Reading, SampleReader
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.selection import Selection
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage

NUM_ROWS = 61


def samples_at(reader, positions):
    return list(next(Reading(reader, [positions])).samples())


class Opened:
    """A dataset, and all its samples as `tarfile` reads them: a list a shard of dicts of key and fields."""

    def __init__(self, path):
        self.storage = open_storage(path)
        self.manifest = read_manifest(self.storage)
        self.paths = [f"{path}/{name}" for name in self.manifest.shards.table.column("path").to_pylist()]
        self.samples = [samples_in_tar(path) for path in self.paths]

    def order(self, window=4, lanes=4, epoch=0, shuffle=True, tail="pad", view="everything"):
        options = OrderOptions(0, shuffle, lanes, window, tail)
        selection = Selection.of_masks(masks_of(view, self.manifest.shards.num_real.tolist(), epoch))
        return EpochOrder(selection.counts, options, epoch, selection=selection)

    def reader(self, order, num_lanes=4):
        return SampleReader(
            lambda number: open_shard(self.storage, self.manifest.shards[number], self.manifest.field_names),
            self.manifest.shards,
            order,
            num_lanes,
        )

    def expected(self, order, positions):
        """Return what a reader shall give: what the tars hold, where the order leads."""
        found = order.locate(positions)
        shards, samples, pads = found.shard.tolist(), found.sample.tolist(), found.pad.tolist()
        return [
            {
                **self.samples[shard][sample],
                "__url__": self.paths[shard],
                "__position__": position,
                "__pad__": pad,
            }
            for position, shard, sample, pad in zip(positions.tolist(), shards, samples, pads, strict=True)
        ]


def samples_in_tar(path):
    samples = []
    with tarfile.open(path) as archive:
        for key, members in itertools.groupby(archive, lambda member: base_plus_ext(member.name)[0]):
            fields = {base_plus_ext(member.name)[1]: archive.extractfile(member).read() for member in members}
            samples.append({"__key__": key, **fields})
    return samples


@pytest.fixture(scope="session")
def ragged(tmp_path_factory):
    """Return a dataset whose samples differ in their fields, in windows and from shard to shard."""
    rows = range(NUM_ROWS)
    table = pa.table(
        {
            "cls": rows,
            "txt": [None if row % 3 == 0 else "ä" * (row % 5) for row in rows],
            "bin": pa.array([None if row < 20 or row % 7 == 0 else bytes(row * 30) for row in rows], pa.binary()),
        }
    )
    mapping = {"cls": "cls", "txt": "txt", "dat": "bin"}
    return Opened(converted(tmp_path_factory.mktemp("ragged"), table, mapping=mapping, shards=5, null="omit"))


@pytest.fixture(scope="session")
def unequal(tmp_path_factory):
    return Opened(sized_dataset(tmp_path_factory.mktemp("unequal"), [1, 40, 0, 9, 3], lanes=4, window=4))


positions = st.lists(st.integers(0, NUM_ROWS + 20), max_size=30).map(lambda values: np.array(values, np.int64))


@pytest.mark.parametrize("dataset", ["ragged", "unequal"])
@given(
    st.lists(positions, min_size=1, max_size=4),
    st.sampled_from([1, 3, 4, 100]),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(TAILS),
    st.integers(0, 3),
    st.sampled_from(VIEWS),
    st.sampled_from([1, 4]),
)
def test_the_samples_of_any_positions_are_those_in_the_tars(
    request, dataset, reads, window, lanes, shuffle, tail, epoch, view, num_lanes
):
    """Wherever reading starts, and however much is read at a time and kept."""
    opened = request.getfixturevalue(dataset)
    order = opened.order(window, lanes, epoch, shuffle, tail, view)
    reader = opened.reader(order, num_lanes)
    for wanted in reads if order.num_samples else []:
        assert samples_at(reader, wanted) == opened.expected(order, wanted)


@pytest.mark.parametrize("num_readers", [1, 4])
def test_windows_in_which_lanes_of_a_view_part_are_read_once_by_the_reader_of_both(tmp_path, num_readers):
    opened = Opened(sized_dataset(tmp_path, [60] * 8, lanes=8, window=15))
    order = opened.order(window=15, lanes=8, view="random")
    assert order.stretches is not None and len(order.stretches.begins) > 11
    num_windows = sum(len(order.shard_windows(shard)[0]) for shard in range(8))
    readers = [opened.reader(order, num_lanes=8 // num_readers) for _ in range(num_readers)]
    for number, reader in enumerate(readers):
        mine = np.arange(number, order.num_positions, num_readers)
        for positions in np.split(mine, range(4, len(mine), 4)):
            assert samples_at(reader, positions) == opened.expected(order, positions)
    assert num_windows <= sum(reader.num_read for reader in readers) <= num_windows + num_readers


def test_a_sample_is_a_dict_of_its_own(ragged):
    """A stage may change a sample; a pad or a second reading of the position must not see it."""
    reader = ragged.reader(ragged.order())
    first, second = samples_at(reader, np.array([3, 3]))
    first["cls"] = "changed"
    assert second["cls"] != "changed"
