"""Sample tables: a row for each sample beside its shard, from `convert` or `wdsplit index`."""

import datetime
import decimal
import io
import itertools
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import wdsplit
from commands import done
from media_files import encoded, write_images
from tables import converted, files_of, real_samples, tar_samples, with_class_names, write_table
from tars import by_tarfile
from wdsplit.checks.verify import verify
from wdsplit.conversion.adopt_tars import index_tars
from wdsplit.errors import CorruptDataError, InputError, OutputExistsError
from wdsplit.fields.sample_columns import MAX_COLUMNS
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import HEADER_NAME
from wdsplit.shards.sample_tables import dump_samples, names_of, read_samples
from wdsplit.storage.opening import open_storage

NUM_ROWS = 103
CLASSES = ("cat", "dog", "owl")


def image(row, kind="PNG"):
    """Return an image of 4 to 8 by 5 to 11 pixels."""
    return encoded(np.full((5 + row % 7, 4 + row % 5, 3), row % 251, np.uint8), kind)


def some_table(num_rows=NUM_ROWS):
    """Return a table with columns that sample tables keep by themselves, on request, and never."""
    rows = range(num_rows)
    table = pa.table(
        {
            "image": pa.array([image(row) for row in rows], pa.binary()),
            "label": pa.array([row % 3 for row in rows], pa.int64()),
            "score": pa.array([row / 7 for row in rows], pa.float32()),
            "good": [row % 2 == 0 for row in rows],
            "caption": [f"caption {row % 10} é" for row in rows],
            "day": [datetime.date(2024, 1, 1 + row % 28) for row in rows],
            "vector": [[float(row)] for row in rows],
            "unused": pa.array(rows, pa.int32()),
        }
    )
    return with_class_names(table, "label", CLASSES)


TABLE = some_table()
MAPPING = {"png": "image", "cls": "label", "score.json": "score", "good.cls": "good", "txt": "caption", "npy": "vector"}
KEPT = ["__key__", "num_bytes", "width", "height", "label", "score", "good"]


@pytest.fixture(scope="module")
def table_path(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("input") / "table.parquet", TABLE, 17)


@pytest.fixture(scope="module")
def dataset(table_path, tmp_path_factory):
    """Return the folder of a dataset; nothing in it is to be changed."""
    folder = tmp_path_factory.mktemp("dataset") / "out"
    converted(table_path, folder, mapping=MAPPING, shards=8)
    return folder


def tables_of(folder, url=None):
    """Return the sample tables of all shards, one after another."""
    storage = open_storage(str(url or folder))
    manifest = read_manifest(storage)
    shards = [manifest.shards[number] for number in range(len(manifest.shards))]
    tables = [read_samples(storage, shard, None, manifest.samples) for shard in shards]
    assert [len(table) for table in tables] == manifest.shards.num_real.tolist()
    return pa.concat_tables(tables)


def assert_right(folder, table=TABLE, kept=tuple(KEPT[4:])):
    """Check that the rows of all tables are those of the samples in the tars, which have numbers as keys."""
    found = tables_of(folder).to_pydict()
    samples = real_samples(folder)
    assert found["__key__"] == [key for key, _ in samples]
    assert found["num_bytes"] == [sum(map(len, fields.values())) for _, fields in samples]
    sizes = [Image.open(io.BytesIO(fields["png"])).size for _, fields in samples]
    assert list(zip(found["width"], found["height"], strict=True)) == sizes
    rows = table.take([int(key) for key, _ in samples]).to_pydict()
    for name in kept:
        assert found[name] == rows[name]
    assert list(found) == [*KEPT[:4], *kept]


# What convert writes


def test_a_row_has_the_key_the_sizes_and_the_numbers_and_classes_of_its_sample(dataset):
    assert_right(dataset)
    manifest = read_manifest(open_storage(str(dataset)))
    assert manifest.num_pads == 1
    assert names_of(manifest.samples) == {"label": CLASSES}
    assert manifest.samples.field("score").type == pa.float32()


@pytest.mark.parametrize(
    "changes",
    [
        {"shuffle": True, "memory": 1},
        {"shuffle": True, "shards": 150},
        {"where": "label != 1", "limit": 50, "pad": "drop"},
    ],
    ids=str,
)
def test_every_way_of_converting_writes_them(changes, table_path, tmp_path):
    converted(table_path, tmp_path / "out", **{"mapping": MAPPING, "shards": 8, **changes})
    assert_right(tmp_path / "out")


