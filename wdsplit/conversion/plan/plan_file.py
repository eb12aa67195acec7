"""Plan files: the input of the shares of a conversion, on many machines.

Pure (no I/O). The file is a zip of JSON and Arrow tables; reading it runs no code. The same plan gives the same bytes.
It contains no secrets: each machine needs its own credentials for remote stores.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from wdsplit.conversion.plan.grouping import GroupPlaces
from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.errors import CorruptDataError, InputError, WdsplitError
from wdsplit.fields.infer import Label
from wdsplit.shards.manifest import Field, checksum_of
from wdsplit.tables.table import InputFile, Remote, Selection, Table, Value

__all__ = ["SavedPlan", "dump_plan", "is_plan", "parse_plan"]

_FORMAT_VERSION = 1
_HEADER, _SCHEMA, _FILES, _GROUPS, _BOUNDS = (
    "wdsplit-plan.json",
    "schema.arrow",
    "files.arrow",
    "groups.arrow",
    "bounds.arrow",
)
_MEMBERS = "members-{}.arrow"
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644 << 16
_LEVEL = 1

_NAME_OFFSET = 30
"""Offset of the first member's name in a zip."""

_NUMBERS = ("num_bytes", "num_rows", "data_bytes")
_TEXTS = ("path", "footer", "format")
_LISTS = ("row_groups", "offsets", "selected")
_DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions for a damaged zip, JSON or table."""


@dataclass(frozen=True)
class SavedPlan:
    """A plan, and everything else that the shares of its conversion need.

    Attributes:
        plan: The plan. Its remote inputs have no options or credentials.
        output: The dataset's folder: an absolute path, or a URL.
        folder: The base folder of relative input paths.
        memory: Bytes of memory for reordering rows, shared by all jobs of a machine.
        emit: The sidecars to write.
        version: The version of wdsplit that made the plan.
    """

    plan: Plan
    output: str
    folder: str
    memory: int
    emit: tuple[str, ...]
    version: str


def dump_plan(saved: SavedPlan) -> bytes:
    """Return the bytes of a plan file.

    Raises:
        InputError: The URL of an input contains credentials.
    """
    plan = saved.plan
    members = {_SCHEMA: plan.table.schema.serialize().to_pybytes(), _FILES: _dump_table(_files_table(plan.table.files))}
    if plan.groups is not None:
        members[_GROUPS] = _dump_table(pa.table({"hashes": plan.groups.hashes, "starts": plan.groups.starts}))
    if plan.bounds:
        members[_BOUNDS] = _dump_table(pa.table({"bounds": np.array(plan.bounds, np.int64)}))
    for number, file in enumerate(plan.table.files):
        if file.members is not None:
            members[_MEMBERS.format(number)] = _dump_table(file.members)
    header = {
        "wdsplit_plan": _FORMAT_VERSION,
        "wdsplit": saved.version,
        "plan": plan.hash,
        "output": saved.output,
        "folder": saved.folder,
        "memory": saved.memory,
        "emit": saved.emit,
        "fields": plan.fields,
        "key": plan.key,
        "label": plan.label,
        "options": plan.options,
        "num_shards": plan.num_shards,
        "lanes": plan.lanes,
        "selection": plan.table.selection.to_json(),
        "num_empty": plan.table.num_empty,
        "checksums": {name: _checksum(data) for name, data in members.items()},
    }
    return _dump_zip({_HEADER: orjson.dumps(header, option=orjson.OPT_INDENT_2), **members})


def _dump_zip(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr, info.compress_type = _UNIX, _MODE, zipfile.ZIP_DEFLATED
            archive.writestr(info, data, compresslevel=_LEVEL)
    return file.getvalue()


def _checksum(data: bytes) -> str:
    return checksum_of(xxhash.xxh3_128(data))


def _dump_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _files_table(files: Sequence[InputFile]) -> pa.Table:
    """Return a row for each file; times are strings, because they may have any sign and 64 bits."""
    for file in files:
        if file.remote is not None and file.remote.url != file.path:
            raise InputError(
                "the URL of an input contains credentials, which must not be in a plan file",
                place=file.path,
                expected="a URL without user, password, query or signature",
                remedy="set credentials in the environment of each share, or convert in one process",
                url=file.path,
            )
    columns: dict[str, Any] = {name: pa.array([getattr(file, name) for file in files], pa.int64()) for name in _NUMBERS}
    columns |= {name: pa.array([getattr(file, name) for file in files], pa.string()) for name in _TEXTS}
    columns |= {name: _lists([getattr(file, name) for file in files]) for name in _LISTS}
    columns["constants"] = pa.array([orjson.dumps(file.constants).decode() for file in files], pa.string())
    columns["modified"] = pa.array([str(file.modified_ns) for file in files], pa.string())
    columns["is_selected"] = pa.array([file.selected is not None for file in files], pa.bool_())
    columns["is_remote"] = pa.array([file.remote is not None for file in files], pa.bool_())
    return pa.table(columns)


def _lists(values: Sequence[tuple[int, ...] | None]) -> pa.LargeListArray:
    """Return tuples of integers as lists; None as an empty one."""
    ends = np.cumsum([0, *(len(value or ()) for value in values)])
    flat = np.fromiter(chain.from_iterable(value or () for value in values), np.int64, int(ends[-1]))
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pa.array(flat))


def is_plan(beginning: bytes) -> bool:
    """Return whether a file is a plan file, valid or damaged, from its first bytes (at least 64)."""
    return beginning.startswith(b"PK") and beginning[_NAME_OFFSET:].startswith(_HEADER.encode())


def parse_plan(data: bytes, version: str) -> SavedPlan:
    """Parse a plan file, and check that it is complete.

    Args:
        data: Its bytes.
        version: The version of wdsplit that reads it, which must also have written it.

    Raises:
        CorruptDataError: It is damaged, or not a plan file.
        InputError: Another version wrote it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            header = _parse_header(archive.read(_HEADER), version)
            members = {name: archive.read(name) for name in archive.namelist() if name != _HEADER}
        if {name: _checksum(member) for name, member in members.items()} != header["checksums"]:
            raise _damaged("other bytes than were written")
        saved = _build(header, members)
        if saved.plan.hash != header["plan"]:
            raise _damaged(f"plan {saved.plan.hash}, where {header['plan']} was written")
    except WdsplitError:
        raise
    except _DAMAGES as error:
        raise _damaged(f"{type(error).__name__}: {error}") from error
    return saved


