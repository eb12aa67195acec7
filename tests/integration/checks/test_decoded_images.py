"""`bench --bad-samples-file` lists before a training what `decode` and `resized` fail on; errors name the files."""

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


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a dataset of a folder with images of every oddity."""
    folder = tmp_path_factory.mktemp("odd")
    images = {
        f"{'cat' if number % 2 else 'dog'}/{name}": data for number, (name, data) in enumerate(odd_images().items())
    }
    converted(write_images(folder / "photos", images), folder / "out", shards=3)
    return str(folder / "out")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of odd files
@pytest.mark.parametrize("stage", [("--decode", "rgb8"), ("--resize", 8)], ids=str)
def test_bad_are_exactly_the_images_that_a_training_fails_on(photos, tmp_path, stage):
    handler = resized(8) if stage[0] == "--resize" else "rgb8"
    decode, failing = decode_sample_stage(handler).sample, {}
    for sample in wdsplit.Dataset(photos, shuffle=False):
        try:
            decode(sample)
        except (CorruptDataError, InputError) as error:
            failing[sample["__key__"]] = str(error)
    file = tmp_path / "bad.jsonl"
    said = run("bench", photos, *stage, "--batch-size", 5, "--workers", 1, "--bad-samples-file", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["key"]: line["message"] for line in lines} == failing
    accepted = {"warned.jpg"} if stage[0] == "--decode" else set()  # Pillow decodes what simplejpeg warns of
    assert {Path(line["file_name"]).name for line in lines} == BAD - accepted
    assert said.code == 1 and f"{len(lines)} bad samples: leave them out with `wdsplit view {photos} clean" in said.out
    assert "file already exists" in refused(2, "bench", photos, "--bad-samples-file", file)
    (card,) = (card for card in wdsplit.Dataset(photos).preview(35).cards if card.file.endswith("/scans.jpg"))
    assert [item.text.partition(",")[0] for item in card.items] == ["unreadable as image"], "of hundreds of scans"
    wdsplit.make_view(photos, stage[0][2:], exclude=str(file))
    clean = ("--view", stage[0][2:], "--bad-samples-file", tmp_path / "none.jsonl")
    assert "no bad samples" in done("bench", photos, *stage, "--batch-size", 5, *clean).out


def test_damaged_samples_and_shards_are_bad_too_and_the_others_are_decoded(tmp_path):
    images = [encoded(picture(9, number + 1), "PNG") for number in range(40)]
    path = write_table(tmp_path / "a.parquet", {"image": images, "label": [0, 1] * 20})
    converted(path, tmp_path / "out", shards=4, shuffle=False)
    damage_header(tmp_path / "out", 3)
    lost = truncate_shard(tmp_path / "out", 15)
    made = run("bench", tmp_path / "out", "--decode", "pil", "--json", "--bad-samples-file", tmp_path / "bad.jsonl")
    assert (made.code, made.json["bad_samples"]) == (1, len(lost) + 1)
    lines = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())
    assert {int(line["key"]) for line in lines} == {3, *lost}
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


@pytest.mark.parametrize(("num_workers", "batched"), [(0, False), (1, True)])
def test_errors_name_the_file(four, num_workers, batched):
    dataset = wdsplit.Dataset(f"{four}/", shuffle=False).decode(resized(8))
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
