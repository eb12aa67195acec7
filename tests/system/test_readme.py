"""The README's blocks on training, run as a user pastes them; readme_worker.py runs them, all in one process."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from made_datasets import converted
from paths import SUPPORT

pytestmark = pytest.mark.xdist_group("readme")

WORKER = SUPPORT / "readme_worker.py"
NUM_TRAIN, NUM_VAL = 61, 43
"""No multiples of the batch size, 8: the last steps are filled up."""
STEPS = 8
NUM_RIGHT = 22
"""What the worker's models get right of the validation set."""
TIMEOUT_S = 900


def jpeg_bytes(row):
    """Return a grey image that tells its row by its brightness."""
    file = io.BytesIO()
    Image.new("L", (8, 8), 4 * row).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return what the blocks were given, run in a folder with the datasets that the README speaks of."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "data").mkdir()
    for name, num_rows in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        rows = range(num_rows)
        texts = ["row" + " a" * (row % 5) for row in rows]
        table = pa.table({"jpg": list(map(jpeg_bytes, rows)), "cls": rows, "txt": texts})
        Path(converted(folder / name, table, shards=4)).rename(folder / "data" / name)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(WORKER), "out.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "out.json").read_text())


def is_epoch(batches):
    """Tell whether batches hold each row once; pads, at the end, come again."""
    rows = [row for batch in batches for row in batch]
    return len(batches) == STEPS and sorted(rows[:NUM_TRAIN]) == list(range(NUM_TRAIN))


def test_the_training_loop_gives_each_sample_once_an_epoch(done):
    seen = done["loops"]["seen"]
    assert len(seen) == 2 * STEPS
    assert is_epoch(seen[:STEPS])
    assert is_epoch(seen[STEPS:])


def test_the_loop_that_resumes_goes_on_after_the_batch_of_the_checkpoint(done):
    assert done["loops"]["resumed"] == done["loops"]["seen"][STEPS + 4 :]


def test_the_evaluation_counts_each_sample_once(done):
    assert done["loops"]["hits"] == NUM_RIGHT


def test_the_block_of_accelerate_trains_on_each_sample_once_an_epoch(done):
    seen = done["accelerate"]["seen"]
    assert len(seen) == 2 * STEPS
    assert is_epoch(seen[:STEPS])
    assert is_epoch(seen[STEPS:])
    assert done["accelerate"]["epoch"] == 2


def test_the_block_of_the_trainer_trains_resumes_and_evaluates_on_each_sample_once(done):
    first, resumed = done["transformers"]["seen"]
    assert is_epoch(first)
    assert is_epoch(resumed)
    assert first != resumed
    assert done["transformers"]["count"] == NUM_VAL


def test_the_block_of_lightning_trains_resumes_and_validates_exactly(done):
    first, resumed = done["lightning"]["seen"]
    assert [len(first), len(resumed)] == [2 * STEPS, STEPS]
    assert all(map(is_epoch, (first[:STEPS], first[STEPS:], resumed)))
    assert done["lightning"]["accuracies"] == pytest.approx([NUM_RIGHT / NUM_VAL] * 2)
