"""Arrow types as text, and back: what a manifest says of a column, so that its values can be read back.

Pure (no I/O). The text is that of Arrow, but for what Arrow writes ambiguously: names of fields are quoted where they
are not plain, what maps call their entries is left out, and so are a tensor's dimension names. Extension types that
pyarrow does not bring along stand as their storage.
"""

from __future__ import annotations

import json
import re
import reprlib
from typing import Any

import pyarrow as pa

from wdsplit.errors import InputError
from wdsplit.fields.rules import is_list, is_tensor

__all__ = ["list_type", "parse_type", "type_text"]

_PLAIN_NAME = re.compile(r'[^\s<>,:"]+')
_QUOTED_NAME = re.compile(r'"(?:[^"\\]|\\.)*"')
_LEAF = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?:\[(?P<unit>[^\]]*)\]|\((?P<digits>[^)]*)\))?")
_TENSOR = re.compile(r"shape=\[(?P<shape>[\d,]*)\](?:, permutation=\[(?P<permutation>[\d,]*)\])?\]>")
_LISTS = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
_EXTENSIONS = {name: getattr(pa, name.partition(".")[2], None) for name in ("arrow.uuid", "arrow.bool8")}
_EXTENSIONS["arrow.json"] = getattr(pa, "json_", None)


def type_text(kind: pa.DataType) -> str:
    """Return a type as text; `parse_type` is the inverse."""
    if is_list(kind):
        size = f"[{kind.list_size}]" if pa.types.is_fixed_size_list(kind) else ""
        return f"{str(kind).partition('<')[0]}<{_field_text(kind.value_field)}>{size}"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_field_text(kind.field(i)) for i in range(kind.num_fields))}>"
    if pa.types.is_map(kind):
        sort = ", keys_sorted" if kind.keys_sorted else ""
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}{sort}>"
    if pa.types.is_dictionary(kind):
        return (
            f"dictionary<values={type_text(kind.value_type)}, indices={kind.index_type}, ordered={int(kind.ordered)}>"
        )
    if is_tensor(kind):
        shape, order = (",".join(map(str, numbers or [])) for numbers in (kind.shape, kind.permutation))
        permutation = f", permutation=[{order}]" if order else ""
        return f"extension<arrow.fixed_shape_tensor[value_type={kind.value_type}, shape=[{shape}]{permutation}]>"
    if isinstance(kind, pa.BaseExtensionType):
        known = kind.extension_name in _EXTENSIONS
        return f"extension<{kind.extension_name}>" if known else type_text(kind.storage_type)
    return str(kind)


def _field_text(field: pa.Field) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else json.dumps(field.name, ensure_ascii=False)
    return f"{name}: {type_text(field.type)}{'' if field.nullable else ' not null'}"


def list_type(name: str, item: pa.Field, size: int = -1) -> pa.DataType:
    """Return the type of lists that Arrow calls `name`; size is that of a fixed-size list, else -1."""
    make: Any = getattr(pa, "list_" if name in ("list", "fixed_size_list") else name)
    return make(item) if size < 0 else make(item, size)


def parse_type(text: str) -> pa.DataType:
    """Return the type that `type_text` wrote.

    Raises:
        InputError: The text names no type.
    """
    parser = _Parser(text)
    try:
        kind = parser.type()
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise parser.fault() from error
    if parser.rest:
        raise parser.fault()
    return kind


class _Parser:
    """Read a type from the left."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.rest = text

    def fault(self) -> InputError:
        return InputError(
            "a text names no Arrow type",
            found=f"{reprlib.repr(self._text)}, at {self.rest[:20]!r}",
            expected="a type such as int64 or list<item: float>",
            remedy="read the dataset with the version of wdsplit that wrote it",
        )

    def _skip(self, text: str) -> bool:
        found = self.rest.startswith(text)
        self.rest = self.rest[len(text) :] if found else self.rest
        return found

    def _need(self, text: str) -> None:
        if not self._skip(text):
            raise self.fault()

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self.rest)
        if match is None:
            raise self.fault()
        self.rest = self.rest[match.end() :]
        return match

    def type(self) -> pa.DataType:
        leaf = self._take(_LEAF)
        name = leaf["name"]
        if leaf[0] != name or not self._skip("<"):
            return _leaf_type(leaf)
        if name == "extension":
            return self._extension()
        if name == "struct":
            kind = pa.struct(self._fields())
        elif name == "map":
            kind = self._map()
        elif name == "dictionary":
            kind = self._dictionary()
        elif name in _LISTS:
            return self._list(name)
        else:
            raise self.fault()
        self._need(">")
        return kind

    def _list(self, name: str) -> pa.DataType:
        item = self._field()
        self._need(">")
        size = int(self._take(re.compile(r"\[(\d+)\]"))[1]) if name == "fixed_size_list" else -1
        return list_type(name, item, size)

    def _field(self) -> pa.Field:
        quoted = self.rest.startswith('"')
        name = self._take(_QUOTED_NAME if quoted else _PLAIN_NAME)[0]
        self._need(": ")
        kind = self.type()
        return pa.field(json.loads(name) if quoted else name, kind, nullable=not self._skip(" not null"))

    def _fields(self) -> list[pa.Field]:
        fields = []
        while not self.rest.startswith(">"):
            fields.append(self._field())
            if not self._skip(", "):
                break
        return fields

    def _map(self) -> pa.DataType:
        key = self.type()
        self._need(", ")
        item = self.type()
        return pa.map_(key, item, keys_sorted=self._skip(", keys_sorted"))

    def _dictionary(self) -> pa.DataType:
        self._need("values=")
        values = self.type()
        self._need(", indices=")
        indices = self.type()
        return pa.dictionary(indices, values, bool(int(self._take(re.compile(r", ordered=([01])"))[1])))

    def _extension(self) -> pa.DataType:
        if self._skip("arrow.fixed_shape_tensor[value_type="):
            value_type = self.type()
            self._need(", ")
            tensor = self._take(_TENSOR)
            permutation = _numbers(tensor["permutation"])
            return pa.fixed_shape_tensor(value_type, _numbers(tensor["shape"]), permutation=permutation or None)
        make: Any = _EXTENSIONS.get(self._take(re.compile(r"[\w.]+"))[0])
        self._need(">")
        return make()


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def _leaf_type(leaf: re.Match[str]) -> pa.DataType:
    name = leaf["name"]
    if leaf["digits"] is not None:
        return getattr(pa, name)(*(int(number) for number in leaf["digits"].split(",")))
    if name == "timestamp":
        unit, _, zone = (leaf["unit"] or "").partition(", tz=")
        return pa.timestamp(unit, zone or None)
    if name == "fixed_size_binary":
        return pa.binary(int(leaf["unit"]))
    return getattr(pa, name)() if name in ("string_view", "binary_view") else pa.type_for_alias(leaf[0])
