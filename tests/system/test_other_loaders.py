"""Samples as the source of other loaders: Grain and torchdata.nodes draw the order."""

import grain
import numpy as np
import pyarrow as pa
import pytest
from absl import flags
from torch.utils.data import RandomSampler
from torchdata import nodes

import wdsplit
from tables import converted, write_table

NUM_SAMPLES, BATCH_SIZE = 100, 8


@pytest.fixture
def samples(tmp_path):
    table = write_table(tmp_path / "in.parquet", {"label": pa.array(range(NUM_SAMPLES), pa.int64())})
    converted(table, tmp_path / "train", mapping={"cls": "label"}, shards=4)
    return wdsplit.Samples(tmp_path / "train").decode().to_tuple("cls")


def grain_batches(samples):
    dataset = grain.MapDataset.source(samples).seed(3).shuffle().map(lambda sample: np.int64(sample[0]))
    return dataset.to_iter_dataset().batch(BATCH_SIZE)


def test_grain_shuffles_samples_and_resumes_at_the_next_batch(samples):
    whole = [batch.tolist() for batch in grain_batches(samples)]
    labels = [label for batch in whole for label in batch]
    assert sorted(labels) == list(range(NUM_SAMPLES))
    assert labels != list(range(NUM_SAMPLES))
    first = iter(grain_batches(samples))
    head = [next(first).tolist() for _ in range(5)]
    resumed = iter(grain_batches(samples))
    resumed.set_state(first.get_state())
    assert head + [batch.tolist() for batch in resumed] == whole


def test_worker_processes_of_grain_open_the_samples_themselves(samples):
    flags.FLAGS.mark_as_parsed()  # its workers ask for absl's flags, which absl's app.run parses
    in_processes = grain_batches(samples).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    found = [label for batch in in_processes for label in batch.tolist()]
    assert sorted(found) == list(range(NUM_SAMPLES))


def node_batches(samples):
    sampled = nodes.MapStyleWrapper(map_dataset=samples, sampler=RandomSampler(samples))
    return nodes.Loader(nodes.Batcher(sampled, batch_size=BATCH_SIZE, drop_last=False))


def test_nodes_of_torchdata_give_each_sample_once(samples):
    found = [label for batch in node_batches(samples) for (label,) in batch]
    assert sorted(found) == list(range(NUM_SAMPLES))