def _parse_header(data: bytes, version: str) -> dict[str, Any]:
    header = orjson.loads(data)
    if not isinstance(header, dict) or "wdsplit_plan" not in header:
        raise _damaged("no format version")
    found = header.get("wdsplit")
    if header["wdsplit_plan"] != _FORMAT_VERSION or found != version:
        raise InputError(
            "the plan was made by another version of wdsplit",
            expected=f"version {version}, which is installed here",
            found=f"version {found}",
            remedy="install the same version on all machines, or plan again",
        )
    return header


def _build(header: Mapping[str, Any], members: Mapping[str, bytes]) -> SavedPlan:
    schema = pa.ipc.read_schema(pa.py_buffer(members[_SCHEMA]))
    files = _files(_parse_table(members[_FILES]))
    for number, file in enumerate(files):
        if _MEMBERS.format(number) in members:
            files[number] = replace(file, members=_parse_table(members[_MEMBERS.format(number)]))
    table = Table(tuple(files), schema, Selection.from_json(header["selection"]), header["num_empty"])
    groups, bounds = None, ()
    if _GROUPS in members:
        columns = _parse_table(members[_GROUPS])
        groups = GroupPlaces(columns.column("hashes").to_numpy(), columns.column("starts").to_numpy())
    if _BOUNDS in members:
        bounds = tuple(_parse_table(members[_BOUNDS]).column("bounds").to_numpy().tolist())
    fields = tuple(Field(**{**field, "names": tuple(field["names"])}) for field in header["fields"])
    options = PlanOptions(**header["options"])
    label = Label(**header["label"]) if header["label"] else None
    plan = Plan(table, fields, header["key"], options, header["num_shards"], header["lanes"], groups, bounds, label)
    for name, kind in (("output", str), ("folder", str), ("memory", int), ("emit", list)):
        if not isinstance(header[name], kind):
            raise _damaged(f"{name} {header[name]!r}")
    emit = tuple(map(str, header["emit"]))
    return SavedPlan(plan, header["output"], header["folder"], header["memory"], emit, header["wdsplit"])


def _parse_table(data: bytes) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(data)).read_all().combine_chunks()


def _files(table: pa.Table) -> list[InputFile]:
    columns = {name: table.column(name).to_pylist() for name in (*_NUMBERS, *_TEXTS, "is_selected", "is_remote")}
    columns |= {name: _tuples(table.column(name)) for name in _LISTS}
    columns["modified_ns"] = [int(text) for text in table.column("modified").to_pylist()]
    columns["constants"] = [_constants(text) for text in table.column("constants").to_pylist()]
    are_selected, are_remote = columns.pop("is_selected"), columns.pop("is_remote")
    columns["selected"] = [
        one if is_one else None for one, is_one in zip(columns["selected"], are_selected, strict=True)
    ]
    columns["remote"] = [Remote(path) if far else None for path, far in zip(columns["path"], are_remote, strict=True)]
    names = list(columns)
    return [InputFile(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


@lru_cache(1024)
def _constants(text: str) -> tuple[tuple[str, Value], ...]:
    return tuple((str(name), value) for name, value in orjson.loads(text))


def _tuples(column: pa.ChunkedArray) -> list[tuple[int, ...]]:
    if not len(column):
        return []
    lists = column.chunk(0)
    ends, flat = lists.offsets.to_numpy().tolist(), lists.values.to_numpy().tolist()
    return [tuple(flat[first:stop]) for first, stop in pairwise(ends)]


def _damaged(found: str) -> CorruptDataError:
    return CorruptDataError(
        "a plan file is damaged",
        expected="a file written by `wdsplit plan -o`",
        found=found,
        remedy="check the path, copy the file again, or plan again with --overwrite",
    )
