"""The benchmark of ImageNet's shape, with wdsplit alone and few images: what its tables say, not how fast."""

import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from paths import ROOT

sys.path.insert(0, str(ROOT))
from tools.bench import data

pytestmark = pytest.mark.slow
NUM_IMAGES = 300


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "class").mkdir(parents=True)
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 60 + number, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "class" / f"{number}.png")
    return folder


def tables_of(text):
    """Return the rows of all tables, as dicts from the columns' heads to the cells."""
    tables, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            tables.append([dict(zip(rows[0], row, strict=True)) for row in rows[2:]])
            rows = []
    return tables


def number(cell):
    return float(cell.replace(",", ""))


def test_each_epoch_has_all_images_once_and_only_the_first_asks_a_cached_bucket(photos, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    options = [f"--images={NUM_IMAGES}", "--rounds=1", "--workers=2", "--names=wdsplit"]
    command = [sys.executable, "-m", "tools.bench.imagenet", *options, f"--photos={photos}", f"--output={output}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    from_s3, from_disk, crops = tables_of(done.stdout)
    assert [len(table) for table in (from_s3, from_disk, crops)] == [2 * 4, 2 * 4, 2 * 2]
    for row in from_s3 + from_disk + crops:
        assert number(row["images"]) == number(row["distinct"]) == NUM_IMAGES, row
        assert min(number(row[name]) for name in ("images/s", "images/s per core", "CPU s")) > 0, row
    megabytes = number(re.search(r"an image has ([\d,]+) bytes", done.stdout)[1]) * NUM_IMAGES / 1e6
    for row in from_s3:
        if row["epoch"] == "1" or "no cache" in row[""]:
            # Without a cache the repeated images that fill the last batch are fetched once more.
            assert megabytes < number(row["MB"]) < (2.2 if "no cache" in row[""] else 1.3) * megabytes, row
            assert number(row["requests"]) > 0, row
        else:
            assert (row["MB"], row["requests"]) == ("0.0", "0"), row
    assert all((row["MB"], row["requests"]) == ("0.0", "0") for row in from_disk + crops)
    assert list(output.iterdir()) == []


def test_the_images_depend_on_their_number_alone(photos, tmp_path):
    tables = []
    for num_images in (5, data.PHOTO_ROWS + 3):
        data.make_photos(tmp_path / "source.parquet", num_images, photos)
        tables.append(pq.read_table(tmp_path / "source.parquet"))
    small, large = tables
    assert large["label"].to_pylist() == list(range(data.PHOTO_ROWS + 3))
    assert large.slice(0, 5).equals(small)
    assert len(set(large["image"].to_pylist())) == data.PHOTO_ROWS + 3
