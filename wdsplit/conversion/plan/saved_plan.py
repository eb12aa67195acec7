"""Saved plans, as the bytes of plan files: the input of the shares of a conversion, on many machines.

Pure (no I/O). A line with the version, then JSON, compressed with a checksum: reading it runs no code. The same plan
gives the same bytes. It contains no secrets: each machine needs its own credentials for remote stores.
"""

from __future__ import annotations

import dataclasses
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.shards.manifest import Field
from wdsplit.tables.table import InputFile, Remote, Selection, Table

__all__ = ["SavedPlan", "dump_plan", "is_plan", "parse_plan"]

_MAGIC = b"wdsplit plan "
_LEVEL = 1


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
    files = [_without_options(file) for file in table.files]
    content = _values(saved, plan=_values(plan, table=_values(table, files=files, selection=table.selection.to_json())))
    data = zlib.compress(orjson.dumps(content, default=_dump_arrow), _LEVEL)
    return _MAGIC + saved.version.encode() + b"\n" + data


def _values(value: Any, **changes: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, without the cached properties that orjson would write too."""
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)} | changes


def _without_options(file: InputFile) -> InputFile:
    """Return a file without the options of its store, which may contain secrets."""
    if file.remote is None:
        return file
    if file.remote.url != file.path:
        raise InputError(
            "the URL of an input contains credentials, which must not be in a plan file",
            expected="a URL without user, password, query or signature",
            remedy="set credentials in the environment of each share, or convert in one process",
            url=file.path,
        )
    return dataclasses.replace(file, remote=Remote(file.path))


def _dump_arrow(value: pa.Table | pa.Schema) -> str:
    """Return Arrow's bytes of a table or a schema as text."""
    table = value.empty_table() if isinstance(value, pa.Schema) else value
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
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
    line, _, compressed = data.partition(b"\n")
    try:
        content = zlib.decompress(compressed)
    except zlib.error:
        content = b""
    if not (is_plan(line) and content):
        raise CorruptDataError(
            "a plan file is damaged",
            expected="a file written by `wdsplit plan -o`",
            found="other bytes than were written" if is_plan(line) else "another file",
            remedy="check the path, copy the file again, or plan again with --overwrite",
        )
    found = line[len(_MAGIC) :].decode(errors="replace")
    if found != version:
        raise InputError(
            "the plan was made by another version of wdsplit",
            expected=f"version {version}, which is installed here",
            found=f"version {found}",
            remedy="install the same version on all machines, or plan again",
        )
    values = orjson.loads(content)
    plan, table = values["plan"], values["plan"]["table"]
    plan["table"] = Table(
        tuple(map(_parse_file, table["files"])),
        _parse_arrow(table["schema"]).schema,
        Selection.from_json(table["selection"]),
        tuple(table["notes"]),
        table["snapshot"],
    )
    plan["fields"] = tuple(Field(**{**field, "names": tuple(field["names"])}) for field in plan["fields"])
    plan["options"] = PlanOptions(**plan["options"])
    return SavedPlan(**{**values, "plan": Plan(**plan), "emit": tuple(values["emit"])})


def _parse_file(file: Mapping[str, Any]) -> InputFile:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in file.items()}
    values["constants"] = tuple(map(tuple, file["constants"]))
    values["remote"] = file["remote"] and Remote(file["path"])
    values["members"] = file["members"] and _parse_arrow(file["members"])
    return InputFile(**values)


def _parse_arrow(text: str) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(b64decode(text))).read_all().combine_chunks()
