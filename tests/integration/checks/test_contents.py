"""What `wdsplit.inspect` counts: classes, sizes of images, how many samples have a field."""

import io
import sys

import pyarrow as pa
import pytest
from PIL import Image

import wdsplit
from made_datasets import converted, images_table
from report_datasets import with_class_names
from wdsplit.checks import contents


def found(path, **options):
    """Return the contents of a dataset, and each field by its name."""
    read = wdsplit.inspect(path, **options).contents
    return read, {field.name: field for field in read.fields}


def image(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def few_drawn(monkeypatch):
    """Let every dataset be too large to be counted whole."""
    monkeypatch.setattr(contents, "_MAX_ALL", 10)
    monkeypatch.setattr(contents, "_MAX_DRAWN", 50)


def test_a_field_that_samples_lack_is_counted_where_it_is(tmp_path):
    texts = [None if row % 4 else "x" * row for row in range(100)]
    table = pa.table({"cls": [row % 3 for row in range(100)], "txt": texts})
    read, fields = found(converted(tmp_path, table, shards=3, null="omit"))
    assert (read.num_read, fields["txt"].num_present, fields["txt"].num_bytes) == (100, 25, (0, 48, 96))
    assert fields["cls"].classes == {"0": 34, "1": 33, "2": 33}


def test_sizes_of_images_are_those_of_their_headers_and_need_no_pillow(tmp_path, monkeypatch):
    sizes = [(30, 20), (40, 10), (50, 30)]
    payloads = [image(*size) for size in sizes] + [b"\x89PNG\r\n\x1a\n and no image"]
    path = converted(tmp_path, pa.table({"png": payloads}), shards=1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    images = found(path)[1]["png"].images
    assert (images.num_read, images.width, images.height) == (3, (30, 40, 50), (10, 20, 30))


def test_of_a_large_dataset_samples_are_drawn_evenly_the_same_each_time(few_drawn, tmp_path):
    table = pa.table({"a": [row // 100 for row in range(1000)], "b": [row % 20 for row in range(1000)]})
    path = converted(tmp_path, table, shards=7, mapping={"cls": "a", "period.cls": "b"})
    read, fields = found(path)
    assert (read.num_read, read.is_exact) == (50, False)
    assert fields["cls"].classes == {str(number): 5 for number in range(10)}, "sorted by class, so each has its share"
    assert len(fields["period.cls"].classes) > 15, "each period of 20 is drawn from at all of its places"
    assert found(path)[0] == read


def test_classes_are_in_the_order_of_their_numbers_and_named_ones_that_no_sample_has_are_counted_as_none(tmp_path):
    path = converted(tmp_path / "numbers", pa.table({"cls": [10, 9, 2, 10, 9, 2, 10]}), shards=1)
    assert list(found(path)[1]["cls"].classes.items()) == [("2", 2), ("9", 2), ("10", 3)]
    table = with_class_names(pa.table({"cls": [0, 0, 2]}), "cls", ["cat", "dog", "owl"])
    assert found(converted(tmp_path, table, shards=1))[1]["cls"].classes == {"cat": 2, "dog": 0, "owl": 1}


def test_a_bucket_gives_the_same_counts(tmp_path, bucket):
    path = converted(tmp_path, images_table(40), shards=4)
    url = bucket.url + "/images"
    wdsplit.convert(f"{path}/*.tar", url, wdsplit.ConvertOptions(shards=4, shuffle=False))
    assert found(url)[0] == found(path)[0]
