"""The example of a webdataset pipeline, by torchrun on two ranks of two workers: each sample arrives once an epoch."""

import re
import shutil

import pytest

from example_runs import run

pytestmark = pytest.mark.xdist_group("digits")

NUM_TRAIN = 1442


def counts_of(printed):
    found = re.findall(r"epoch (\d+): .* (\d+) samples, (\d+) distinct", printed.output)
    return {int(epoch): (int(samples), int(distinct)) for epoch, samples, distinct in found}


@pytest.mark.parametrize("kind", ["folder", "glob", "bucket", "bucket, braces"])
def test_every_sample_arrives_once_an_epoch_from_a_disk_and_from_a_bucket(digits, bucket, tmp_path, kind):
    shutil.copytree(digits[0], bucket.folder / "train")
    shards = {
        "folder": digits[0],
        "glob": f"{digits[0]}/*.tar",
        "bucket": f"{bucket.url}/train",
        "bucket, braces": f"{bucket.url}/train/{{000000..000015}}.tar",
    }[kind]
    printed = run("webdataset_pipeline.py", shards, "--size=8", "--count", "--batch-size=64", out=tmp_path)
    assert counts_of(printed) == dict.fromkeys(range(2), (NUM_TRAIN, NUM_TRAIN))
    assert len(printed.losses) == 2


def test_an_epoch_is_resumed_by_shards(digits, tmp_path):
    options = ("--size=8", "--count", "--epochs=2", "--epoch=1", "--first-shard=12")
    printed = run("webdataset_pipeline.py", digits[0], *options, out=tmp_path)
    ((samples, distinct),) = counts_of(printed).values()
    assert samples == distinct
    assert abs(samples - NUM_TRAIN / 4) <= 4
