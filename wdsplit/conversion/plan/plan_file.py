"""Plan files: the input of the shares of a conversion, on many machines.

Pure (no I/O). A line with the version, a checksum, and compressed JSON: reading it runs no code. The same plan gives
the same bytes. It contains no secrets: each machine needs its own credentials for remote stores.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from wdsplit.conversion.plan.grouping import GroupPlaces
from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.fields.infer import Label
from wdsplit.shards.manifest import Field
from wdsplit.tables.table import InputFile, Remote, Selection, Table, Value

__all__ = ["SavedPlan", "dump_plan", "is_plan", "parse_plan"]

_MAGIC = b"wdsplit plan "
_LEVEL = 1
_CHECKSUM_BYTES = 16
_FILE_VALUES = ("path", "num_bytes", "num_rows", "data_bytes", "footer", "modified_ns", "format")
_FILE_TUPLES = ("row_groups", "offsets", "selected")


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
    plan, table = saved.plan, saved.plan.table
    groups = plan.groups
    content = {
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
        "bounds": plan.bounds,
        "groups": groups and _dump_table(pa.table({"hashes": groups.hashes, "starts": groups.starts})),
        "schema": b64encode(table.schema.serialize()).decode(),
        "selection": table.selection.to_json(),
        "num_empty": table.num_empty,
        "files": [_dump_file(file) for file in table.files],
    }
    data = zlib.compress(orjson.dumps(content), _LEVEL)
    line = _MAGIC + saved.version.encode() + b"\n"
    return line + _checksum(line, data) + data


def _checksum(line: bytes, data: bytes) -> bytes:
    digest = xxhash.xxh3_128(line)
    digest.update(data)
    return digest.digest()


def _dump_file(file: InputFile) -> dict[str, Any]:
    if file.remote is not None and file.remote.url != file.path:
        raise InputError(
            "the URL of an input contains credentials, which must not be in a plan file",
            place=file.path,
            expected="a URL without user, password, query or signature",
            remedy="set credentials in the environment of each share, or convert in one process",
            url=file.path,
        )
    return {
        **{name: getattr(file, name) for name in (*_FILE_VALUES, *_FILE_TUPLES)},
        "constants": orjson.dumps(file.constants).decode(),
        "is_remote": file.remote is not None,
        "members": None if file.members is None else _dump_table(file.members),
    }


def _dump_table(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return b64encode(sink.getvalue()).decode()


def is_plan(beginning: bytes) -> bool:
    """Return whether a file is a plan file, valid or damaged, from its first bytes (at least 64)."""
    return beginning.startswith(_MAGIC)


def parse_plan(data: bytes, version: str) -> SavedPlan:
    """Parse a plan file, and check that it is complete.

    Args:
        data: Its bytes.
        version: The version of wdsplit that reads it, which must also have written it.

    Raises:
        CorruptDataError: It is damaged, or not a plan file.
        InputError: Another version wrote it.
    """
    end = data.find(b"\n") + 1
    line, checksum, content = data[:end], data[end : end + _CHECKSUM_BYTES], data[end + _CHECKSUM_BYTES :]
    if not is_plan(line) or checksum != _checksum(line, content):
        raise CorruptDataError(
            "a plan file is damaged",
            expected="a file written by `wdsplit plan -o`",
            found="other bytes than were written" if is_plan(line) else "another file",
            remedy="check the path, copy the file again, or plan again with --overwrite",
        )
    found = line[len(_MAGIC) : -1].decode()
    if found != version:
        raise InputError(
            "the plan was made by another version of wdsplit",
            expected=f"version {version}, which is installed here",
            found=f"version {found}",
            remedy="install the same version on all machines, or plan again",
        )
    return _build(orjson.loads(zlib.decompress(content)), version)


def _build(content: Mapping[str, Any], version: str) -> SavedPlan:
    schema = pa.ipc.read_schema(pa.py_buffer(b64decode(content["schema"])))
    files = tuple(map(_parse_file, content["files"]))
    table = Table(files, schema, Selection.from_json(content["selection"]), content["num_empty"])
    groups = None
    if content["groups"] is not None:
        columns = _parse_table(content["groups"])
        groups = GroupPlaces(*(np.asarray(columns.column(name)) for name in ("hashes", "starts")))
    plan = Plan(
        table,
        tuple(Field(**{**field, "names": tuple(field["names"])}) for field in content["fields"]),
        content["key"],
        PlanOptions(**content["options"]),
        content["num_shards"],
        content["lanes"],
        groups,
        tuple(content["bounds"]),
        Label(**content["label"]) if content["label"] else None,
    )
    return SavedPlan(plan, content["output"], content["folder"], content["memory"], tuple(content["emit"]), version)


def _parse_file(file: Mapping[str, Any]) -> InputFile:
    values: dict[str, Any] = {name: file[name] for name in _FILE_VALUES}
    values |= {name: None if file[name] is None else tuple(file[name]) for name in _FILE_TUPLES}
    return InputFile(
        **values,
        constants=_constants(file["constants"]),
        remote=Remote(file["path"]) if file["is_remote"] else None,
        members=None if file["members"] is None else _parse_table(file["members"]),
    )


@lru_cache(1024)
def _constants(text: str) -> tuple[tuple[str, Value], ...]:
    return tuple((str(name), value) for name, value in orjson.loads(text))


def _parse_table(text: str) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(b64decode(text))).read_all().combine_chunks()
