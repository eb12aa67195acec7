"""Croissant metadata of a dataset: JSON-LD from which catalogues and libraries know its files, fields and columns.

It is made from the manifest: no shard is read. Its paths are relative to the dataset's folder.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from wdsplit.errors import InputError
from wdsplit.fields.arrow_types import read_type
from wdsplit.fields.infer import MEDIA_SUFFIXES
from wdsplit.fields.rules import is_list
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import HEADER_NAME, Field, Manifest
from wdsplit.shards.sample_tables import KEY, names_of, samples_path
from wdsplit.shards.table import MAX_TABLE_BYTES
from wdsplit.shards.versions import before_erasing, table_path
from wdsplit.storage.given import PathLike, located_one
from wdsplit.storage.opening import open_readable_storage
from wdsplit.tar.names import PAD_PREFIX
from wdsplit.texts import counted
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["croissant"]

_TERMS = (
    "arrayShape citeAs column containedIn equivalentProperty excludes extract field fileObject fileProperty fileSet "
    "format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated "
    "replace samplingRate separator source subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
"""What the specification (version 1.1) prescribes."""
_PARQUET = "application/x-parquet"
_TEXTS = {"txt": "text/plain", "cls": "text/plain", "json": "application/json"}
_SUBTYPES = {"jpg": "jpeg", "mp3": "mpeg", "pgm": "x-portable-graymap", "ppm": "x-portable-pixmap"}
"""The media types of fields with texts, and those that are not called like their field."""
_DATA_TYPES = {
    "bool": "sc:Boolean",
    **dict.fromkeys(("int", "uint", "duration"), "sc:Integer"),
    **dict.fromkeys(("halffloat", "float", "double", "decimal"), "sc:Float"),
    "date": "sc:Date",
    "time": "sc:Time",
    "timestamp": "sc:DateTime",
}
"""Croissant's types, by the first word of an Arrow type."""


def croissant(
    dataset: PathLike,
    *,
    name: str | None = None,
    description: str | None = None,
    license: str | None = None,
    creator: str | None = None,
    published: str | None = None,
    url: str | None = None,
    source: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> dict[str, Any]:
    """Return Croissant metadata (version 1.1) of the latest version of a dataset, as JSON values.

        metadata = wdsplit.croissant("data/train", license="https://spdx.org/licenses/CC-BY-4.0")
        print([each["name"] for each in metadata["recordSet"]])

    Args:
        dataset: The dataset's folder.
        name: The name of the dataset; None for that of its folder.
        description: What it contains; None for its numbers of samples and shards, and its fields.
        license: Its license, best as a URL.
        creator: The organization that made it.
        published: The date of its publication, such as 2026-11-26.
        url: Its web page.
        source: The URL of the data that it was made from.
        storage_options: Options for a remote store, as for `Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.

    Raises:
        DatasetNotFoundError: There is no dataset.
        InputError: The date is invalid.
        WdsplitError: The manifest cannot be read.
    """
    try:
        if published:
            date.fromisoformat(published)
    except ValueError as error:
        expected = "a date such as 2026-11-26"
        raise InputError("invalid date of publication", expected=expected, found=repr(published)) from error
    storage = open_readable_storage(*located_one(dataset, storage_options, fs))
    manifest = read_manifest(storage)
    counts = f"{counted(manifest.num_samples, 'sample')} in {counted(len(manifest.shards), 'WebDataset shard')}"
    given = {
        "license": license,
        "creator": creator and {"@type": "sc:Organization", "name": creator},
        "datePublished": published,
        "url": url,
        "isBasedOn": source,
    }
    table = table_path(manifest.version, manifest.shards_checksum)
    files = {HEADER_NAME: "application/json", table: _PARQUET}
    records = [*_columns("shards", manifest.shards.table.schema, "path", {"fileObject": {"@id": table}})]
    if manifest.samples is not None:
        records += _columns("samples", manifest.samples, KEY, {"fileSet": {"@id": "sample-tables"}})
    for field in manifest.fields:
        records += _payloads(field)
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name or shown_url(storage.url).rstrip("/").rpartition("/")[2],
        "description": description or f"{counts}, with the fields {', '.join(manifest.field_names)}",
        **{key: value for key, value in given.items() if value},
        "version": f"{manifest.version}.0.0",
        "identifier": manifest.fingerprint,
        "distribution": [
            *(_file(path, kind, storage.read(path, MAX_TABLE_BYTES)) for path, kind in files.items()),
            *_file_sets(manifest),
        ],
        "recordSet": records,
    }


def _node(kind: str, id_: str, name: str = "", /, **more: Any) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": id_, "name": name or id_, **more}


