"""Rows from Python, dicts of values, as Arrow record batches.

Arrow infers the types it knows. Arrays become npy, images the bytes of their files, and dicts JSON strings.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.errors import InputError, first_line, noted
from wdsplit.fields.encode import npy_header
from wdsplit.fields.infer import sniff, with_features
from wdsplit.fields.keys import Locate
from wdsplit.tables.formats.common import BATCH_BYTES

__all__ = ["numbered", "row_batches"]

_BATCH_ROWS = 1024
_JSON, _BYTES, _VALUE = "nested dicts", "bytes, arrays or images", "plain values"


def row_batches(rows: Iterable[Any], where: Locate = "row {}".format) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of at most 1,024 rows and about 16 MiB, each with the types of its values.

    Args:
        rows: Dicts of column to value; a column that a row lacks is null there.
        where: Returns the place of a row, counted from 0, for an error.

    Raises:
        InputError: A row is not a dict, or a column has values of two kinds, or of an unsupported kind.
    """
    columns = _Columns(where)
    for number, row in enumerate(rows):
        columns.add(number, row)
        if columns.is_full:
            yield columns.batch()
    if columns.num_rows:
        yield columns.batch()


def numbered(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows; an error from their source gets a note with the row number."""
    number = 0
    try:
        for row in rows:
            yield row
            number += 1
    except Exception as error:
        noted(error, f"raised by the source of rows, at row {number} (counted from 0)")
        raise


class _Columns:
    """Collects rows; the kinds of the columns stay the same from batch to batch."""

    def __init__(self, where: Locate) -> None:
        self.num_rows = 0
        self._where = where
        self._first = 0
        self._num_bytes = 0
        self._kinds: dict[str, str] = {}
        self._values: dict[str, list[Any]] = {}

    @property
    def is_full(self) -> bool:
        return self.num_rows >= _BATCH_ROWS or self._num_bytes >= BATCH_BYTES

    def add(self, number: int, row: Any) -> None:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise _not_a_dict(self._where(number), row)
        for name, value in row.items():
            if value is None:
                continue
            values = self._values.setdefault(name, [])
            kind, converted = _converted(value, self._place(number, name))
            if kind != self._kinds.setdefault(name, kind):
                raise InputError(
                    "a column has values of two kinds",
                    place=self._place(number, name),
                    expected=f"{self._kinds[name]}, as in the rows before",
                    found=f"{kind} ({_type_name(value)})",
                    remedy="use values of one kind, or a column for each kind",
                )
            values += [None] * (self.num_rows - len(values))
            values.append(converted)
            self._num_bytes += len(converted) if isinstance(converted, (bytes, str)) else 16
        for name in row:
            self._values.setdefault(name, [])
        self.num_rows += 1

    def _place(self, number: int, name: str) -> str:
        return f"{self._where(number)}, column {name!r}"

    def batch(self) -> pa.RecordBatch:
        """Return the rows that were added since the last batch."""
        arrays = {name: self._array(name, values) for name, values in self._values.items()}
        features = {name: {"_type": "Json"} for name, kind in self._kinds.items() if kind == _JSON}
        schema = pa.schema([(name, array.type) for name, array in arrays.items()])
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), schema=with_features(schema, features))
        self._first += self.num_rows
        self.num_rows = self._num_bytes = 0
        self._values = {name: [] for name in self._values}
        return batch

    def _array(self, name: str, values: list[Any]) -> pa.Array:
        values += [None] * (self.num_rows - len(values))
        try:
            return pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            row = bisect_left(range(1, len(values) + 1), True, key=lambda count: _why_not(values[:count]) is not None)
            raise InputError(
                "a value has an unsupported type, or another type than the values before it",
                place=self._place(self._first + row, name),
                expected="one type per column: bool, 64-bit int, float, str, bytes, date or time, Decimal, list, "
                "dict, numpy array or PIL image",
                found=f"{_type_name(values[row])}: {_why_not(values[: row + 1])}",
                remedy="convert the values to one of these types, or leave the column out",
            ) from error


def _why_not(values: list[Any]) -> str | None:
    """Return why values cannot be a column, or None if they can."""
    try:
        pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return first_line(error)
    return None


def _converted(value: Any, place: str) -> tuple[str, Any]:
    """Return the kind of a value, and the value to give to Arrow."""
    image_module: Any = sys.modules.get("PIL.Image")
    if isinstance(value, (str, int, float, np.generic)):
        return _VALUE, value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _BYTES, bytes(value)
    if image_module is not None and isinstance(value, image_module.Image):
        return _BYTES, _image_bytes(value, place)
    if isinstance(value, Mapping) and value.keys() == {"bytes", "path"}:  # a Hugging Face image or audio
        if value["bytes"] is None:
            raise _unusable(place, f"no bytes, only the path {value['path']!r}", "the bytes of the file")
        return _BYTES, bytes(value["bytes"])
    if isinstance(value, (set, frozenset)):
        raise _unusable(place, value, "a list: a set has no order")
    if isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and _holds_dicts(value)):
        return _JSON, _json_text(value, place)
    if hasattr(value, "__array__") and not isinstance(value, (list, tuple)):
        array = np.asarray(value)
        return (_BYTES, _npy(array, place)) if array.ndim else (_VALUE, array[()])
    return _VALUE, value


def _holds_dicts(values: Sequence[Any]) -> bool:
    """Return whether lists contain dicts, judged by the first value: Arrow refuses lists that mix dicts and others."""
    first = next((each for each in values if each is not None), None)
    return isinstance(first, Mapping) or (isinstance(first, (list, tuple)) and _holds_dicts(first))


def _npy(array: np.ndarray[Any, Any], place: str) -> bytes:
    """Return an array as npy: little-endian, in C order."""
    if array.dtype.kind not in "biufc":
        raise _unusable(place, array.dtype, "an array of numbers or booleans")
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return npy_header(array.dtype, array.shape) + array.tobytes()


def _image_bytes(image: Any, place: str) -> bytes:
    """Return an image's original file if it is not decoded yet; else encode it, a JPEG as JPEG and others as PNG."""
    file, inner = getattr(image, "fp", None), vars(image)
    is_decoded = inner.get("_im", inner.get("im")) is not None or inner.get("decoderconfig", ()) != ()
    if file is not None and not is_decoded:
        begin = file.tell()
        file.seek(0)
        data: bytes = file.read()
        file.seek(begin)
        if sniff(data) is not None:
            return data
    buffer = io.BytesIO()
    try:
        if image.format == "JPEG":
            image.save(buffer, "JPEG", quality="keep")
        else:
            image.save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise _unusable(place, f"a PIL image of mode {image.mode}", f"an image that PNG can hold ({error})") from error
    return buffer.getvalue()


def _json_text(value: Any, place: str) -> str:
    def plain(inner: Any) -> Any:
        if isinstance(inner, Mapping):
            return dict(inner)
        if isinstance(inner, (np.generic, np.ndarray)):
            return inner.tolist()
        if isinstance(inner, (datetime.date, datetime.time)):
            return inner.isoformat()
        if isinstance(inner, (bytes, bytearray, memoryview)):
            return base64.b64encode(inner).decode()
        raise TypeError(f"a {_type_name(inner)} inside")

    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unusable(place, value, f"what JSON can hold ({error})") from error


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _not_a_dict(place: str, row: Any) -> InputError:
    names = [f"field{place}" for place in range(len(row))] if isinstance(row, (tuple, list)) else ["field"]
    made = ", ".join(f"{name!r}: {name}" for name in names)
    return InputError(
        "a row is not a dict of column names and values",
        place=place,
        expected="a dict with string keys, such as {'jpg': image, 'cls': label}",
        found=f"a dict with other keys: {list(row)[:3]!r}" if isinstance(row, Mapping) else _type_name(row),
        remedy=f"name the values: wdsplit.convert(({{{made}}} for {', '.join(names)} in rows), output)",
    )


def _unusable(place: str, value: Any, expected: str) -> InputError:
    found = value if isinstance(value, str) else _type_name(value)
    return InputError("a value cannot be written", place=place, expected=expected, found=found)
