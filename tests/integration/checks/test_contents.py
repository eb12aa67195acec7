"""What `wdsplit.inspect` counts: classes, sizes of images, how many samples have a field."""

import io
import struct
import sys
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import wdsplit
from made_datasets import converted, images_table
from wdsplit.checks import contents


def found(path, **options):
    """Return the contents of a dataset, and each field by its name."""
    read = wdsplit.inspect(path, **options).contents
    return read, {field.name: field for field in read.fields}


def claimed_size(png, side):
    """Return a PNG whose header claims a width and height that Pillow takes for an attack."""
    header = b"IHDR" + struct.pack(">II", side, side) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def image(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def few_drawn(monkeypatch):
    """Let every dataset be too large to be counted whole."""
    monkeypatch.setattr(contents, "_MAX_ALL", 10)
    monkeypatch.setattr(contents, "_MAX_DRAWN", 50)


def test_a_small_dataset_is_counted_whole_pads_left_out(numbers):
    read, fields = found(numbers)
    assert (read.num_read, read.is_exact) == (101, True)
    assert (fields["cls"].num_present, fields["cls"].num_bytes) == (101, (1, 2, 3))
    assert fields["cls"].classes == {}, "each number occurs once"


def test_a_field_that_samples_lack_is_counted_where_it_is(tmp_path):
    texts = [None if row % 4 else "x" * row for row in range(100)]
    table = pa.table({"cls": [row % 3 for row in range(100)], "txt": texts})
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    options = wdsplit.ConvertOptions(shards=3, null="omit")
    wdsplit.convert(str(path), str(tmp_path / "out"), options)
    read, fields = found(str(tmp_path / "out"))
    assert (read.num_read, fields["txt"].num_present, fields["txt"].num_bytes) == (100, 25, (0, 48, 96))
    assert fields["cls"].classes == {"0": 34, "1": 33, "2": 33}


def test_classes_are_in_the_order_of_their_numbers(tmp_path):
    path = converted(tmp_path, pa.table({"cls": [10, 9, 2, 10, 9, 2, 10]}), shards=1)
    assert list(found(path)[1]["cls"].classes.items()) == [("2", 2), ("9", 2), ("10", 3)]


def test_sizes_of_images_are_those_of_their_headers(tmp_path):
    sizes = [(30, 20), (40, 10), (50, 30)]
    payloads = [image(*size) for size in sizes] + [b"\x89PNG\r\n\x1a\n and no image"]
    path = converted(tmp_path, pa.table({"png": payloads}), shards=1)
    images = found(path)[1]["png"].images
    assert (images.num_read, images.width, images.height) == (3, (30, 40, 50), (10, 20, 30))


def test_an_image_of_many_pixels_is_no_reason_for_a_warning(tmp_path, recwarn):
    path = converted(tmp_path, pa.table({"png": [claimed_size(image(1, 1), 2**16)]}), shards=1)
    assert found(path)[1]["png"].images.width == (2**16,) * 3
    assert not recwarn


def test_sizes_need_no_pillow(tmp_path, monkeypatch):
    path = converted(tmp_path, pa.table({"png": [image(3, 3)]}), shards=1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert found(path)[1]["png"].images.width == (3, 3, 3)


def test_of_a_large_dataset_samples_are_drawn_evenly_the_same_each_time(few_drawn, tmp_path):
    classes = [row // 100 for row in range(1000)]
    path = converted(tmp_path, pa.table({"cls": classes}), shards=7)
    read, fields = found(path)
    assert (read.num_read, read.is_exact) == (50, False)
    assert fields["cls"].classes == {str(number): 5 for number in range(10)}, "sorted by class, so each has its share"
    assert found(path)[0] == read


def test_samples_of_a_periodic_dataset_are_drawn_from_all_of_its_period(few_drawn, tmp_path):
    path = converted(tmp_path, pa.table({"cls": [row % 20 for row in range(1000)]}), shards=7)
    assert len(found(path)[1]["cls"].classes) > 15


def test_named_classes_that_no_sample_has_are_counted_as_none(tmp_path):
    features = '{"info": {"features": {"cls": {"_type": "ClassLabel", "names": ["cat", "dog", "owl"]}}}}'
    table = pa.table({"cls": [0, 0, 2]}, pa.schema([("cls", pa.int64())], {"huggingface": features}))
    assert found(converted(tmp_path, table, shards=1))[1]["cls"].classes == {"cat": 2, "dog": 0, "owl": 1}


def test_a_bucket_gives_the_same_counts(tmp_path, bucket):
    path = converted(tmp_path, images_table(40), shards=4)
    url = bucket.url + "/images"
    wdsplit.convert(f"{path}/*.tar", url, wdsplit.ConvertOptions(shards=4, shuffle=False))
    assert found(url)[0] == found(path)[0]
