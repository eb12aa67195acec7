import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_expander

from tars import archive, archives, by_tarfile
from wdsplit.errors import InputError
from wdsplit.tar.names import pad_key
from wdsplit.tar.samples import group_samples
from wdsplit.tar.scan import scan_tar

KEYS = ("a", "b", "dir/a", "dir.x/b", "größe", "a b", "_x2E", "__a", "x__/c")
FIELDS = ("jpg", "JPG", "seg.png", "cls", "tar.gz")
NO_SAMPLES = ("README", "dir/LICENSE", "__meta__/info.json", "__a__/b.jpg", "a.", ".hidden", "dir/._a.jpg")


def tar_of(names, **options):
    return by_tarfile([(name, name.encode("utf-8", "surrogateescape")) for name in names], **options)


def grouped(names, **options):
    return group_samples(scan_tar(memoryview(tar_of(names, **options))))


def by_webdataset(data):
    source = {"url": "a.tar", "stream": io.BytesIO(data)}
    return list(group_by_keys(tar_file_expander([source])))


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(FIELDS)), max_size=8))
def test_samples_are_those_of_webdataset_or_refused_as_they_are_there_or_come_twice(members):
    data = tar_of([f"{key}.{field}" for key, field in members])
    try:
        samples = group_samples(scan_tar(memoryview(data)))
    except InputError as error:
        keys = [key for row, (key, _) in enumerate(members) if row == 0 or members[row - 1][0] != key]
        lower = [(key, field.lower()) for key, field in members]
        assert len(set(keys)) < len(keys) or len(set(lower)) < len(lower), error
        return
    read = by_webdataset(data)
    assert samples.keys.to_pylist() == [sample["__key__"] for sample in read]
    fields = dict.fromkeys(name for sample in read for name in sample if not name.startswith("__"))
    assert tuple(samples.field_counts) == tuple(fields)
    assert len(samples.left_out) == 0


@given(archives())
def test_the_offsets_are_those_of_a_shard_that_we_wrote(built):
    samples = group_samples(scan_tar(memoryview(built.data)))
    assert samples.offsets.tolist() == built.offsets.tolist()
    assert samples.offsets.dtype == np.int64
    assert samples.keys.to_pylist() == [sample[0][0].partition(".")[0] for sample in built.samples]


@given(st.lists(st.sampled_from(NO_SAMPLES), max_size=4), st.lists(st.sampled_from(NO_SAMPLES), max_size=4))
def test_what_names_no_sample_is_left_out_and_told(first, second):
    names = [*first, "a.jpg", *second, "a.cls", *first, "b.jpg", *second]
    samples = grouped(names)
    assert samples.keys.to_pylist() == ["a", "b"]
    assert tuple(samples.field_counts) == ("jpg", "cls")
    left_out = [*first, *second, *first, *second]
    assert samples.left_out.to_pylist() == left_out
    scan = scan_tar(memoryview(tar_of(names)))
    assert samples.offsets.tolist() == [0, int(scan.tops[scan.names.index(b"b.jpg")]), scan.end]


def test_a_tar_of_nothing_that_names_a_sample_has_none():
    for names in ([], ["README"]):
        samples = grouped(names)
        assert (len(samples.keys), samples.offsets.tolist(), tuple(samples.field_counts)) == (0, [0], ())


@pytest.mark.parametrize(
    ("names", "cause", "said"),
    [
        (["a.jpg", "b.jpg", "b.cls", "a.cls"], "are not together", "'a'"),
        *((["x.jpg", "a.jpg", "a.cls", name], "duplicate field", repr(name)) for name in ("a.jpg", "a.JPG", "./a.jpg")),
        *((["a.jpg", f"a.{name}"], "invalid field name", f"'a.{name}'") for name in ("__key__", "__bad__", "__PAD__")),
        ([f"img.{number:04d}.jpg" for number in range(1001)], "too many extensions", "1000.jpg"),
        (["a.jpg", "b\udcff.jpg"], "UTF-8", "b\\\\xff.jpg"),
        ([f"{pad_key(0, 0)}.jpg", "a.jpg"], "pad is not at the end", pad_key(0, 0)),
        (["a.jpg", f"{pad_key(0, 0)}.jpg", "b.jpg", f"{pad_key(0, 1)}.jpg"], "pad is not at the end", pad_key(0, 0)),
    ],
    ids=range(11),
)
def test_members_that_make_no_samples_are_refused_by_name(names, cause, said):
    with pytest.raises(InputError, match=cause) as caught:
        grouped(names, format=tarfile.GNU_FORMAT)
    assert said in str(caught.value)
    assert cause != "are not together" or caught.value.key == "a"


def test_pads_at_the_end_and_the_samples_of_each_field_are_counted():
    built = archive(["a", "b", pad_key(0, 0), pad_key(0, 1)], {"jpg": [b"1"] * 4})
    samples = group_samples(scan_tar(memoryview(built.data)))
    assert (len(samples.keys), samples.num_pads) == (4, 2)
    counts = grouped(["a.jpg", "a.cls", "b.jpg", "c.0001.jpg", "c.jpg", "d.cls"]).field_counts
    assert list(counts.items()) == [("jpg", 3), ("cls", 2), ("0001.jpg", 1)]
