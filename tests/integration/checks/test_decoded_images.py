"""`verify(decode=True)` finds before a training what `decode` and `resized` fail on, and names its files."""

import json
import logging
from pathlib import Path

import pytest

import wdsplit
from bad_samples import damage_header, truncate_shard
from commands import done, refused, run
from media_files import encoded, odd_images, picture, turned, write_images
from tables import converted, write_table
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.loading.stages.decoders import decode_sample_stage
from wdsplit.loading.stages.images import resized

BAD = {"float.tiff", "scans.jpg", "warned.jpg", "cut.jpg", "cut.png", "cut.gif", "header.jpg", "text.jpg"}
BAD |= {"program.jpg", "bomb.png"}
STAGES = [
    decode_sample_stage("pil"),
    decode_sample_stage("rgb8", exif=True),
    *(decode_sample_stage(resized(8, library=library), exif=True) for library in ("simplejpeg", "pillow")),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a dataset of a folder with images of every oddity."""
    folder = tmp_path_factory.mktemp("odd")
    images = {
        f"{'cat' if number % 2 else 'dog'}/{name}": data for number, (name, data) in enumerate(odd_images().items())
    }
    converted(write_images(folder / "photos", images), folder / "out", shards=3)
    return str(folder / "out")


def fails(stage, payload):
    try:
        stage.sample({"__key__": "k", "__url__": "u", "jpg": payload})
        return False
    except (CorruptDataError, InputError):
        return True


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of odd files
def test_bad_are_exactly_the_images_that_a_training_fails_on(photos, tmp_path):
    failing = {name for name, data in odd_images().items() if any(fails(stage, data) for stage in STAGES)}
    assert failing == BAD
    report = wdsplit.verify(photos, 2, decode=True, bad_samples_file=tmp_path / "bad.jsonl")
    assert {Path(bad.file_name).name for bad in report.images.bad} == failing
    assert len(report.problems) == len(failing)
    for bad, problem in zip(report.images.bad, report.problems, strict=True):
        sample = wdsplit.Samples(photos)[bad.key]
        with pytest.raises((CorruptDataError, InputError)) as caught:
            for stage in STAGES:
                stage.sample(sample)
        assert problem.key == bad.key and bad.shard == problem.url == sample["__url__"]
        assert problem.place == f"{caught.value.place}, file {bad.file_name!r}"
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(line["key"], line["file_name"]) for line in lines] == [(b.key, b.file_name) for b in report.images.bad]
    wdsplit.make_view(photos, "clean", exclude=str(tmp_path / "bad.jsonl"))
    clean = wdsplit.verify(photos, decode=True, view="clean", bad_samples_file=tmp_path / "none.jsonl")
    assert not clean.problems and not clean.images.bad and (tmp_path / "none.jsonl").read_text() == ""
    assert clean.images.num_images == report.images.num_images - len(BAD)
    dataset = wdsplit.Dataset(photos, view="clean").decode(resized(8)).to_tuple("jpg")
    assert sum(len(batch[0]) for batch in wdsplit.Loader(dataset, 5, num_workers=0)) == clean.images.num_images
    assert wdsplit.make_view(photos, "same", exclude=str(tmp_path / "none.jsonl"), view="clean")


def test_what_is_unusual_is_counted(photos):
    images = wdsplit.verify(photos, decode=True).images
    assert images.formats == {"jpg": {"JPEG": 9, "PNG": 8, "GIF": 2, "TIFF": 2, "WEBP": 2, "BMP": 1, "PPM": 1}}
    assert images.unusual == {
        "CMYK": 1,
        "16 bits a channel": 4,
        "EXIF rotation": 2,
        "animations, or several pages": 4,
        "a side below 32 pixels": 3,
        "a side over 10 times the other": 1,
    }


def test_a_card_does_not_decode_a_jpeg_of_hundreds_of_scans(photos):
    (card,) = (card for card in wdsplit.Dataset(photos).preview(35).cards if card.file.endswith("/scans.jpg"))
    assert [item.text.partition(",")[0] for item in card.items] == ["unreadable as image"]


def test_the_command_lists_bad_samples_and_fails(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("verify", photos, "--jobs", 1, "--decode", "--bad-samples-file", "bad.jsonl")
    assert said.code == 1
    assert "images: 35 decoded, 10 bad samples\n  jpg: 9 JPEG, 8 PNG, " in said.out
    assert "EXIF rotation: 2 (turned upright with exif=True)" in said.out
    assert f"wdsplit view {photos} clean --exclude bad.jsonl" in said.out
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == len(BAD)
    machine = run("verify", photos, "--jobs", 1, "--decode", "--json").json
    assert {Path(bad["file_name"]).name for bad in machine["images"]["bad"]} == BAD
    assert "images: not decoded (jpg); --decode finds those that fail" in done("verify", photos, "--jobs", 1).out
    assert done("verify", photos, "--jobs", 1, "--json").json["images"] is None
    for arguments in (["--decode", "--bad-samples-file", "bad.txt"], ["--bad-samples-file", "bad.jsonl"]):
        assert "invalid bad_samples_file" in refused(2, "verify", photos, "--jobs", 1, *arguments)


def test_damaged_samples_and_shards_are_bad_too_and_the_others_are_decoded(tmp_path):
    images = [encoded(picture(9, number + 1), "PNG") for number in range(40)]
    path = write_table(tmp_path / "a.parquet", {"image": images, "label": [0, 1] * 20})
    converted(path, tmp_path / "out", shards=4, shuffle=False)
    damage_header(tmp_path / "out", 3)
    lost = truncate_shard(tmp_path / "out", 15)
    report = wdsplit.verify(str(tmp_path / "out"), decode=True, bad_samples_file=tmp_path / "bad.jsonl")
    assert [int(bad.key) for bad in report.images.bad] == sorted({3, *lost})
    assert report.images.num_images == 40 - len(lost) - 1
    wdsplit.make_view(str(tmp_path / "out"), "clean", exclude=str(tmp_path / "bad.jsonl"))
    kept = wdsplit.Dataset(str(tmp_path / "out"), view="clean", shuffle=False).decode("pil")
    assert {sample["png"].size[0] - 1 for sample in kept} == {*range(40)} - {3, *lost}


@pytest.fixture
def four(tmp_path):
    """Return a dataset of four photos, the third of which is cut."""
    images = {f"{name}.jpg": turned(1) for name in ("a/1", "a/2", "b/3", "b/4")}
    images["b/3.jpg"] = images["b/3.jpg"][:700]
    converted(write_images(tmp_path / "photos", images), tmp_path / "four", shards=2, shuffle=False)
    return str(tmp_path / "four")


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batched", [False, True])
def test_errors_name_the_file(four, num_workers, batched):
    dataset = wdsplit.Dataset(four, shuffle=False).decode(resized(8))
    with pytest.raises(CorruptDataError, match=r"sample '0*2'.*, file 'b/3\.jpg'\n"):
        list(dataset)
    dataset = (dataset if batched else dataset.map(dict)).to_tuple("jpg", "cls")
    with pytest.raises(CorruptDataError, match=r"sample '0*2'.*, file 'b/3\.jpg'\n"):
        list(wdsplit.Loader(dataset, 4, num_workers=num_workers))
    loader = wdsplit.Loader(wdsplit.Dataset(four, shuffle=False).map(refuse), 4, num_workers=num_workers)
    with pytest.raises(ZeroDivisionError) as caught:
        list(loader)
    assert "file 'a/1.jpg'" in "".join([*map(str, caught.value.args), *getattr(caught.value, "__notes__", [])])


def refuse(sample):
    raise ZeroDivisionError


def test_warnings_lists_and_cards_name_the_file(four, tmp_path, caplog):
    options = {"on_bad_sample": "substitute", "max_bad_samples": 9, "bad_samples_file": tmp_path / "bad.jsonl"}
    with caplog.at_level(logging.WARNING):
        list(wdsplit.Loader(wdsplit.Dataset(four, **options).decode("pil"), 4, num_workers=0))
    assert "'00000002' (file 'b/3.jpg') of " in caplog.text
    assert json.loads((tmp_path / "bad.jsonl").read_text())["file_name"] == "b/3.jpg"
    assert "b/3.jpg" in repr(wdsplit.Dataset(four).preview(4))
    wdsplit.report(four, tmp_path / "report.html")
    assert "b/3.jpg" in (tmp_path / "report.html").read_text()


def test_a_folder_keeps_its_file_names_unless_told_otherwise(tmp_path):
    photos = write_images(tmp_path / "photos", {"a/1.jpg": turned(1), "b/2.jpg": turned(1)})
    manifest = converted(photos, tmp_path / "out", shards=1)
    assert "file_name" in manifest.samples.names
    assert [s["__key__"] for s in wdsplit.Dataset(str(tmp_path / "out"), where="file_name == 'b/2.jpg'")] == [
        "00000001"
    ]
    plain = converted(photos, tmp_path / "without", shards=1, no_keep=("file_name",))
    assert "file_name" not in plain.samples.names
    table = write_table(tmp_path / "a.parquet", {"image": [turned(1)], "file_name": ["x.jpg"]})
    assert "file_name" not in converted(table, tmp_path / "table", shards=1).samples.names
