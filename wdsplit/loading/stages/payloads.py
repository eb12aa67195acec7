"""Payloads decoded to values: with bounded memory, and never unpickled unless requested.

It combines webdataset's readers and wdsplit's. The name of a field gives its type, by webdataset's rule. Payloads may
come from strangers, so the sizes in a header are compared with the payload before memory is allocated.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from webdataset import autodecode, tenbin
from webdataset.autodecode import Continue

from wdsplit.errors import CorruptDataError, InputError

__all__ = ["KINDS", "Inflate", "Payloads"]

Array = npt.NDArray[Any]

_PICKLES = frozenset({"pickle", "pkl", "pth", "pyd"})
_STACKED_KINDS = "biufc"
_PIECE_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 10_000
_NPY_LENGTHS = {b"\x01": 10, b"\x02": 12, b"\x03": 12}
"""Where the text of an npy header begins, by version; its length is in the bytes from 8 up to there."""


@dataclass(frozen=True)
class Inflate:
    """Decompresses fields that end with .gz, piece by piece, for the handlers that follow.

    Attributes:
        max_bytes: The most bytes that a field may inflate to.
    """

    max_bytes: int

    def __call__(self, key: str, data: bytes) -> Continue | None:
        """Return the name without .gz and the bytes within, or None if the field is not compressed."""
        if not key.endswith(".gz"):
            return None
        inflated = io.BytesIO()  # pieces in a list would take twice the memory when they are joined
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while inflated.tell() <= self.max_bytes and (piece := file.read(_PIECE_BYTES)):
                inflated.write(piece)
        if inflated.tell() > self.max_bytes:
            raise _too_large(self.max_bytes, f"more than {self.max_bytes} bytes in {len(data)}")
        return Continue(key[: -len(".gz")], inflated.getvalue())


@dataclass(frozen=True)
class Payloads:
    """Decodes fields by the types in their names.

    Attributes:
        allow_pickle: Whether to unpickle.
        max_bytes: The most bytes that an npz may inflate to.
    """

    allow_pickle: bool
    max_bytes: int

    def __call__(self, key: str, data: bytes) -> Any:
        """Return the value, or None if the name has no known type."""
        extension = key.rpartition(".")[2]
        if extension == "npy":
            return _read_npy(data, self.allow_pickle)
        if extension == "npz":
            return self._read_npz(data)
        if extension in _PICKLES:
            if not self.allow_pickle:
                raise _pickled(f"a field .{extension} is a pickle")
            # By a name that all versions of webdataset know: to those before 1.0.2 .pkl is no pickle.
            return autodecode.basichandlers("pth" if extension == "pth" else "pickle", data)
        if extension == "cbor":
            raise InputError(
                "a field .cbor is not decoded: a few bytes can make its reader crash the process",
                expected="fields of other types",
                found=f".{extension}",
                remedy="decode only= the other fields, or pass a function of your own as a handler",
            )
        kind = KINDS.get(extension)
        return None if kind is None else kind.value(data)

    def _read_npz(self, data: bytes) -> dict[str, Any]:
        """Return the arrays of an npz by name; other members come as bytes, as from numpy."""
        values = {}
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            num_bytes = sum(info.file_size for info in archive.infolist())
            if num_bytes > self.max_bytes:
                raise _too_large(self.max_bytes, f"{num_bytes} bytes in {len(data)}")
            for name in archive.namelist():
                info = archive.getinfo(name)
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise CorruptDataError("an npz has a compression that numpy does not write", place=name)
                with archive.open(info) as file:
                    # Read only the size in the header: otherwise zipfile would inflate more.
                    payload = file.read(info.file_size)
                is_array = payload[:6] == np.lib.format.MAGIC_PREFIX
                values[name.removesuffix(".npy")] = _read_npy(payload, self.allow_pickle) if is_array else payload
        return values


# Arrays


_FLAT_HEADER = re.compile(
    rb"\x93NUMPY.{4,6}\{'descr': '([<|](?:b1|[iu][1248]|f[248]|c8|c16))', 'fortran_order': False, "
    rb"'shape': \((\d{1,18}),\), \} *\n",
    re.S,
)
"""The header of a flat array of numbers. Those of texts all have another length, and numpy's parser takes 50 us."""


@dataclass(frozen=True)
class _Layout:
    """The contents of an npy's header, which `num_bytes` of payload follow."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    num_bytes: int


def _npy_header(data: bytes) -> bytes:
    """Return an npy's header, up to where its payload begins."""
    begin = _NPY_LENGTHS.get(data[6:7], 0)
    if data[:6] != np.lib.format.MAGIC_PREFIX or not begin:
        raise CorruptDataError("not an npy", expected=r"\x93NUMPY and a version", found=repr(data[:8]))
    length = int.from_bytes(data[8:begin], "little")
    if length > _MAX_HEADER_BYTES or len(data) < begin + length:
        raise CorruptDataError(
            "invalid npy header",
            expected=f"a complete header of at most {_MAX_HEADER_BYTES} bytes",
            found=f"a header of {length} bytes in a field of {len(data)}",
        )
    return data[: begin + length]