def _file(path: str, media_type: str, data: bytes) -> dict[str, Any]:
    """Return a file of the manifest: its header, or the table with the size and checksum of each shard."""
    digest = hashlib.sha256(data).hexdigest()
    size = f"{len(data)} B"
    return _node("FileObject", path, contentUrl=path, contentSize=size, encodingFormat=media_type, sha256=digest)


def _file_sets(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the shards, their sample tables, and for each field its files in the shards."""
    paths = [glob.escape(path) for path in manifest.shards.table.column("path").to_pylist()]
    if not before_erasing(manifest.history):  # else a pattern may also match shards that have erased samples
        paths = [re.sub("[0-9](?=[^/]*$)", "[0-9]", path) for path in paths]
    patterns = list(dict.fromkeys(paths))
    yield _node("FileSet", "tars", encodingFormat="application/x-tar", includes=patterns)
    if manifest.samples is not None:
        tables = list(map(samples_path, patterns))
        yield _node("FileSet", "sample-tables", encodingFormat=_PARQUET, includes=tables)
    for name in manifest.field_names:
        excluded = [f"{PAD_PREFIX}*", *(f"*.{each}" for each in manifest.field_names if each.endswith(f".{name}"))]
        inside = {"containedIn": {"@id": "tars"}, "includes": [f"*.{glob.escape(name)}"], "excludes": excluded}
        yield _node("FileSet", f"files/{quote(name)}", encodingFormat=_media_type(name), **inside)


def _media_type(field: str) -> str:
    suffix = field.rpartition(".")[2]
    kind, subtype = MEDIA_SUFFIXES.get(f".{suffix}", ("application", "octet-stream"))
    return _TEXTS.get(suffix, f"{kind}/{_SUBTYPES.get(subtype, subtype)}")


def _columns(id_: str, schema: pa.Schema, key: str, source: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records of a table, and the classes of its columns."""
    names, fields = names_of(schema), []
    for each in schema:
        types = _types(each.type, "", each.name in names)
        from_column = source | {"extract": {"column": each.name}}
        fields.append(_node("Field", f"{id_}/{quote(each.name)}", each.name, source=from_column, **types))
    yield _node("RecordSet", id_, key={"@id": f"{id_}/{key}"}, field=fields)
    for name, classes in names.items():
        yield _classes(f"{id_}/{quote(name)}", classes)


def _payloads(field: Field) -> Iterator[dict[str, Any]]:
    """Yield the records of a field: the keys of the samples and the payloads; and its classes."""
    name = quote(field.name)
    key, content, source = f"fields/{name}/{KEY}", f"fields/{name}/{name}", {"fileSet": {"@id": f"files/{name}"}}
    of_path = {"extract": {"fileProperty": "fullpath"}, "transform": {"regex": rf"^(.*)\.{re.escape(field.name)}$"}}
    of_content = {"extract": {"fileProperty": "content"}}
    types = _types(read_type(field), _media_type(field.name), bool(field.names))
    fields = [
        _node("Field", key, KEY, dataType="sc:Text", source=source | of_path),
        _node("Field", content, field.name, source=source | of_content, **types),
    ]
    what = f"column {field.column}: {field.type}"
    yield _node("RecordSet", f"fields/{name}", field.name, description=what, key={"@id": key}, field=fields)
    if field.names:
        yield _classes(content, field.names)


def _classes(of: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the classes of a field or a column as records: number and name."""
    number, name = f"{of}/classes/number", f"{of}/classes/name"
    fields = [_node("Field", number, dataType="sc:Integer"), _node("Field", name, dataType="sc:Text")]
    data = [{number: place, name: each} for place, each in enumerate(names)]
    return _node("RecordSet", f"{of}/classes", dataType="sc:Enumeration", key={"@id": number}, field=fields, data=data)


def _types(kind: pa.DataType, media_type: str, has_classes: bool) -> dict[str, Any]:
    """Return what says the type of values. Classes have the type of their numbers, and media that of their kind."""
    family = media_type.partition("/")[0]
    if has_classes or family in ("image", "audio", "video"):
        return {"dataType": "sc:Integer" if has_classes else f"sc:{family.title()}Object"}
    shape = []
    while is_list(kind):
        shape.append(str(kind.list_size if pa.types.is_fixed_size_list(kind) else -1))
        kind = kind.value_type
    array = {"isArray": True, "arrayShape": ",".join(shape)} if shape else {}
    # mlcroissant gives texts as bytes, and knows no other type for bytes.
    return {"dataType": _DATA_TYPES.get(re.sub("[^a-z_].*", "", str(kind)), "sc:Text"), **array}
