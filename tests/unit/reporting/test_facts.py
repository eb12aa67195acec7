import dataclasses
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_datasets import sized_dataset
from media_files import encoded
from wdsplit.checks.samples import spread_numbers
from wdsplit.errors import InputError
from wdsplit.loading.reading.source import Source
from wdsplit.order.epoch import OrderOptions
from wdsplit.reporting.fields import duplicates, field_facts
from wdsplit.reporting.labels import labels_of
from wdsplit.reporting.payloads import kind_of, measures_of
from wdsplit.reporting.scan import Column, Scan, planned_runs, scan
from wdsplit.reporting.subject import Subject, open_subject
from wdsplit.shards.manifest import Field, Manifest, Shards
from wdsplit.texts import counted, human_bytes, human_seconds


def column(kind, payloads, **measures):
    """Return what would be read of payloads of one field; None where a sample lacks it."""
    return Column(
        kind,
        np.array([-1 if each is None else len(each) for each in payloads]),
        np.array([0 if each is None else hash(each) & 0xFFFFFFFF for each in payloads], np.uint64),
        np.array([None if each is None else each.decode() for each in payloads], object),
        {name: np.array(values, float) for name, values in measures.items()},
        np.array([each == b"" for each in payloads]),
    )


def scanned(**columns):
    count = len(next(iter(columns.values())).sizes)
    return Scan(True, count, np.arange(count), np.array([f"k{row}" for row in range(count)], object), columns)


def test_numbers_are_written_for_people():
    assert [counted(1, "class", "classes"), counted(2000, "class", "classes")] == ["1 class", "2,000 classes"]
    assert [human_bytes(999), human_bytes(1_500_000), human_bytes(2e15)] == ["999 B", "1.5 MB", "2.0 PB"]
    assert [human_seconds(each) for each in (0.012, 3.4, 300, 9000)] == ["12 ms", "3.4 s", "5 min", "2.5 h"]


# Payloads


def test_a_field_is_what_its_encoding_or_its_name_says():
    for kind, name, encoding in (
        ("image", "jpg", "media"),
        ("image", "seg.png", "bytes"),
        ("audio", "wav", "media"),
        ("number", "cls", "bytes"),
        ("json", "meta.json", "json"),
        ("text", "caption", "text"),
        ("array", "npy", "npy"),
        ("bytes", "bin", "bytes"),
    ):
        assert kind_of(name, Field(name, name, encoding, "")) == kind
        assert encoding != "bytes" or kind_of(name, None) == kind


def test_payloads_are_measured_by_their_headers_and_unreadable_ones_are_not():
    file = io.BytesIO()
    np.save(file, np.zeros((3, 5)))
    bad = b"\xff\xfe bad"
    read = {
        "image": [encoded(np.zeros((6, 8, 3), np.uint8), "PNG"), {"width": 8, "height": 6, "aspect": 8 / 6}],
        "text": ["größer".encode(), {"characters": 6}],
        "number": [b"-7", {"value": -7}],
        "array": [file.getvalue(), {"elements": 15}],
        "bytes": [b"anything", {}],
    }
    for kind, (payload, expected) in read.items():
        found = measures_of(kind, [payload, bad])
        assert {name: values[0] for name, values in found.items()} == expected
        assert all(np.isnan(values[1]) for values in found.values())
    assert np.isnan(measures_of("number", [b"inf"])["value"])


# Labels


def test_classes_are_counted_the_most_frequent_first_and_those_that_no_sample_has_too(tmp_path):
    found = scanned(cls=column("number", [b"1", b"0", b"1", b"2", b"1", b"0"]))
    labels = labels_of(found, [])
    assert labels.field == "cls"
    assert labels.names == ("1", "0", "2")
    assert labels.counts.tolist() == [3, 2, 1]
    assert labels.codes.tolist() == [0, 1, 0, 2, 0, 1]
    manifest = open_subject(sized_dataset(tmp_path, [4], lanes=1, window=1)).manifests[0]
    names = ("cat", "dog", "owl", "fish")
    named = dataclasses.replace(manifest, fields=(Field("cls", "cls", "integer", "int64", names),))
    labels = labels_of(found, [named])
    assert labels.names == ("dog", "cat", "owl", "fish")
    assert labels.counts.tolist() == [3, 2, 1, 0]
    assert labels.is_complete


def test_numbers_that_most_samples_have_alone_are_no_classes():
    texts = [str(row).encode() for row in range(100)]
    assert labels_of(scanned(cls=column("number", texts), txt=column("text", [b"a", b"b"] * 50)), []) is None
    assert labels_of(scanned(**{"a.cls": column("number", texts[:50] * 2)}), []).field == "a.cls"


