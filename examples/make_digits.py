"""Make a small parquet dataset to try things on: scikit-learn's handwritten digits, as published tables are.

1,797 images of 8 x 8 pixels as PNG, with labels. The training table comes in several files of uneven size, sorted by
class; every fifth image of each class is held out in a test table. The same call gives the same tables.

    python examples/make_digits.py demo/parquet
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits

TRAIN_FILES = (0.17, 0.09, 0.31, 0.12, 0.31)
"""The part of the training table that goes into each file."""

HELD_OUT_EVERY = 5
BRIGHTEST = 16
"""The digits' pixels run from 0 to 16."""

SCHEMA = pa.schema(
    [
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("label", pa.int64()),
    ]
)


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description="Write scikit-learn's handwritten digits as parquet tables of PNG images and labels.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the tables go; made if it does not exist")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    train, test = split_rows(digits.target)
    bounds = np.round(np.cumsum((0, *TRAIN_FILES)) * len(train)).astype(int)
    for number, rows in enumerate(np.split(train, bounds[1:-1])):
        write_table(digits, rows, folder / f"train-{number:05d}-of-{len(TRAIN_FILES):05d}.parquet")
    write_table(digits, test, folder / "test-00000-of-00001.parquet")


def split_rows(labels: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows of the training and of the test table, both sorted by class: every fifth of a class is held out.

    Args:
        labels: int64 of shape (images,).
    """
    by_class = np.argsort(labels, kind="stable")
    number_in_class = np.concatenate([np.arange(count) for count in np.bincount(labels)])
    held_out = number_in_class % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return by_class[~held_out], by_class[held_out]


def write_table(digits: dict[str, npt.NDArray[np.float64]], rows: npt.NDArray[np.int64], path: Path) -> None:
    """Write some of the digits as a parquet table, images as structs of bytes and path, as Hugging Face does."""
    images = [{"bytes": encode_png(digits["images"][row]), "path": f"{row:04d}.png"} for row in rows]
    table = pa.Table.from_pydict({"image": images, "label": digits["target"][rows]}, schema=SCHEMA)
    pq.write_table(table, path)
    print(f"{path}: {len(rows):,} images of the classes {', '.join(map(str, np.unique(digits['target'][rows])))}")


def encode_png(pixels: npt.NDArray[np.float64]) -> bytes:
    """Return an image as the bytes of a PNG file.

    Args:
        pixels: float64 of shape (height, width), from 0 to 16.
    """
    out = io.BytesIO()
    Image.fromarray(np.round(pixels * (255 / BRIGHTEST)).astype(np.uint8)).save(out, "png")
    return out.getvalue()


if __name__ == "__main__":
    main()