def test_rows_from_python_and_tars_have_them_too(dataset, tmp_path):
    converted(iter(TABLE.to_pylist()), tmp_path / "rows", mapping=MAPPING, shards=8, keep=["unused"])
    assert_right(tmp_path / "rows", kept=(*KEPT[4:], "unused"))
    converted(str(dataset), tmp_path / "tars", shards=3)
    assert_right(tmp_path / "tars", kept=())


def test_dates_times_and_decimals_are_kept_as_numbers_are(tmp_path):
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)
    columns = {
        "day": pa.array([moment.date()] * 5),
        "wide_day": pa.array([moment.date()] * 5, pa.date64()),
        "at": pa.array([moment] * 5, pa.timestamp("us")),
        "second": pa.array([moment.replace(microsecond=0)] * 5, pa.timestamp("s", "UTC")),
        "clock": pa.array([moment.time()] * 5),
        "price": pa.array([decimal.Decimal("12.30")] * 5),
    }
    path = write_table(
        tmp_path / "a.parquet", {**columns, "took": pa.array([1] * 5, pa.duration("s")), "txt": ["a"] * 5}
    )
    converted(path, tmp_path / "out", shards=2)
    found = tables_of(tmp_path / "out")
    assert found.schema.names == ["__key__", "num_bytes", *columns]
    assert [str(found.schema.field(name).type) for name in ("wide_day", "second")] == [
        "date32[day]",
        "timestamp[ms, tz=UTC]",
    ]
    for name, column in columns.items():
        assert found[name].to_pylist() == column.to_pylist()
    view = wdsplit.Dataset(str(tmp_path / "out"), where="day == '2024-02-29' and at > '2024-02-29T23:00'")
    assert view.source.num_samples == 5


def test_columns_are_kept_and_left_out_as_they_are_named(table_path, tmp_path):
    keep, no_keep = ["day", "caption", "unused", "label"], ["good", "score"]
    manifest = converted(table_path, tmp_path / "out", mapping=MAPPING, shards=4, keep=keep, no_keep=no_keep)
    assert_right(tmp_path / "out", kept=("label", "caption", "day", "unused"))
    assert manifest.samples.field("day").type == pa.date32()
    assert [field.name for field in manifest.fields] == list(MAPPING)
    assert manifest.provenance["options"]["keep"] == keep


