"""Folders of media files become shards: the bytes of the files, whole, once each, however they are converted."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

import wdsplit
from media_files import write_files
from stops import by_shares, stopped_at
from tables import all_samples, converted, files_of, options, real_samples, shard_files, write_table
from wdsplit import convert
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


@pytest.mark.parametrize("changes", [{}, {"where": "label == 1", "shuffle": True}, {"limit": 7}], ids=str)
def test_a_folder_gives_the_shards_of_the_same_files_in_a_table(changes, photos, tmp_path, small_batches):
    """Whatever is selected, and however it is shuffled."""
    path = write_table(tmp_path / "a.parquet", as_table(photos, NAMES))
    plan = {"shards": 2, "shuffle": False, **changes}
    converted(path, tmp_path / "of table", keep=("file_name",), mapping={"jpg": "image", "cls": "label"}, **plan)
    manifest = converted(photos, tmp_path / "out", keep=("file_name",), **plan)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "of table")
    assert [(field.name, field.encoding) for field in manifest.fields] == [("jpg", "bytes"), ("cls", "integer")]


def test_images_of_every_kind_are_decoded_by_the_loader(tmp_path):
    suffixes = sorted(suffix for suffix, (kind, _) in MEDIA_SUFFIXES.items() if kind == "image")
    for width, suffix in enumerate(suffixes, 1):
        path = tmp_path / "in" / "cat" / f"a{suffix.upper()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = Image.new("L" if suffix == ".pgm" else "RGB", (width, 5), 100)
        pixels.save(path, Image.registered_extensions()[suffix])
    converted(str(tmp_path / "in"), tmp_path / "out", shards=1, key="file_name")
    samples = {sample["__key__"]: sample for sample in wdsplit.Dataset(tmp_path / "out").decode("pil")}
    sizes = [samples[f"cat/a_x2E{suffix[1:].upper()}"]["jpg"].size for suffix in suffixes]
    assert sizes == [(width, 5) for width in range(1, len(suffixes) + 1)]


def test_jobs_shares_and_an_interruption_change_nothing(photos, tmp_path, small_batches):
    plan = {"shards": 4, "shuffle": True, "memory": 1}
    converted(photos, tmp_path / "one", **plan)
    converted(photos, tmp_path / "processes", jobs=5, **plan)
    with stopped_at(done=2) as stop:
        convert(photos, tmp_path / "resumed", options(**plan), stop)
    converted(photos, tmp_path / "resumed", jobs=2, resume=True, **plan)
    by_shares(photos, tmp_path / "shares", plan)
    for other in ("processes", "resumed", "shares"):
        assert files_of(tmp_path / other) == files_of(tmp_path / "one")


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
    converted(photos, tmp_path / "stems", key="stem", shards=1, columns=("label",))
    assert [key for key, _ in all_samples(tmp_path / "stems")] == [name.rpartition(".")[0] for name in NAMES]
    assert [fields for _, fields in real_samples(tmp_path / "stems")][::20] == [{"cls": b"0"}, {"cls": b"1"}]
    converted(photos, tmp_path / "names", key="file_name", shards=1)
    dataset = wdsplit.Dataset(str(tmp_path / "names"), shuffle=False, lanes=1)
    assert [sample["__key__"] for sample in dataset][:1] == ["cat/00_x2Ejpg"]
    converted(photos, tmp_path / "fields", columns=("image", "file_name"), shards=1)
    assert all_samples(tmp_path / "fields")[0][1].keys() == {"jpg", "txt"}
    write_files(photos, "cat/00.png")
    with pytest.raises(InputError, match="duplicate key"):
        converted(photos, tmp_path / "out", key="stem")


def test_an_error_about_a_row_names_its_file(photos, tmp_path):
    rows = [{"file_name": name, "text": None if name == "dog/03.JPEG" else "x"} for name in NAMES]
    (Path(photos) / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="a value is null") as caught:
        converted(photos, tmp_path / "out")
    assert caught.value.place.startswith(f"{photos}/dog/03.JPEG, ")


def test_a_folder_in_a_bucket_gives_the_shards_of_the_same_folder_on_disk(bucket, tmp_path, small_batches):
    names = NAMES[::3]
    converted(write_files(tmp_path / "some" / "photos", *names), tmp_path / "disk", shards=4)
    write_files(bucket.folder / "photos", *names)
    (bucket.folder / "photos" / "notes.txt").write_text("x")
    remote = f"{bucket.url}/photos"
    for number, inputs in enumerate((remote, f"{remote}/*/*", [f"{remote}/{name}" for name in names])):
        converted(inputs, tmp_path / str(number), shards=4, jobs=2 - number // 2)
        assert shard_files(tmp_path / str(number)) == shard_files(tmp_path / "disk")

    def spoil(progress):
        if progress.done == 1:
            (bucket.folder / "photos" / names[-1]).write_bytes(b"other")

    with pytest.raises(wdsplit.WdsplitError) as caught:
        convert(remote, tmp_path / "out", options(shards=2), spoil)
    assert names[-1] in caught.value.place
