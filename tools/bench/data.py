"""The tables that benchmarks convert and read, and wdsplit's shards of them."""

from __future__ import annotations

import io
import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SOURCE = "source.parquet"
SHARDS = "wdsplit"
PICTURES = 1_000
PHOTO_PIXELS, PHOTO_ROWS = 256, 500
PHOTO_FILES = (".jpg", ".jpeg", ".png")

_sources: Sequence[Any] = ()
"""Photos, or the names of their files, in the processes that make JPEGs of them."""


def make_small(path: Path, num_rows: int) -> None:
    """Write rows of 256 to 384 characters and a label."""
    chance = np.random.default_rng(0)
    lengths = chance.integers(256, 385, num_rows)
    letters = chance.integers(97, 123, int(lengths.sum()), dtype=np.uint8)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    text = pa.StringArray.from_buffers(num_rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    table = pa.table({"text": text, "label": chance.integers(0, 1000, num_rows)})
    pq.write_table(table, path, row_group_size=50_000)


def make_image(path: Path, num_rows: int) -> None:
    """Write rows of 50 to 150 kB of incompressible bytes that begin as JPEGs do, and a label."""
    chance = np.random.default_rng(1)
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for first in range(0, num_rows, 500):
            sizes = chance.integers(50_000, 150_001, min(500, num_rows - first))
            images = [b"\xff\xd8\xff" + chance.bytes(int(size)) for size in sizes]
            writer.write_table(pa.table([images, chance.integers(0, 1000, len(images))], schema=schema))


def make_pictures(path: Path, num_rows: int, format: str) -> None:
    """Write pictures of 500 x 375 pixels (as JPEG, about 100 kB), sums of sines and noise, and a label.

    After PICTURES they repeat, because making one takes ten times as long as decoding it.
    """
    from PIL import Image

    chance = np.random.default_rng(2)
    y, x = np.mgrid[0:375, 0:500].astype(np.float32)
    images = []
    for _ in range(min(num_rows, PICTURES)):
        slopes, phases = chance.uniform(0.005, 0.1, (3, 2)), chance.uniform(0, 6, 3)
        planes = [np.sin(a * x + b * y + phase) for (a, b), phase in zip(slopes, phases, strict=True)]
        pixels = 128 + 80 * np.stack(planes, axis=-1) + chance.normal(0, 22, (375, 500, 1))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, format, quality=90)
        images.append(file.getvalue())
    images = [images[number % len(images)] for number in range(num_rows)]
    pq.write_table(pa.table({"image": images, "label": chance.integers(0, 1000, num_rows)}), path, row_group_size=500)


def make_photos(
    path: Path, num_rows: int, folder: Path | None = None, size: tuple[int, int] = (PHOTO_PIXELS, PHOTO_PIXELS)
) -> None:
    """Write JPEGs of a width and height, quality 90, and their number as label.

    Row i is a random part of photo i: of a folder's files in turn, else of scikit-learn's two sample photos. All
    processors take part; the bytes depend on the number of rows and the photos alone.
    """
    files = (
        sorted(map(str, (file for file in folder.rglob("*") if file.suffix.lower() in PHOTO_FILES))) if folder else []
    )
    if folder and not files:
        raise SystemExit(f"no photos found in {folder}")
    firsts = range(0, num_rows, PHOTO_ROWS)
    stops = (min(first + PHOTO_ROWS, num_rows) for first in firsts)
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with (
        pq.ParquetWriter(path, schema, compression="none") as writer,
        multiprocessing.Pool(len(os.sched_getaffinity(0)), _open_photos, (files,)) as pool,
    ):
        for first, images in zip(firsts, pool.imap(partial(_photos, size), map(range, firsts, stops)), strict=True):
            writer.write_table(pa.table([images, np.arange(first, first + len(images))], schema=schema))


def _open_photos(files: Sequence[str]) -> None:
    """Keep the photos, or the names of their files, for `_photos` in this process."""
    global _sources
    if files:
        _sources = files
    else:
        from sklearn.datasets import load_sample_images

        _sources = load_sample_images().images


def _photos(size: tuple[int, int], numbers: range) -> list[bytes]:
    """Return the JPEGs of some rows."""
    from PIL import Image

    jpegs = []
    for number in numbers:
        chance = np.random.default_rng(number)
        source = _sources[number % len(_sources)]
        photo = (Image.open(source) if isinstance(source, str) else Image.fromarray(source)).convert("RGB")
        scale = chance.uniform(0.6, 1) * min(photo.width / size[0], photo.height / size[1])
        width, height = scale * size[0], scale * size[1]
        left, top = (chance.uniform(0, length - side) for length, side in zip(photo.size, (width, height), strict=True))
        file = io.BytesIO()
        photo.resize(size, Image.Resampling.BICUBIC, (left, top, left + width, top + height)).save(
            file, "JPEG", quality=90
        )
        jpegs.append(file.getvalue())
    return jpegs


def make_png(path: Path, num_rows: int) -> None:
    """Write pictures of 32 x 32 pixels and about 2 kB, sums of sines and a little noise, and a label."""
    from PIL import Image

    chance = np.random.default_rng(3)
    y, x = np.mgrid[0:32, 0:32].astype(np.float32)
    images = []
    for _ in range(num_rows):
        slopes = chance.uniform(0.05, 0.5, (3, 2))
        planes = [128 + 90 * np.sin(a * x + b * y) for a, b in slopes]
        pixels = np.stack(planes, axis=-1) + chance.normal(0, 3, (32, 32, 1))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
        images.append(file.getvalue())
    pq.write_table(pa.table({"image": images, "label": chance.integers(0, 10, num_rows)}), path, row_group_size=5_000)


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "small": make_small,
    "image": make_image,
    "jpeg": partial(make_pictures, format="JPEG"),
    "webp": partial(make_pictures, format="WEBP"),
    "png": make_png,
}


def make_shards(folder: Path, output: str = SHARDS, emit: tuple[str, ...] = ("energon",), **plan: Any) -> None:
    """Convert the table of a folder."""
    from wdsplit import ConvertOptions, convert

    options = ConvertOptions(pad="none", shuffle=False, **plan, emit=emit, jobs=2)
    convert(str(folder / SOURCE), str(folder / output), options)


def payload_sizes(path: Path) -> Any:
    """Return the bytes of each value of a table's first column."""
    return pc.binary_length(pq.read_table(path, columns=[pq.read_schema(path).names[0]]).column(0))