def test_a_field_can_be_named_and_one_without_short_values_is_refused():
    found = scanned(a=column("number", [b"1", b"2"] * 50), b=column("text", [b"x", b"y"] * 50))
    assert labels_of(found, [], "b").field == "b"
    with pytest.raises(InputError, match="no classes in this field") as caught:
        labels_of(found, [], "c")
    assert "a, b" in caught.value.expected


# Fields


def test_presence_nulls_and_what_is_unreadable_are_counted():
    (facts,) = field_facts(
        scanned(jpg=column("image", [b"x", None, b"", b"y"], width=[8, np.nan, np.nan, np.nan])), None
    )
    assert (facts.present, facts.absent, facts.nulls, facts.unreadable) == (3, 1, 1, 1)
    assert facts.bad_rows == (3,)


def test_histograms_hold_every_value_and_outliers_are_named():
    values = [*range(100, 200), 100_000]
    (facts,) = field_facts(scanned(txt=column("text", [b"x"] * 101, characters=values)), None)
    measure = facts.measure("characters")
    assert measure.counts.sum() == 101
    assert (measure.minimum, measure.maximum) == (100, 100_000)
    assert measure.edges[-1] < 1000
    assert measure.outliers == ((100, 100_000.0),)


def test_payloads_that_repeat_are_grouped_and_conflicting_classes_are_counted():
    payloads = [b"a", b"b", b"a", b"c", b"b", b"a"]
    found = scanned(
        jpg=column("image", payloads, width=[1] * 6), cls=column("number", [b"0", b"1", b"0", b"0", b"0", b"0"])
    )
    repeated = duplicates(found, labels_of(found, []))
    assert repeated.extra == 3
    assert repeated.groups == ((0, 2, 5), (1, 4))
    assert repeated.conflicts == 1


# What is read


@given(st.integers(0, 10_000), st.integers(0, 50), st.integers(0, 3))
def test_drawn_samples_are_from_all_parts_of_the_files(num_stored, count, seed):
    numbers = spread_numbers(num_stored, count, seed)
    assert len(numbers) == len(set(numbers)) == min(count, num_stored)
    parts = sorted(number * len(numbers) // num_stored for number in numbers)
    assert all(0 <= number < num_stored for number in numbers)
    assert not numbers or max(np.diff([0, *parts])) <= 2


def test_a_small_dataset_is_read_whole_and_a_large_one_in_part(tmp_path):
    subject = open_subject(sized_dataset(tmp_path, [40, 0, 25, 60], lanes=3, window=8))
    sample_bytes = subject.parts[0].sample_bytes
    runs, is_exact = planned_runs(subject, subject.manifests[0].num_bytes, 0)
    assert (is_exact, sum(run.stop - run.first for run in runs)) == (True, 125)
    runs, is_exact = planned_runs(subject, 30 * sample_bytes, 0)
    assert (is_exact, {run.shard for run in runs}) == (False, {0, 2, 3})
    assert 3 <= sum(run.stop - run.first for run in runs) <= 30
    assert runs == planned_runs(subject, 30 * sample_bytes, 0)[0] != planned_runs(subject, 30 * sample_bytes, 1)[0]
    found = scan(subject, 10**9, 0)
    assert (found.basis, found.numbers.tolist()) == ("exact", list(range(125)))
    assert found.columns["cls"].measures["value"].tolist() == list(range(125))
    part = scan(subject, 20 * sample_bytes, 0)
    assert part.basis == f"sampled: {len(part)} of 125 samples"
    assert part.columns["cls"].measures["value"].tolist() == part.numbers.tolist()


def test_of_a_hundred_thousand_shards_few_are_opened(tmp_path):
    count = 100_000
    names = [f"{shard:06d}.tar" for shard in range(count)]
    numbers = {"num_samples": 1000, "num_pads": 0, "num_bytes": 100_000_000}
    columns = {
        "path": names,
        **{name: np.full(count, each) for name, each in numbers.items()},
        "checksum": [""] * count,
    }
    manifest = Manifest(Shards.of_columns(columns), (), 192, 14, "none", {})
    subject = Subject(Source(str(tmp_path), manifest, OrderOptions(0, True, 192, 14, "pad")))
    runs, is_exact = planned_runs(subject, 256 * 1024**2, 0)
    assert not is_exact and len(runs) == len({run.shard for run in runs}) == 256
    assert sum(run.stop - run.first for run in runs) * 100_000 <= 256 * 1024**2
    assert all(0 <= run.first < run.stop <= 1000 for run in runs)
