"""Folders of media files become shards: the bytes of the files, whole, once each, however they are converted."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

import wdsplit
from media_files import write_files
from tables import all_samples, converted, files_of, options, real_samples, shard_files, write_table
from wdsplit import commit_shares, convert, convert_share, plan_shares
from wdsplit.errors import InputError, OutputExistsError
from wdsplit.fields.infer import MEDIA_SUFFIXES
from wdsplit.tables import media, payloads

NAMES = [
    f"{name}/{number:02d}.{suffix}" for name in ("cat", "dog") for number, suffix in enumerate(["jpg", "JPEG"] * 10)
]


@pytest.fixture
def photos(tmp_path):
    return write_files(tmp_path / "photos", *NAMES)


@pytest.fixture
def small_batches(monkeypatch):
    """Cut rows and payloads into batches of a few files."""
    monkeypatch.setattr(media, "GROUP_ROWS", 7)
    monkeypatch.setattr(payloads, "BATCH_BYTES", 2000)


def as_table(folder, names):
    """Return a table of the files, as a user would write it."""
    classes = sorted({name.partition("/")[0] for name in names})
    return pa.table(
        {
            "image": pa.array([(Path(folder) / name).read_bytes() for name in names], pa.large_binary()),
            "label": [classes.index(name.partition("/")[0]) for name in names],
            "file_name": list(names),
        }
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_folder_gives_the_shards_of_the_same_files_in_a_table(shuffle, photos, tmp_path, small_batches):
    path = write_table(tmp_path / "a.parquet", as_table(photos, NAMES))
    plan = {"shards": 6, "mapping": {"jpg": "image", "cls": "label"}, "shuffle": shuffle}
    converted(path, tmp_path / "of table", keep=("file_name",), **plan)
    manifest = converted(photos, tmp_path / "out", shards=6, shuffle=shuffle)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "of table")
    assert manifest.num_samples == len(NAMES)
    assert [(field.name, field.encoding) for field in manifest.fields] == [("jpg", "bytes"), ("cls", "integer")]


@pytest.mark.parametrize("changes", [{"group_by": "label"}, {"where": "label == 1"}, {"limit": 7}])
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_are_selected_and_grouped_as_those_of_a_table(changes, shuffle, photos, tmp_path, small_batches):
    path = write_table(tmp_path / "a.parquet", as_table(photos, NAMES))
    plan = {"shards": 2, "shuffle": shuffle, "mapping": {"jpg": "image", "cls": "label"}, **changes}
    for inputs, out in ((path, "of table"), (photos, "out")):
        converted(inputs, tmp_path / out, keep=("file_name",), **plan)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "of table")


@pytest.mark.parametrize("suffix", [suffix for suffix, (kind, _) in MEDIA_SUFFIXES.items() if kind == "image"])
def test_images_of_every_kind_are_decoded_by_the_loader(suffix, tmp_path):
    pixels = Image.new("L" if suffix == ".pgm" else "RGB", (3, 5), 100)
    for name in ("cat/1", "dog/2"):
        path = tmp_path / "photos" / f"{name}{suffix.upper()}"
        path.parent.mkdir(parents=True)
        pixels.save(path, Image.registered_extensions()[suffix])
    converted(str(tmp_path / "photos"), tmp_path / "out", shards=1)
    dataset = wdsplit.Dataset(str(tmp_path / "out"), shuffle=False).decode("pil")
    samples = list(dataset)
    assert [sample[MEDIA_SUFFIXES[suffix][1]].size for sample in samples] == [(3, 5), (3, 5)]
    assert [dataset.classes[sample["cls"]] for sample in samples] == ["cat", "dog"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_jobs_and_shares_change_nothing(shuffle, photos, tmp_path, small_batches):
    plan = {"shards": 4, "shuffle": shuffle, "memory": 1}
    converted(photos, tmp_path / "one", **plan)
    converted(photos, tmp_path / "two", jobs=2, **plan)
    converted(photos, tmp_path / "processes", jobs=5, **plan)
    plan_shares(photos, tmp_path / "shares", tmp_path / "plan", options(**plan))
    for name in ("scatter", "write") if shuffle else ("write",):
        for share in range(3):
            convert_share(tmp_path / "plan", share, 3, only=name)
    commit_shares(tmp_path / "plan")
    for other in ("two", "processes", "shares"):
        assert files_of(tmp_path / other) == files_of(tmp_path / "one")


def test_a_run_is_resumed(photos, tmp_path):
    def stop(progress):
        if progress.done >= 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        convert(photos, tmp_path / "out", options(shards=5), stop)
    converted(photos, tmp_path / "one", shards=5)
    converted(photos, tmp_path / "out", shards=5, resume=True)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


@pytest.mark.parametrize(
    ("change", "found"),
    [("more", "208 bytes"), ("later", "the same size, but another modification time"), ("gone", "no such file")],
)
def test_a_file_that_changes_after_the_plan_is_named(change, found, photos, tmp_path, small_batches):
    path = Path(photos) / "dog" / "19.JPEG"

    def spoil(progress):
        if progress.done != 1:
            return
        if change == "gone":
            path.unlink()
        elif change == "more":
            path.write_bytes(bytes(208))
        else:
            os.utime(path)

    with pytest.raises(InputError, match="has changed since the folder was listed") as caught:
        convert(photos, tmp_path / "out", options(shards=2), spoil)
    assert (caught.value.place, caught.value.found) == (str(path), found)
    with pytest.raises(OutputExistsError):
        converted(photos, tmp_path / "out", shards=2, resume=True)


def test_a_file_that_cannot_be_read_is_named_and_the_run_goes_on_later(photos, tmp_path, monkeypatch, small_batches):
    path, opened = f"{photos}/dog/19.JPEG", os.open

    def refusing(name, *arguments, **keywords):
        if name == path:
            raise PermissionError(13, "Permission denied", name)
        return opened(name, *arguments, **keywords)

    with monkeypatch.context() as patched, pytest.raises(InputError, match="a media file cannot be read") as caught:
        patched.setattr(os, "open", refusing)
        converted(photos, tmp_path / "out", shards=2)
    assert (caught.value.place, caught.value.found) == (path, "Permission denied")
    assert converted(photos, tmp_path / "out", shards=2, resume=True).num_samples == len(NAMES)


def test_file_names_are_keys_or_fields_where_asked_for(photos, tmp_path):
    converted(photos, tmp_path / "stems", key="stem", shards=1)
    assert [key for key, _ in all_samples(tmp_path / "stems")] == [name.rpartition(".")[0] for name in NAMES]
    converted(photos, tmp_path / "names", key="file_name", shards=1)
    dataset = wdsplit.Dataset(str(tmp_path / "names"), shuffle=False, lanes=1)
    assert [sample["__key__"] for sample in dataset][:1] == ["cat/00_x2Ejpg"]
    converted(photos, tmp_path / "fields", columns=("image", "file_name"), shards=1)
    assert all_samples(tmp_path / "fields")[0][1].keys() == {"jpg", "txt"}


def test_two_files_of_one_stem_are_no_two_keys(photos, tmp_path):
    write_files(photos, "cat/00.png")
    with pytest.raises(InputError, match="duplicate key"):
        converted(photos, tmp_path / "out", key="stem")


def test_labels_alone_need_no_file_to_be_read(photos, tmp_path):
    converted(photos, tmp_path / "out", columns=("label",), shards=1)
    assert [fields for _, fields in real_samples(tmp_path / "out")][::20] == [{"cls": b"0"}, {"cls": b"1"}]


def test_an_error_about_a_row_names_its_file(photos, tmp_path):
    rows = [{"file_name": name, "text": None if name == "dog/03.JPEG" else "x"} for name in NAMES]
    (Path(photos) / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="a value is null") as caught:
        converted(photos, tmp_path / "out")
    assert caught.value.place.startswith(f"{photos}/dog/03.JPEG, ")


@pytest.fixture
def remote(bucket):
    """Return the URL of the same folder in a bucket."""
    write_files(bucket.folder / "photos", *NAMES)
    (bucket.folder / "photos" / "notes.txt").write_text("x")
    return f"{bucket.url}/photos"


def test_a_folder_in_a_bucket_gives_the_shards_of_the_same_folder_on_disk(photos, remote, tmp_path):
    converted(photos, tmp_path / "disk", shards=4)
    converted(remote, tmp_path / "out", shards=4, jobs=2)
    converted(f"{remote}/*/*", tmp_path / "glob", shards=4)
    converted([f"{remote}/{name}" for name in NAMES], tmp_path / "files", shards=4)
    for out in ("out", "glob", "files"):
        assert shard_files(tmp_path / out) == shard_files(tmp_path / "disk")


def test_an_object_that_changes_after_the_plan_is_refused(remote, bucket, tmp_path, small_batches):
    def spoil(progress):
        if progress.done == 1:
            (bucket.folder / "photos" / NAMES[-1]).write_bytes(b"other")

    with pytest.raises(wdsplit.WdsplitError) as caught:
        convert(remote, tmp_path / "out", options(shards=2), spoil)
    assert NAMES[-1] in caught.value.place
