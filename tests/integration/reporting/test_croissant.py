"""Croissant metadata: the library of the format reads it, and it names exactly the files of the dataset."""

import fnmatch
import json
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wdsplit
from commands import done, refused
from made_datasets import images_table
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage

ROWS = 30
DESCRIBED = {
    "license": "https://spdx.org/licenses/CC-BY-4.0",
    "creator": "An Institute",
    "published": "2026-11-26",
    "url": "https://example.org/data",
    "source": "https://example.org/raw",
}
PLAN = {"key": "name", "keep": ("txt", "site / url"), "shards": 4, "lanes": 2}


def rows_of_all_types(first=0, stop=ROWS):
    """Return a table with all kinds of fields and columns, and with names that must be quoted."""
    images, rows = images_table(stop).slice(first), range(first, stop)
    return pa.table(
        {
            **{name: images[name] for name in images.column_names if name != "cls"},
            "site / url": [f"https://example.org/{row}" for row in rows],
            "mask": [b"\x89PNG\r\n\x1a\n" + bytes([row]) for row in rows],
            "sound": [b"fLaC" + bytes([row]) for row in rows],
            "blob": [bytes([row, 0]) for row in rows],
            "label": pa.array([["cat", "dog"][row % 2] for row in rows]).dictionary_encode(),
            "day": pa.array(rows, pa.date32()),
            "time": pa.array(rows, pa.timestamp("ms", "UTC")),
            "price": pa.array(rows, pa.decimal128(5, 2)),
            "seen": [row % 3 == 0 for row in rows],
            "boxes": pa.array([[[0.5, 1.0]] * (row % 3) for row in rows], pa.list_(pa.list_(pa.float32(), 2))),
        }
    )


TYPES = {
    "png.png": "ImageObject",
    "mask.png": "ImageObject",
    "flac": "AudioObject",
    "bin": "Text",
    "cls": "Integer",
    "txt.txt": "Text",
    "json": "Text",
    "npy.npy": "Float [4]",
    "boxes.npy": "Float [-1,2]",
    "day.json": "Date",
    "time.json": "DateTime",
    "price.json": "Float",
    "seen.json": "Boolean",
    "site___url.txt": "Text",
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("croissant") / "train")
    wdsplit.convert(rows_of_all_types(), path, **PLAN)
    return path


def by_id(nodes):
    return {node["@id"]: node for node in nodes}


def type_of(field):
    array = f" [{field['arrayShape']}]" if field.get("isArray") else ""
    return field["dataType"].removeprefix("sc:") + array


