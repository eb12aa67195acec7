"""Fields that were joined later: samples have them as if the dataset had been converted with them."""

import functools
import json
import shutil
import tarfile
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
import webdataset

import wdsplit
from commands import done
from made_datasets import converted
from tables import files_of
from wdsplit import AnnotateOptions
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError
from wdsplit.shards.annotations import MISSING, write_side_shards
from wdsplit.shards.manifest import Shards
from wdsplit.shards.table import parse_shards
from wdsplit.storage.opening import open_storage

NUM_ROWS, PLAN = 101, {"shards": 7, "lanes": 4, "window": 4}
OWN, JOINED = {"bin": "image", "cls": "row"}, ("latent.npy", "caption.txt", "mask.bin")


def table(image_bytes, mask_bytes=50):
    """Return a table with keys that are escaped in part, and with nulls: row 5 has none of the joined columns."""
    rows = np.arange(NUM_ROWS)
    drawn = np.random.default_rng(7)
    return pa.table(
        {
            "id": [f"a/é.{row}" if row % 3 else f"b{row}" for row in rows],
            "image": [drawn.bytes(image_bytes + row) for row in rows],
            "row": rows,
            "latent": pa.array([None if row == 5 else [row / 7] * 12 for row in rows], pa.list_(pa.float32(), 12)),
            "caption": [None if row % 5 == 0 else f"Bild {row}, größer" for row in rows],
            "mask": [None if row == 5 else drawn.bytes(mask_bytes + row) for row in rows],
            "weight": rows % 3,
        }
    )


def annotate(data, rows, name="later", **options):
    columns = dict(zip(JOINED, ("latent", "caption", "mask"), strict=True))
    return wdsplit.annotate(str(data), rows, "id", name, AnnotateOptions(mapping=columns, **options))


class Made:
    """A dataset with all columns, and one to which some were joined later.

    Attributes:
        whole: The dataset with all columns.
        data: The one with joined columns; `annotation` is what was joined.
    """

    def __init__(self, folder, rows):
        fields = OWN | dict(zip(JOINED, ("latent", "caption", "mask"), strict=True))
        plan = {**PLAN, "key": "id", "null": "omit", "keep": ("weight",)}
        self.whole = converted(folder / "whole", rows, mapping=fields, **plan)
        self.data = converted(folder / "data", rows, mapping=OWN, **plan)
        order = np.random.default_rng(0).permutation(NUM_ROWS)
        self.annotation = annotate(self.data, rows.take(order))


