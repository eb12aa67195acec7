import dataclasses

import orjson
import pyarrow as pa
import pytest

from wdsplit.errors import CorruptDataError
from wdsplit.shards.annotations import (
    ANNOTATIONS,
    Annotation,
    annotation_table_path,
    list_annotations,
    read_annotation,
    write_annotation,
)
from wdsplit.shards.manifest import Field, Manifest, Shard, Shards
from wdsplit.shards.sample_tables import dump_samples, with_names
from wdsplit.storage.local import LocalStorage

SHARDS = (Shard("000000.tar", 4, 1, 10_240, "xxh3_128:00"), Shard("b/1.tar", 2, 0, 10_240, "xxh3_128:01"))
MANIFEST = Manifest(Shards.of(SHARDS), (), 1, 1, "none", {})
FIELDS = (Field("a.npy", "a", "npy", "list<item: float>"), Field("b.cls", "b", "integer", "int64", ("cat", "dog")))
TABLE = pa.table({"score": pa.array([0.5, None, 2.5]), "größe": pa.array(["a", "b", None])})


def annotation_of(name, **changes):
    folder = f"fields/{name}-{'0' * 16}"
    made = Annotation(name, folder, TABLE.schema, MANIFEST.fingerprint, 5, 1, 2, 3, 400, provenance={"key": "id"})
    return dataclasses.replace(made, **changes)


def publish(storage, path, data):
    with storage.publish(path) as file:
        file.write([data])


@pytest.fixture
def storage(tmp_path):
    storage = LocalStorage(str(tmp_path))
    for shard in SHARDS:
        rows = TABLE.slice(0, shard.num_samples - shard.num_pads)
        path = annotation_table_path(annotation_of("quality").folder, shard.path)
        publish(storage, path, dump_samples(rows, shard.checksum))
    write_annotation(storage, annotation_of("quality"))
    return storage


def test_what_was_written_is_read(storage, tmp_path):
    found = list_annotations(storage, MANIFEST)
    assert found == {"quality": annotation_of("quality")}
    assert read_annotation(storage, found["quality"], SHARDS[0]) == TABLE
    assert read_annotation(storage, found["quality"], SHARDS[1], ["größe"]) == TABLE.select(["größe"]).slice(0, 2)
    schema = pa.schema([with_names(pa.field("label", pa.int64()), ("cat", "dog"))])
    write_annotation(storage, annotation_of("quality", schema=schema))
    assert list_annotations(storage, MANIFEST)["quality"].class_names == {"label": ("cat", "dog")}
    of_fields = annotation_of("fields", schema=pa.schema([]), fields=FIELDS, shards_checksum="xxh3_128:00")
    write_annotation(storage, of_fields)
    assert list_annotations(storage, MANIFEST)["fields"] == of_fields
    assert list_annotations(LocalStorage(str(tmp_path / "elsewhere")), MANIFEST) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"folder": "../elsewhere"},
        {"folder": "fields/other-0000000000000000"},
        {"columns": [{"name": "a", "type": "list<item: int64>"}]},
        {"num_missing": "many"},
        {"columns": None},
        {"fields": None},
        {"fields": [{"name": "a.npy"}]},
        {"fields": [dataclasses.asdict(each) for each in (FIELDS[0], FIELDS[0])]},
        {"wdsplit_annotation": None},
        {"wdsplit_annotation": 2},
        {"fingerprint": "0" * 32},
    ],
)
def test_a_damaged_one_is_refused(storage, change):
    path = ANNOTATIONS.path("quality", MANIFEST.fingerprint)
    content = orjson.loads(storage.read(path))
    publish(storage, path, orjson.dumps({**content, **change}))
    with pytest.raises(CorruptDataError, match=rf"{path}"):
        ANNOTATIONS.find(storage, "quality", MANIFEST)


def test_a_damaged_or_lost_table_is_refused(storage):
    annotation = annotation_of("quality")
    path = annotation_table_path(annotation.folder, SHARDS[0].path)
    publish(storage, path, dump_samples(TABLE.rename_columns(["score", "other"]), SHARDS[0].checksum))
    with pytest.raises(CorruptDataError, match=r"000000\.tar\.parquet"):
        read_annotation(storage, annotation, SHARDS[0])
    storage.remove(path)
    with pytest.raises(CorruptDataError, match=r"000000\.tar\.parquet(.|\n)*no such file"):
        read_annotation(storage, annotation, SHARDS[0])
