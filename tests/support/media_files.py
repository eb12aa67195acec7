"""Folders of small media files: bytes that begin as images do, each file different; and real images of every oddity."""

from __future__ import annotations

import functools
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq

import wdsplit
from wdsplit.tables.find import find_inputs
from wdsplit.tables.media import open_media

JPG = b"\xff\xd8\xff"


def write_files(folder, *names) -> str:
    """Write a file for each name, with the name in it, and return the folder."""
    for name in names:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPG + name.encode() + bytes(len(name) * 37))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return str(folder)


def listed(*inputs):
    """Return the table that inputs give."""
    return open_media(find_inputs(list(inputs)))


def names_of(table):
    """Return the file names of a table, in order."""
    return [name for file in table.files for name in file.members["file_name"].to_pylist()]


# Real images


def picture(height, width):
    """Return a smooth picture whose red rises downwards and whose green rises to the right."""
    down, right = np.mgrid[0:height, 0:width]
    red, green = down * 255 // max(height - 1, 1), right * 255 // max(width - 1, 1)
    return np.stack([red, green, np.full_like(red, 90)], axis=2).astype(np.uint8)


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image = image if isinstance(image, PIL.Image.Image) else PIL.Image.fromarray(image)
    image.save(file, kind, **({"quality": 95} if kind == "JPEG" else {}), **options)
    return file.getvalue()


def turned(orientation, kind="JPEG", height=40, width=60):
    """Return a picture with an EXIF orientation."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture(height, width), kind, exif=exif)


def with_scans(count):
    """Return a progressive JPEG, the last of whose scans comes again until there are `count`."""
    data = encoded(picture(40, 60), progressive=True)
    last, end = data.rindex(b"\xff\xda"), len(data) - 2
    return data[:end] + data[last:end] * (count - data.count(b"\xff\xda")) + data[end:]


def png(width, height, depth, colour, pixels):
    """Return a PNG of any depth, from the bytes of its rows, each with the byte of its filter."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(pixels)),
    ]
    body = [
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in [*chunks, (b"IEND", b"")]
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@functools.cache
def odd_images():
    """Return images of every oddity: file name to its bytes. Nobody may change them."""
    plain = PIL.Image.fromarray(picture(40, 60))
    whole, deep = encoded(plain), (picture(40, 60)[..., 0].astype(np.uint16) * 257)
    frames = {"save_all": True, "append_images": [plain.rotate(90), plain.rotate(180)]}
    return {
        "plain.jpg": whole,
        "upper.JPEG": encoded(picture(50, 50)),
        "progressive.jpg": encoded(plain, progressive=True),
        "grey.jpg": encoded(plain.convert("L")),
        "cmyk.jpg": encoded(plain.convert("CMYK")),
        "rotated.jpg": turned(6),
        "rotated.webp": turned(3, "WEBP"),
        "upright.jpg": turned(1),
        "bad exif.jpg": encoded(plain, exif=b"Exif\0\0II*\0\xff\xff\xff\x7f"),
        "alpha.png": encoded(plain.convert("RGBA"), "PNG"),
        "palette.png": encoded(plain.convert("P"), "PNG", transparency=b"\0\x80"),
        "deep.png": encoded(deep, "PNG"),
        "deep colour.png": png(1, 2, 16, 2, (b"\0" + struct.pack(">HHH", 0xFFFF, 0x80FF, 0)) * 2),
        "deep.pgm": encoded(deep, "PPM"),
        "deep.tiff": encoded(deep, "TIFF"),
        "float.tiff": encoded(picture(40, 60)[..., 0].astype(np.float32), "TIFF"),
        "still.gif": encoded(plain.convert("P"), "GIF"),
        "animated.gif": encoded(plain.convert("P"), "GIF", **frames),
        "animated.webp": encoded(plain, "WEBP", **frames),
        "animated.png": encoded(plain, "PNG", **frames),
        "pages.tif": encoded(plain, "TIFF", **frames),
        "plain.bmp": encoded(plain, "BMP"),
        "a png.jpg": encoded(plain, "PNG"),
        "trailing.jpg": whole + b"more",
        "long.png": encoded(picture(3, 900), "PNG"),
        "dot.png": encoded(picture(1, 1), "PNG"),
        "scans.jpg": with_scans(300),
        "cut.jpg": whole[: len(whole) // 2],
        "cut.png": encoded(plain, "PNG")[:-40],
        "cut.gif": encoded(plain.convert("P"), "GIF")[:200],
        "warned.jpg": whole[:-2] + bytes(range(1, 9)) + whole[-2:],  # libjpeg warns, Pillow does not
        "header.jpg": whole[:300],
        "text.jpg": b"<!DOCTYPE html><html>not found</html>",
        "program.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) run\n%%EOF\n",
        "bomb.png": png(20_000, 20_000, 8, 0, b""),
    }


def write_images(folder, images):
    """Write files of images into a folder, and return it."""
    for name, data in images.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(folder)


def jpeg_dataset(folder, count, height, width):
    """Convert JPEGs of noise, of sizes near a height and width; return the dataset, which lies beside table.parquet."""
    chance, files = np.random.default_rng(0), []
    for number in range(count):
        file = io.BytesIO()
        shape = (height + number % 7, width - number % 5, 3)
        PIL.Image.fromarray(chance.integers(0, 256, shape, np.uint8)).save(file, "JPEG")
        files.append(file.getvalue())
    pq.write_table(pa.table({"image": files}), folder / "table.parquet")
    wdsplit.convert(folder / "table.parquet", folder / "dataset")
    return folder / "dataset"
