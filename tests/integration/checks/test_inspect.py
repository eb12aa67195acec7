"""`wdsplit.inspect`, `assign` and `audit`, which return what the commands print; and what `inspect` counts."""

import sys

import pyarrow as pa
import pytest
from PIL import Image

import wdsplit
from commands import done
from made_datasets import converted
from media_files import encoded
from tables import with_class_names
from wdsplit.checks import contents
from wdsplit.errors import InputError


def test_inspect_returns_what_the_command_prints(numbers):
    found, shown = wdsplit.inspect(numbers, samples=2), done("inspect", numbers, "--samples", 2, "--json").json
    manifest = found.manifest
    assert (found.num_samples, manifest.num_pads, len(manifest.shards)) == (101, 4, 7)
    expected = {name: getattr(manifest, name) for name in ("lanes", "window", "fingerprint", "provenance")}
    assert shown.items() >= {"samples": 101, "pads": 4, "shards": 7, "bytes": manifest.num_bytes, **expected}.items()
    assert [*manifest.field_names] == ["cls", "txt"] == [field["name"] for field in shown["fields"]]
    assert [sample["txt"] for sample in found.first_samples] == [b"row 0", b"row 1"]


def test_assign_returns_what_the_command_prints_and_refuses_what_it_refuses(numbers):
    options = ("--world-size", 3, "--workers", 2, "--batch-size", 8, "--epoch", 1, "--seed", 7, "--tail", "drop")
    for lanes, more in ((None, ()), (2, ("--lanes", 2))):
        found = wdsplit.assign(numbers, 3, 2, batch_size=8, epoch=1, seed=7, tail="drop", lanes=lanes)
        shown = done("assign", numbers, *options, *more, "--json").json
        assert {**vars(found), "readers": [vars(share) for share in found.readers]} == shown
        assert [(share.rank, share.worker) for share in found.readers] == [(r, w) for r in range(3) for w in range(2)]
    with pytest.raises(InputError, match="invalid options") as caught:
        wdsplit.assign(numbers, 0, -1)
    assert caught.value.found == "world_size = 0: expected at least 1; num_workers = -1: expected at least 0"


def test_audit_returns_its_findings_and_reports_each_as_it_comes(numbers):
    seen = []
    report = wdsplit.audit(numbers, wdsplit.AuditOptions(world_size=3, batch_size=4, epochs=2), seen.append)
    assert report.held and report.findings == tuple(seen)
    assert {finding.epoch for finding in seen} == {0, 1}


# What is counted


def found(path):
    """Return the contents of a dataset, and each field by its name."""
    read = wdsplit.inspect(path).contents
    return read, {field.name: field for field in read.fields}


def test_fields_that_samples_lack_and_sizes_of_images_are_counted_without_pillow(tmp_path, monkeypatch):
    sizes = [(30, 20), (40, 10), (50, 30)]
    payloads = [encoded(Image.new("RGB", size), "PNG") for size in sizes] + [b"\x89PNG\r\n\x1a\n and no image"]
    columns = {
        "cls": [row % 3 for row in range(40)],
        "txt": [None if row % 4 else "x" * row for row in range(40)],
        "png": [payloads[row] if row < 4 else None for row in range(40)],
    }
    path = converted(tmp_path, pa.table(columns), shards=3, null="omit")
    monkeypatch.setitem(sys.modules, "PIL", None)
    read, fields = found(path)
    assert (read.num_read, fields["txt"].num_present, fields["txt"].num_bytes) == (40, 10, (0, 20, 36))
    assert fields["cls"].classes == {"0": 14, "1": 13, "2": 13}
    images = fields["png"].images
    assert (images.num_read, images.width, images.height) == (3, (30, 40, 50), (10, 20, 30))


def test_of_a_large_dataset_samples_are_drawn_evenly_the_same_each_time(monkeypatch, tmp_path):
    monkeypatch.setattr(contents, "_MAX_ALL", 10)
    monkeypatch.setattr(contents, "_MAX_DRAWN", 50)
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