@functools.lru_cache(maxsize=256)
def _npy_layout(header: bytes) -> _Layout:
    """Parse an npy's header; most samples have the same one, so results are cached."""
    flat = _FLAT_HEADER.fullmatch(header)
    if flat is not None:
        dtype, count = np.dtype(flat[1].decode()), int(flat[2])
        return _Layout((count,), False, dtype, count * dtype.itemsize)
    file = io.BytesIO(header)
    version, _ = np.lib.format.read_magic(file)
    # Version 3 differs in how names of columns are encoded, not in what counts here.
    read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    return _Layout(shape, is_fortran, dtype, math.prod(shape) * dtype.itemsize)


def _read_npy(data: bytes, allow_pickle: bool = False) -> Array:
    """Return the array of an npy, in memory of its own."""
    header = _npy_header(data)
    layout = _npy_layout(header)
    if layout.dtype.hasobject:
        if not allow_pickle:
            raise _pickled("an npy holds objects, which are pickles")
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=True)
    if layout.num_bytes != len(data) - len(header) or not layout.dtype.itemsize:
        raise CorruptDataError(
            "an npy is not as long as its header says",
            expected=f"{layout.num_bytes} bytes for {layout.dtype} of shape {layout.shape}",
            found=f"{len(data) - len(header)} bytes",
        )
    if layout.dtype.kind == "V" or not layout.num_bytes:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    order: Any = "F" if layout.is_fortran else "C"
    array = np.frombuffer(data, layout.dtype, offset=len(header)).copy()
    shaped: Array = array.reshape(layout.shape, order=order)  # np.reshape takes twice as long
    return shaped


def _stacked_npy(values: Sequence[bytes]) -> Array | None:
    """Return npys with the same header as one array; None if headers differ, or the values are not numbers."""
    header = _npy_header(values[0])
    layout = _npy_layout(header)
    is_plain = layout.dtype.kind in _STACKED_KINDS and layout.num_bytes and not layout.is_fortran
    if not is_plain or set(map(len, values)) != {len(header) + layout.num_bytes}:
        return None
    if not all(value.startswith(header) for value in values):
        return None
    payloads = bytearray().join([memoryview(value)[len(header) :] for value in values])
    array = np.frombuffer(payloads, layout.dtype).reshape(len(values), *layout.shape)
    return array.astype(layout.dtype.newbyteorder("="), copy=False)


# Other values


_LONG_NUMBER = re.compile(rb"\d{19}")


def _read_json(data: bytes) -> Any:
    """Return what json.loads does, mostly by orjson, which turns large integers into floats and refuses NaN."""
    if not _LONG_NUMBER.search(data):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
    return json.loads(data)


def _read_ten(data: bytes) -> Any:
    """Return the arrays of a ten, after a check that no chunk points backwards: webdataset would loop forever."""
    offset = 0
    while offset < len(data):
        num_bytes = int.from_bytes(data[offset + 8 : offset + 16], "little", signed=True)
        if num_bytes < 0:
            raise CorruptDataError("a ten has a chunk of negative length", found=f"{num_bytes} bytes", offset=offset)
        offset += 16 + tenbin.roundup(num_bytes)
    return tenbin.decode_buffer(data)


def _integers(values: Sequence[bytes]) -> Any:
    numbers = list(map(int, values))
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return numbers


def _jsons(values: Sequence[bytes]) -> list[Any] | None:
    """Return the parsed texts; None if one is null, which leaves a field as it is."""
    decoded = list(map(_read_json, values))
    return None if any(value is None for value in decoded) else decoded


class Kind(NamedTuple):
    """Decoders of a kind of fields, with the same values.

    Attributes:
        value: Decodes one field.
        column: Decodes a column, or returns None if only `value` can.
    """

    value: Callable[[bytes], Any]
    column: Callable[[Sequence[bytes]], Any] = lambda values: None


_KINDS = {
    ("txt", "text", "transcript"): Kind(bytes.decode, lambda values: list(map(bytes.decode, values))),
    ("cls", "cls2", "index", "inx", "id"): Kind(int, _integers),
    ("json", "jsn"): Kind(_read_json, _jsons),
    ("npy",): Kind(_read_npy, _stacked_npy),
    ("ten", "tb"): Kind(_read_ten),
    ("mp", "msg"): Kind(autodecode.msgpack_loads),
}
KINDS = {extension: kind for extensions, kind in _KINDS.items() for extension in extensions}
"""The decoders of fields, by the last part of their names."""


# Errors


def _pickled(cause: str) -> InputError:
    return InputError(
        cause,
        expected="data that runs no code when it is read",
        remedy="pass allow_pickle=True to decode if you trust where the data comes from, or only= other fields",
    )


def _too_large(max_bytes: int, found: str) -> InputError:
    return InputError(
        "a compressed field is too large",
        expected=f"at most {max_bytes} bytes once inflated",
        found=found,
        remedy="pass a larger max_field_bytes to decode if the field is as large as it should be",
    )