SIZES = [(60, 50), (30_000, 50), (60, 30_000)]
"""Bytes of images and of masks."""


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Return a function that makes the datasets of some sizes, once."""
    return functools.cache(lambda sizes: Made(tmp_path_factory.mktemp("made"), table(*sizes)))


@pytest.fixture(params=SIZES, ids=["small", "images", "masks"])
def made(request, make):
    return make(request.param)


@pytest.fixture
def small(make):
    return make(SIZES[0])


@pytest.fixture
def data(small, tmp_path):
    """Return a copy of a dataset with joined fields."""
    return Path(shutil.copytree(small.data, tmp_path / "data"))


def plain(sample):
    """Return a sample with the name of its shard, as values that can be compared."""
    assert "/fields/" not in sample["__url__"], "it names the shard of the dataset"
    given = {"__url__": sample["__url__"].rpartition("/")[2]}
    return sorted((name, given.get(name, value)) for name, value in sample.items())


def samples_of(dataset):
    return list(map(plain, dataset))


def loaded(dataset, epochs=2, batch_size=8, **options):
    loader = wdsplit.Loader(dataset.map(plain), batch_size, collate_fn=list, **options)
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found += list(loader)
    return found


def columns(dataset, **options):
    """Return batches that were collated, without a stage that sees samples."""
    loader = wdsplit.Loader(dataset.decode().to_tuple("__key__", "latent.npy", "mask.bin", "cls"), 8, **options)
    return [[keys, latents.tolist(), masks, labels.tolist()] for keys, latents, masks, labels in loader]


def resumed(path, **options):
    """Return what comes after some steps without the joined fields."""
    loader = wdsplit.Loader(wdsplit.Dataset(path), 8, collate_fn=list)
    list(islice(loader, 4))
    dataset = wdsplit.Dataset(path, **options).map(plain)
    other = wdsplit.Loader(dataset, 8, collate_fn=list, num_workers=2, workers="thread")
    other.load_state_dict(loader.state_dict())
    return list(other)


def mixed(path, **options):
    return samples_of(wdsplit.mix({"one": 1.0}, datasets={"one": path}, num_samples=60, **options))


def numbered(path, **options):
    samples = wdsplit.Samples(path, **options)
    return [plain(samples[number]) for number in (3, -1, "b9")] + list(map(plain, samples[20:90]))


def opened(read, path, **options):
    return read(wdsplit.Dataset(path, **options))


WAYS = {
    "iterated": partial(opened, samples_of),
    "one sample": partial(opened, lambda dataset: [plain(dataset.sample("b9")), plain(dataset.sample(5))]),
    "loader": partial(opened, loaded),
    "workers": partial(opened, partial(loaded, num_workers=3, workers="thread"), lanes=3, window=9, limit=90),
    "resumed": resumed,
    "mixed": mixed,
    "numbered": numbered,
    "verified": partial(opened, samples_of, verify=True),
    "chosen": partial(opened, samples_of, where="row > 30 and weight == 1"),
    "columns": partial(opened, columns, where="row != 5"),
    "repeated": partial(opened, samples_of, repeat="weight"),
    "packed": partial(opened, loaded, pack="row", capacity=110),
    "some fields": partial(opened, samples_of, fields=["latent.npy", "cls"]),
    "one field": partial(opened, samples_of, fields=["caption.txt"]),
}


# What is read


OF_LARGE = ("loader", "numbered", "one field")
"""What reads large fields in another way than small ones."""
LARGE = [*((sizes, way) for sizes in SIZES[1:] for way in OF_LARGE), ((30_000, 30_000), "chosen")]


@pytest.mark.parametrize(("made", "way"), [*((SIZES[0], way) for way in WAYS), *LARGE], indirect=["made"])
def test_samples_have_joined_fields_as_if_they_had_been_converted_with_them(made, way):
    assert WAYS[way](made.data, join=["later"]) == WAYS[way](made.whole)


@pytest.mark.parametrize(("made", "cache_size"), [(SIZES[0], 10**9), (SIZES[1], 200_000)], indirect=["made"])
def test_side_shards_are_cached_as_shards_are(made, bucket, tmp_path, fault_proxy, cache_size):
    """With the smaller size a tar of large images has no room, but the other one of its samples has."""
    cache = {"cache_dir": tmp_path / "cache", "cache_size": cache_size}
    remote = wdsplit.Dataset(bucket.put(made.data), join=["later"], **cache)
    assert loaded(remote) == loaded(wdsplit.Dataset(made.whole))
    if cache_size == 10**9:
        assert len(list((tmp_path / "cache").rglob("*.shard"))) == 2 * PLAN["shards"]
        fetched = [each.request.path for each in fault_proxy.exchanges if each.request.path.endswith(".tar")]
        assert len(fetched) == len(set(fetched)) == 2 * PLAN["shards"], "for all epochs"


@pytest.mark.parametrize("made", SIZES[:1], indirect=True)
def test_only_what_is_asked_for_is_read(bucket, fault_proxy, made):
    url = bucket.put(made.data)

    def requests(**options):
        before = len(fault_proxy.exchanges)
        dataset = wdsplit.Dataset(url, seed=3, **options)
        assert len(samples_of(dataset)) >= NUM_ROWS
        found = [each for each in fault_proxy.exchanges[before:] if ".tar" in each.request.path]
        of_sides = [each for each in found if "/fields/" in each.request.path]
        return found, of_sides

    found, of_sides = requests(join=["later"], fields=["latent.npy", "caption.txt"])
    assert found == of_sides != [], "neither the tars of the dataset nor their places"
    found, of_sides = requests(join=["later"], fields=["cls"])
    assert found and not of_sides
    both, of_sides = requests(join=["later"])
    own, nothing = requests()
    assert not nothing
    assert len(both) - len(of_sides) == len(own), "a reader of joined fields reads no more of the rest"
    assert sum(each.bytes_sent for each in both) - sum(each.bytes_sent for each in of_sides) == sum(
        each.bytes_sent for each in own
    )
    assert {each.request.method for each in both} == {"GET"}


def test_fields_are_decoded_by_their_names_and_types(small):
    dataset = wdsplit.Dataset(small.data, join=["later"], fields=["latent.npy", "caption.txt", "cls"])
    for sample in dataset.decode():
        row = sample["cls"]
        if row != 5:
            assert np.array_equal(sample["latent.npy"], np.full(12, np.float32(row / 7)))
        assert sample.get("caption.txt") == (f"Bild {row}, größer" if row % 5 else None)
    assert [field.name for field in dataset.fields] == ["bin", "cls", *JOINED]
    latent = dataset.fields[2]
    raw = wdsplit.Samples(small.data, join=["later"])[0]["latent.npy"]
    assert list(wdsplit.decode_field([raw], latent)[0].as_py()) == [0.0] * 12


# What is written


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its tars open
def test_other_readers_see_the_samples_of_the_shards_in_their_order(small):
    folder = Path(small.data)
    for number in range(PLAN["shards"]):
        name = f"{number:06d}.tar"
        own, side = (
            list(webdataset.WebDataset(str(place / name), shardshuffle=False, empty_check=False))
            for place in (folder, folder / small.annotation.folder)
        )
        assert [each["__key__"] for each in side] == [each["__key__"] for each in own]
        whole = {each["cls"]: each for each in webdataset.WebDataset(str(Path(small.whole) / name), shardshuffle=False)}
        for shard, joined in zip(own, side, strict=True):
            for field in JOINED:
                assert joined.get(field) == whole[shard["cls"]].get(field), "of pads too"
            assert (MISSING in joined) == (shard["cls"] == b"5"), "a tar needs a member of each sample"
    with tarfile.open(folder / small.annotation.folder / "000000.tar") as tar:
        assert {member.name.partition(".")[2] for member in tar} <= {*JOINED, MISSING}


def test_side_shards_are_no_input_and_no_shards(data, tmp_path):
    wdsplit.convert(str(data), tmp_path / "again", wdsplit.ConvertOptions(**PLAN))
    again = wdsplit.Samples(tmp_path / "again")
    assert {sample["cls"] for sample in again} == {sample["cls"] for sample in wdsplit.Samples(data)}
    assert (len(again), list(again[0])[4:]) == (NUM_ROWS, ["bin", "cls"])
    tars = tmp_path / "tars"
    tars.mkdir()
    for path in data.glob("*.tar"):
        shutil.copy(path, tars)
    before = wdsplit.index_tars(tars)
    annotate(tars, table(60))
    (tars / "wdsplit.json").unlink()
    assert wdsplit.index_tars(tars).fingerprint == before.fingerprint
    assert len(list(wdsplit.Samples(tars, join=["later"]))) == NUM_ROWS


# What is refused


def test_what_cannot_be_joined_is_refused_with_a_remedy(data, tmp_path):
    rows = table(60)
    with pytest.raises(InputError, match=r"there is no annotation 'latr'(.|\n)*did you mean 'later'"):
        wdsplit.Dataset(data, join=["latr"])
    with pytest.raises(InputError, match=r"join = 'later': expected a list of names, \['later'\]"):
        wdsplit.Dataset(data, join="later")
    with pytest.raises(InputError, match=r"no such field(.|\n)*did you mean 'latent.npy'"):
        wdsplit.Dataset(data, join=["later"], fields=["latent"])
    with pytest.raises(InputError, match=r"no such field(.|\n)*if an annotation has it, join the annotation too"):
        wdsplit.Dataset(data, fields=["latent.npy"])
    with pytest.raises(ValueError, match=r"latent(.|\n)*those of an annotation need join="):
        next(iter(wdsplit.Dataset(data).to_tuple("latent.npy")))
    wdsplit.annotate(str(data), rows.select(["id", "weight"]), "id", "number", mapping={"number": "weight"})
    with pytest.raises(InputError, match="'number' has no fields to join"):
        wdsplit.Dataset(data, join=["number"])
    annotate(data, rows, "same")
    with pytest.raises(InputError, match=r"'latent.npy'(.|\n)*in annotation 'later', and in annotation 'same'"):
        wdsplit.Samples(data, join=["later", "same"])
    with pytest.raises(InputError, match="a field 'bin' already"):
        wdsplit.annotate(str(data), rows.select(["id", "mask"]), "id", "x", mapping={"bin": "mask"})
    with pytest.raises(InputError, match=r"tars without a manifest(.|\n)*wdsplit index"):
        wdsplit.Dataset(str(data / "*.tar"), join=["later"], cache_dir=tmp_path / "cache")


def table_in(folder):
    """Return the path of the table of side shards."""
    (table,) = folder.glob("shards@*.parquet")
    return table


@pytest.mark.parametrize("change", ["other shards", "another table", "fewer shards", "fewer samples"])
def test_fields_of_other_shards_are_refused(data, tmp_path, change):
    (pointer,) = (data / "fields").glob("later@*.json")
    content = orjson.loads(pointer.read_bytes())
    if change == "other shards":
        converted(tmp_path, table(61), mapping=OWN, **{**PLAN, "key": "id", "overwrite": True})
        shutil.copytree(tmp_path / "out", data, dirs_exist_ok=True)
        message = "annotation 'later' was made for other shards"
    else:
        other = converted(tmp_path, table(60), mapping=OWN, **{**PLAN, "key": "id", "shards": 6})
        made = annotate(other, table(60))
        shutil.copy(table_in(Path(other) / made.folder), table_in(data / content["folder"]))
        message = "the table of side shards does not belong to its annotation"
    if change == "fewer shards":
        content["shards_checksum"] = made.shards_checksum
        message = "shards.parquet cannot be read(.|\n)*6 rows"
    if change == "fewer samples":
        six = parse_shards(table_in(Path(other) / made.folder).read_bytes(), 6).table
        seven = pa.concat_tables([six, six.slice(0, 1).set_column(0, six.schema.field(0), pa.array(["z.tar"]))])
        storage, version = open_storage(str(data)), content["fingerprint"]
        content["shards_checksum"] = write_side_shards(storage, content["folder"], Shards(seven), version)
        message = "annotation 'later' does not have the samples of each shard"
    pointer.write_bytes(orjson.dumps(content))
    with pytest.raises((InputError, CorruptDataError), match=message):
        wdsplit.Dataset(data, join=["later"])
    assert len(samples_of(wdsplit.Dataset(data))) == NUM_ROWS, "the dataset itself can be read"


@pytest.mark.parametrize("change", ["replaced", "dropped"])
def test_an_annotation_that_is_replaced_while_it_is_read_is_an_error_that_says_so(data, change):
    dataset = wdsplit.Dataset(data, join=["later"])
    if change == "dropped":
        wdsplit.drop_annotation(str(data), "later")
    else:
        annotate(data, table(61), overwrite=True)
    with pytest.raises(DatasetNotFoundError, match=r"annotation 'later' was replaced or removed(.|\n)*open"):
        samples_of(dataset)


# Damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [("000003.tar", "changed"), ("000003.tar.places", "changed"), ("000003.tar.places", "lost"), ("table", "shorter")],
)
def test_verify_finds_what_is_damaged(data, small, name, damage):
    path = data / small.annotation.folder / name
    path = table_in(path.parent) if name == "table" else path
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage != "lost":
        content[-100] ^= 1
        path.write_bytes(content if damage == "changed" else content[:-600])
    problems = wdsplit.verify(str(data)).problems
    assert problems and all(str(path).removesuffix(".places") in problem.place for problem in problems)
    wdsplit.drop_annotation(str(data), "later")
    assert wdsplit.verify(str(data)).problems == ()


def test_verify_finds_a_side_shard_of_another_shard(data, small):
    folder = data / small.annotation.folder
    other = Path(shutil.copytree(folder, data.parent / "other"))
    (pointer,) = (data / "fields").glob("later@*.json")
    content = orjson.loads(pointer.read_bytes())
    shards = parse_shards(table_in(folder).read_bytes(), PLAN["shards"]).table
    swapped = shards.take([1, 0, *range(2, PLAN["shards"])]).set_column(0, "path", shards.column("path"))
    for name, source in (("000000.tar", "000001.tar"), ("000001.tar", "000000.tar")):
        for ending in ("", ".places"):
            shutil.copy(other / f"{source}{ending}", folder / f"{name}{ending}")
    storage, version = open_storage(str(data)), content["fingerprint"]
    content["shards_checksum"] = write_side_shards(storage, content["folder"], Shards(swapped), version)
    pointer.write_bytes(orjson.dumps(content))
    found = wdsplit.verify(str(data)).problems
    assert [problem.cause for problem in found] == ["a side shard has other keys than its shard"] * 2


@pytest.mark.parametrize("fields", [None, ["latent.npy", "cls"]])
def test_a_damaged_payload_is_an_error_with_its_place_or_replaced(data, small, fields):
    path = data / small.annotation.folder / "000002.tar"
    with tarfile.open(path) as tar:
        member = tar.getmembers()[4]
    content = bytearray(path.read_bytes())
    content[member.offset_data + 1] ^= 255
    path.write_bytes(content)
    key = member.name.partition(".")[0]
    with pytest.raises(CorruptDataError) as caught:
        samples_of(wdsplit.Dataset(data, join=["later"], fields=fields))
    assert str(path) in caught.value.place and key in caught.value.place
    assert "make the annotation again with --overwrite" in caught.value.remedy
    lenient = wdsplit.Dataset(
        data, join=["later"], fields=fields, on_bad_sample="substitute", bad_samples_file=data.parent / "bad.jsonl"
    )
    expected = samples_of(wdsplit.Dataset(small.data, join=["later"], fields=fields))
    found = samples_of(lenient)
    assert len(found) == len(expected)
    assert len([1 for one, other in zip(found, expected, strict=True) if one != other]) == 1
    (line,) = (data.parent / "bad.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == key
    assert len(samples_of(wdsplit.Dataset(data))) == len(expected)


# Commands


def test_commands_show_joined_fields(data, tmp_path):
    assert "annotation later: fields latent.npy (fixed_size_list" in done("inspect", data).out
    assert "latent.npy" in done("inspect", data, "--json").json["annotations"]["later"]
    assert "latent.npy: " in done("inspect", data, "--sample", 3, "--join", "later").out
    done("report", data, "--join", "later", "-o", tmp_path / "report.html")
    assert "latent.npy" in (tmp_path / "report.html").read_text()
    done("batch", data, "--step", 1, "--batch-size", 4, "--join", "later", "-o", tmp_path / "seen")
    assert len(list((tmp_path / "seen").rglob("*.mask.bin"))) == 4
    assert "samples/s" in done("bench", data, "--join", "later", "--fields", "cls").out
    before = files_of(data)
    source = tmp_path / "more.parquet"
    pa.parquet.write_table(table(60).select(["id", "latent"]), source)
    said = done("annotate", data, source, "--key", "id", "--map", "again.npy=latent").out
    assert "annotation 'more': fields again.npy (fixed_size_list" in said
    assert f"wdsplit.Dataset('{data}', join=['more'])" in said
    assert "removed annotation 'more'" in done("annotate", data, "--drop", "more").out
    assert files_of(data) == before