@pytest.mark.parametrize(
    "keep, no_keep, found",
    [
        (["captoin"], [], "'captoin' is not in the table"),
        ([], ["captoin"], "'captoin' is not in the table"),
        (["vector"], [], "'vector' has the type list"),
        (["image"], [], "'image' has the type binary"),
        (["label"], ["label"], "named by keep and by no_keep"),
        (["num_bytes"], [], ""),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(table_path, tmp_path, keep, no_keep, found):
    path = table_path if found else write_table(tmp_path / "a.parquet", {"image": [image(0)], "num_bytes": [1]})
    mapping = MAPPING if found else {"png": "image", "n.cls": "num_bytes"}
    with pytest.raises(InputError, match=None if found else "every sample table has") as caught:
        converted(path, tmp_path / "out", mapping=mapping, keep=keep, no_keep=no_keep)
    assert found in caught.value.found
    assert ("did you mean 'caption'?" in caught.value.remedy) == ("captoin" in found)
    assert not (tmp_path / "out").exists()


def test_names_that_are_taken(tmp_path, caplog):
    """The table's width is kept instead of the image's; its number of bytes is not, and a text called width neither."""
    columns = {"image": [image(0)] * 2, "width": [10, 20], "num_bytes": [1, 2], "height": ["a", "b"]}
    path = write_table(tmp_path / "a.parquet", columns)
    mapping = {"png": "image", "width.cls": "width", "n.cls": "num_bytes", "txt": "height"}
    converted(path, tmp_path / "out", mapping=mapping, shards=1)
    found = tables_of(tmp_path / "out")
    assert found.column_names == ["__key__", "num_bytes", "height", "width"]
    assert found["width"].to_pylist() == [10, 20]
    assert found["height"].to_pylist() == [5, 5]
    assert found["num_bytes"].to_pylist() == [len(image(0)) + len("10") + len("1") + 1] * 2
    assert "left out of the sample tables: num_bytes" in caplog.text


def test_of_very_many_columns_the_first_are_kept_and_others_on_request(tmp_path, caplog):
    columns = {f"x{number:03d}": [number] for number in range(300)}
    path = write_table(tmp_path / "a.parquet", columns)
    manifest = converted(path, tmp_path / "out", shards=1, keep=["x299"], no_keep=["x298"])
    assert manifest.samples.names == ["__key__", "num_bytes", *list(columns)[:MAX_COLUMNS], "x299"]
    assert tables_of(tmp_path / "out").to_pylist()[0]["x299"] == 299
    assert "x256, x257" in caplog.text and "x299" not in caplog.text


@pytest.mark.slow
def test_any_number_of_columns_is_kept_and_read(tmp_path):
    columns = {f"a column with a name that is long enough {number:04d}": [number] for number in range(1500)}
    path = write_table(tmp_path / "a.parquet", columns)
    converted(path, tmp_path / "out", shards=1, keep=list(columns))
    assert tables_of(tmp_path / "out").drop(["__key__", "num_bytes"]).to_pylist() == [
        {name: value for name, (value,) in columns.items()}
    ]


def test_values_that_are_null_or_no_class_are_kept_as_they_are(tmp_path):
    table = pa.table(
        {
            "kind": pa.array(["b", None, "a"]).dictionary_encode(),
            "number": pa.array([1, None, 3], pa.uint8()),
            "half": pa.array(np.array([0.5, 1, 2], np.float16)),
            "text": pa.array(["x", None, "y"], pa.large_string()).dictionary_encode(),
        }
    )
    path = write_table(tmp_path / "a.parquet", with_class_names(table, "kind", ("a", "b")))
    mapping = {"cls": "kind", "n.cls": "number", "json": "half"}
    manifest = converted(path, tmp_path / "out", mapping=mapping, shards=1, null="omit", keep=["text"])
    found = tables_of(tmp_path / "out")
    assert found["kind"].to_pylist() == [1, None, 0]
    assert names_of(manifest.samples) == {"kind": ("a", "b")}
    assert (found["number"].type, found["number"].to_pylist()) == (pa.uint8(), [1, None, 3])
    assert (found["half"].type, found["half"].to_pylist()) == (pa.float32(), [0.5, 1, 2])
    assert found["text"].to_pylist() == ["x", None, "y"]


def test_a_folder_of_images_has_its_classes_and_sizes(tmp_path):
    write_images(tmp_path / "photos", {f"{CLASSES[row % 3]}/{row}.png": image(row) for row in range(20)})
    manifest = converted(str(tmp_path / "photos"), tmp_path / "out", shards=2, keep=["file_name"])
    assert manifest.samples.names == ["__key__", "num_bytes", "width", "height", "label", "file_name"]
    assert names_of(manifest.samples) == {"label": CLASSES}
    for row in tables_of(tmp_path / "out").to_pylist():
        name, number = row["file_name"].removesuffix(".png").split("/")
        assert row["label"] == CLASSES.index(name)
        assert (row["width"], row["height"]) == (4 + int(number) % 5, 5 + int(number) % 7)


def test_a_table_that_others_left_beside_their_tars_is_not_removed(table_path, tmp_path):
    """img2dataset leaves 00000.parquet beside 00000.tar."""
    converted(table_path, tmp_path / "out", mapping=MAPPING, shards=2)
    converted(table_path, tmp_path / "out", mapping=MAPPING, shards=2, overwrite=True)
    (tmp_path / "out/00000.parquet").touch()
    with pytest.raises(OutputExistsError, match="did not write"):
        converted(table_path, tmp_path / "out", mapping=MAPPING, shards=2, overwrite=True)


# What index makes


def sample_of(row):
    meta = {"caption": f"text {row}", "similarity": row / 4}
    return {"jpg": image(row, "JPEG"), "json": json.dumps(meta).encode(), "cls": b"%d" % (row % 3)}


def test_tars_have_tables_of_keys_and_sizes_and_other_columns_by_a_function(tmp_path, bucket, monkeypatch):
    """In a bucket too; of tars without images the pixels are null, as where an image is damaged or missing."""
    monkeypatch.setattr("wdsplit.indexing.tars._IMAGES_AT_ONCE", 3)
    tars = [[sample_of(row) for row in range(first, first + 10)] for first in (0, 10)]
    tars[0][4]["jpg"], tars[1][7] = b"no image", {"cls": b"1"}
    tars.append([{"cls": b"2"}])
    folder = tmp_path / "tars"
    folder.mkdir()
    for number, samples in enumerate(tars):
        members = [(f"é/{number}-{row}.{name}", each[name]) for row, each in enumerate(samples) for name in each]
        (folder / f"{number}.tar").write_bytes(by_tarfile(members))
    url = bucket.put(folder, "tars")
    for place in (folder, url):
        index_tars(place)
    assert files_of(bucket.folder / "tars") == files_of(folder)
    found, every = tables_of(folder).to_pydict(), [each for samples in tars for each in samples]
    assert found["__key__"] == [sample["__key__"] for sample in wdsplit.Samples(folder)]
    assert found["num_bytes"] == [sum(map(len, each.values())) for each in every]
    is_image = [each.get("jpg", b"no image") != b"no image" for each in every]
    sizes = [Image.open(io.BytesIO(each["jpg"])).size for each in itertools.compress(every, is_image)]
    pixels = list(zip(found["width"], found["height"], strict=True))
    assert list(itertools.compress(pixels, is_image)) == sizes
    assert {size for size, there in zip(pixels, is_image, strict=True) if not there} == {(None, None)}
    assert verify(str(folder)).problems == ()
    wdsplit.map_samples(folder, columns_of, "columns", fields=["json", "cls"])
    chosen = wdsplit.Samples(folder, where="similarity >= 3 and label == 1 and width > 4")
    rows = [row for row in range(20) if row not in (4, 17) and row >= 12 and row % 3 == 1 and row % 5]
    assert [sample["json"] for sample in chosen] == [sample_of(row)["json"] for row in rows]


def columns_of(sample):
    return {"label": sample["cls"], **({"similarity": sample["json"]["similarity"]} if "json" in sample else {})}


def test_a_converted_dataset_is_not_indexed_as_its_tars_tell_less(dataset, tmp_path):
    folder = shutil.copytree(dataset, tmp_path / "out")
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match="dataset"):
            index_tars(folder, overwrite=overwrite)
    assert files_of(folder) == files_of(dataset)
    (folder / HEADER_NAME).unlink()
    assert index_tars(folder).samples.names == KEPT[:4], "its tables are wdsplit's own, and so are replaced"
    assert verify(str(folder)).problems == ()


# What verify and inspect say


@pytest.mark.parametrize(
    "change, cause",
    [
        (None, "no such file"),
        (lambda table: table.slice(1), "12 rows"),
        (lambda table: table.drop(["label"]), "label: int64"),
        (lambda table: table.take([1, 0, *range(2, 13)]), "does not match its shard"),
        (lambda table: table.set_column(1, table.field(1), pa.array([1] * 13)), "bytes"),
        ("cut", "cannot be read"),
        ("other", "a table for"),
    ],
)
def test_verify_names_a_table_that_is_wrong(dataset, tmp_path, change, cause):
    folder = shutil.copytree(dataset, tmp_path / "out")
    assert verify(str(folder)).problems == ()
    path, table = folder / "000003.tar.parquet", pq.read_table(folder / "000003.tar.parquet")
    if change is None:
        path.unlink()
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    elif change == "other":
        shutil.copy(folder / "000000.tar.parquet", path)
    else:
        path.write_bytes(dump_samples(change(table), table.schema.metadata[b"wdsplit.shard"].decode()))
    (problem,) = verify(str(folder)).problems
    assert isinstance(problem, CorruptDataError)
    assert cause in str(problem) and "000003.tar.parquet" in problem.place
    assert f"`wdsplit index {folder} --overwrite`" in problem.remedy


def test_the_commands(table_path, tmp_path):
    def run(*arguments):
        return done(*arguments).out

    out = str(tmp_path / "out")
    given = [part for name, column in MAPPING.items() for part in ("--map", f"{name}={column}")]
    chosen = ["--keep", "unused", "--keep", "day", "--no-keep", "good"]
    run("convert", table_path, out, "--shards", "4", *given, *chosen)
    assert "sample tables: __key__ (string), num_bytes (int64), width (int32)" in run("inspect", out)
    columns = [*KEPT[:-1], "day", "unused"]
    found = json.loads(run("inspect", out, "--json", "--samples", "0"))["sample_columns"]
    assert [column["name"] for column in found] == columns
    assert len(tar_samples(tmp_path / "out/000000.tar")) == 26