def included(folder, metadata, file_set):
    """Return the files of a folder that a file set includes, by the rules of mlcroissant."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    patterns = by_id(metadata["distribution"])[file_set]["includes"]
    return sorted(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def as_read(value):
    """Return a value of a table as mlcroissant gives it."""
    if isinstance(value, Decimal):
        return float(value)
    if type(value) is date:
        return datetime.combine(value, time())
    return value.encode() if isinstance(value, str) else value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(rdflib|mlcroissant)")
def test_mlcroissant_accepts_it_and_reads_the_tables_and_the_classes(dataset):
    import mlcroissant  # which only the tests marked slow have

    options = [word for name, text in DESCRIBED.items() for word in (f"--{name}", text)]
    file = Path(dataset) / "croissant.json"
    assert done("croissant", dataset, *options, "-o", file).out == f"{file}\n"
    read = mlcroissant.Dataset(str(file))
    issues = read.metadata.ctx.issues
    assert (issues.errors, [each for each in issues.warnings if "citeAs" not in each]) == (set(), [])
    shards = read_manifest(open_storage(dataset)).shards.table
    samples = pa.concat_tables(pq.read_table(path) for path in sorted(Path(dataset).glob("*.tar.parquet")))
    assert samples.num_rows == ROWS
    for name, table in (("shards", shards), ("samples", samples)):
        quoted = [f"{name}/{column.replace(' ', '%20')}" for column in table.column_names]
        rows = [dict(zip(quoted, map(as_read, row.values()), strict=True)) for row in table.to_pylist()]
        assert list(read.records(name)) == rows
    classes = [dict(sorted(each.items())) for each in read.records("fields/cls/cls/classes")]
    assert [list(each.values()) for each in classes] == [["cat", 0], ["dog", 1]]


def test_fields_have_their_types_and_the_options_their_place(dataset):
    metadata = wdsplit.croissant(dataset, **DESCRIBED, name="Cats", description="Cats and dogs.")
    records = by_id(metadata["recordSet"])
    content = {node["name"]: node["field"][1] for name, node in records.items() if name.startswith("fields/")}
    manifest = read_manifest(open_storage(dataset))
    found = {name: type_of(content[name]) for name in manifest.field_names}
    assert found == TYPES
    kept = {field["name"]: type_of(field) for field in records["samples"]["field"]}
    assert list(kept) == manifest.samples.names
    assert (kept["site / url"], kept["width"], kept["seen"]) == ("Text", "Integer", "Boolean")
    assert {name: metadata[name] for name in ("name", "description", "license", "url", "isBasedOn")} == {
        "name": "Cats",
        "description": "Cats and dogs.",
        "license": DESCRIBED["license"],
        "url": DESCRIBED["url"],
        "isBasedOn": DESCRIBED["source"],
    }
    assert (metadata["creator"]["name"], metadata["datePublished"]) == ("An Institute", "2026-11-26")


def test_files_of_a_field_are_those_with_its_name_alone(dataset):
    files = by_id(wdsplit.croissant(dataset)["distribution"])
    names = ["a/1.txt.txt", "a/1.site___url.txt", "a/1.mask.png", "_pad_/000000-000000.mask.png"]
    for name, expected in (("mask.png", ["a/1.mask.png"]), ("txt.txt", ["a/1.txt.txt"])):
        node = files[f"files/{name}"]
        within, out = (
            {each for each in names for one in node[key] if fnmatch.fnmatchcase(each, one)}
            for key in ("includes", "excludes")
        )
        assert sorted(within - out) == expected
    assert files["files/mask.png"]["encodingFormat"] == "image/png"


def test_each_version_names_its_own_shards_and_no_others(tmp_path):
    path = str(tmp_path)
    wdsplit.convert(rows_of_all_types(), path, **PLAN)
    later = pa.table({"name": rows_of_all_types()["name"], "later": [b"x"] * ROWS})
    wdsplit.annotate(path, later, key="name", name="more")  # it has tars and tables of its own
    made = [wdsplit.croissant(path)]
    wdsplit.convert(rows_of_all_types(ROWS, 2 * ROWS), path, append=True)
    made.append(wdsplit.croissant(path))
    wdsplit.erase(path, keys=["class-0/img.3"])
    made.append(wdsplit.croissant(path))
    for number, metadata in enumerate(made, 1):
        shards = read_manifest(open_storage(path), number).shards.table["path"].to_pylist()
        assert metadata["version"] == f"{number}.0.0"
        assert included(tmp_path, metadata, "tars") == sorted(shards)
        assert included(tmp_path, metadata, "sample-tables") == sorted(f"{name}.parquet" for name in shards)
    assert included(tmp_path, made[0], "tars") != included(tmp_path, made[2], "tars")


def test_a_bucket_is_described_as_a_folder_is_and_what_cannot_be_is_refused(dataset, bucket, tmp_path):
    local = wdsplit.croissant(dataset)
    for path in Path(dataset).glob("[ws]*"):
        (bucket.folder / "train").mkdir(exist_ok=True)
        (bucket.folder / "train" / path.name).write_bytes(path.read_bytes())
    assert json.loads(done("croissant", f"{bucket.url}/train").out) == local
    assert local["name"] == "train"
    said = refused(2, "croissant", dataset, "--published", "yesterday", "-o", tmp_path / "x")
    assert "expected: a date such as 2026-11-26" in said
    assert "there is no dataset" in refused(2, "croissant", tmp_path, "-o", tmp_path / "x")
    assert not (tmp_path / "x").exists()
