"""The stage that decodes samples: each field by the first handler that knows it, each error with its place.

It combines webdataset's handlers and wdsplit's, by webdataset's rules. Whole columns are decoded at once if no handler
is a user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from webdataset.autodecode import Continue

from wdsplit.errors import CorruptDataError, InputError, MissingDependencyError, PipelineError, WdsplitError, noted
from wdsplit.integers import at_least
from wdsplit.loading.reading.block import Columns
from wdsplit.loading.stages.columns import Memory
from wdsplit.loading.stages.images import ImageField, Resized
from wdsplit.loading.stages.payloads import KINDS, Inflate, Payloads
from wdsplit.loading.stages.randomness import Drawing

__all__ = ["Decode", "Handler", "decode_sample_stage", "located"]

Handler = Callable[[str, bytes], Any]
"""Takes a field's name with a dot before it and its bytes; returns the value, or None to leave it to the next."""

_OURS = (Inflate, ImageField, Payloads, Resized)
_IMAGES = (ImageField, Resized)


@dataclass(frozen=True)
class Decode(Drawing):
    """A stage that decodes the fields of samples; made by `decode_sample_stage`.

    Attributes:
        handlers: Functions that may decode a field; the first that returns a value does.
        only: The fields that are decoded; None for all. Those that begin with two underscores never are.
        partial: Leave values alone that are not bytes, instead of refusing them.
    """

    handlers: tuple[Handler, ...]
    only: frozenset[str] | None
    partial: bool

    @property
    def is_columnar(self) -> bool:
        """Whether no handler is a user's function, so that `columns` may be used."""
        return all(isinstance(handler, _OURS) for handler in self.handlers)

    @property
    def draws_images(self) -> bool:
        """Whether random parts of images are taken."""
        return any(isinstance(handler, Resized) and handler.draws for handler in self.handlers)

    @property
    def row_bytes(self) -> int:
        """The largest size of an image that is decoded into the memory of its batch; 0 if none is."""
        return max((handler.row_bytes for handler in self.handlers if isinstance(handler, Resized)), default=0)

    def __call__(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Give the samples, in their order, with their fields decoded."""
        return map(self.sample, samples)

    def sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return one sample with its fields decoded."""
        return {
            name: self._value(name, value, sample) if self._is_decoded(name) else value
            for name, value in sample.items()
        }

    def columns(self, columns: Columns, room: Memory | None = None) -> Columns | None:
        """Decode whole columns; None if the samples are not dicts.

        The values are those that `sample` gives row by row, and so are the errors. Use it only if `is_columnar`.

        Args:
            columns: For each field n values: bytes, except in fields that are not decoded.
            room: The memory for images.

        Returns:
            For each field n values: int64 of shape (n,) for integers, an array of shape (n, ...) for npy of one shape
            and dtype (numbers, in native byte order), else a list. Fields that are not decoded come as they are.
        """
        if not isinstance(columns, dict):
            return None
        try:
            return {
                name: self._column(name, values, columns, room) if self._is_decoded(name) else values
                for name, values in columns.items()
            }
        except Exception:
            for row in zip(*columns.values(), strict=True):
                self.sample(dict(zip(columns, row, strict=True)))
            raise

    def _is_decoded(self, name: str) -> bool:
        return name[:2] != "__" and (self.only is None or name in self.only)

    def _column(self, name: str, values: Sequence[Any], columns: dict[str, Any], room: Memory | None) -> Any:
        kind = KINDS.get(name.rpartition(".")[2])
        # Of a sample, only what its random numbers depend on.
        rows: Iterable[dict[str, Any]] = repeat({})
        if self.draws is not None:
            rows = [{"__position__": position} for position in columns["__position__"].tolist()]
        if set(map(type, values)) == {bytes}:
            images = (handler for handler in self.handlers if isinstance(handler, _IMAGES) and handler.takes(name))
            image, column = next(images, None), None
            if kind is not None:
                column = kind.column(values)
            elif isinstance(image, Resized):
                memory = room.memory(*image.row) if room is not None and image.row_bytes else None
                column = image.column(values, map(self._seed_of, rows), memory)
            if column is not None:
                return column
        return [self._value(name, value, row) for value, row in zip(values, rows, strict=False)]

    def _seed_of(self, sample: Mapping[str, Any]) -> int | None:
        return None if self.draws is None else self.draws.seed_of(sample, "decode")

    def _value(self, name: str, value: Any, sample: Mapping[str, Any]) -> Any:
        if not isinstance(value, bytes):
            if self.partial:
                return value
            raise PipelineError(
                "a field cannot be decoded",
                place=_place(name, sample),
                expected="bytes",
                found=type(value).__name__,
                remedy="decode only once, or pass partial=True, or name the fields that are bytes with only=",
            )
        key, data = f".{name}", value
        for handler in self.handlers:
            try:
                if isinstance(handler, Resized) and handler.takes(key):
                    result = handler(key, data, self._seed_of(sample))
                else:
                    result = handler(key, data)
            except Exception as error:
                if isinstance(handler, _OURS):
                    raise located(error, name, sample) from error
                raise noted(error, f"while decoding {_place(name, sample)}") from error.__cause__
            if isinstance(result, Continue):
                key, data = result.key, result.data
            elif result is not None:
                return result
        return data


def decode_sample_stage(
    *handlers: str | Handler,
    only: str | Iterable[str] | None = None,
    partial: bool = False,
    allow_pickle: bool = False,
    max_field_bytes: int = 2**28,
    exif: bool = False,
) -> Decode:
    """Return a stage that decodes the fields of samples, as webdataset's `decode` does.

        decode = wdsplit.decode_sample_stage("pil", only="jpg cls")
        decoded = dataset.compose(decode)

    The handlers are tried in turn until one returns a value; if none does, the field stays bytes. The part after the
    last dot of a field's name is its type: txt, text, transcript; cls, cls2, index, inx, id; json, jsn; npy, npz; ten,
    tb; mp, msg; any of them compressed with .gz.

    Shards may come from strangers: pickles (pkl, pickle, pyd, pth, objects in npy and npz) are refused, and so are
    fields that would inflate beyond `max_field_bytes`. Your own handlers for such fields are tried first.

    Args:
        handlers: Functions of a field's name, with a dot before it, and its bytes, which return a value or None; or
            names of webdataset's image decoders, such as `pil`, `rgb8` or `torchrgb8`.
        only: The fields to decode, as a list or separated by spaces; by default all.
        partial: Leave values that are not bytes as they are, instead of refusing them.
        allow_pickle: Unpickle fields: whoever wrote the data can then run any code here.
        max_field_bytes: Limit for the bytes that a compressed field may inflate to; 256 MiB by default.
        exif: Turn images upright as their EXIF orientation says, as viewers do; webdataset leaves them as stored.

    Raises:
        InputError: An argument is invalid.
    """
    max_field_bytes = at_least(1, "max_field_bytes", max_field_bytes)
    named = tuple(ImageField(handler) if isinstance(handler, str) else handler for handler in handlers)
    named = tuple(replace(one, exif=True) if exif and isinstance(one, _IMAGES) else one for one in named)
    for handler in named:
        if not callable(handler):
            raise InputError("invalid decoder", expected="a function or a name", found=repr(handler))
    if exif and not any(isinstance(handler, _IMAGES) for handler in named):
        raise InputError(
            "exif=True without a decoder of images",
            expected="a name such as 'pil' or 'rgb8', or wdsplit.resized",
            remedy="turn images in your own function: PIL.ImageOps.exif_transpose does it",
        )
    chosen = only.split() if isinstance(only, str) else only
    tried: tuple[Handler, ...] = Inflate(max_field_bytes), *named, Payloads(bool(allow_pickle), max_field_bytes)
    return Decode(tried, None if chosen is None else frozenset(chosen), bool(partial))


# Errors


def _place(name: str, sample: Mapping[str, Any]) -> str:
    return f"field {name!r} of sample {sample.get('__key__', '')!r}, {sample.get('__url__', '')}"


def located(error: Exception, name: str, sample: Mapping[str, Any]) -> WdsplitError:
    """Return an error that says which field of which sample it is about."""
    place = _place(name, sample)
    if isinstance(error, WdsplitError):
        located = error.at(place)
    elif isinstance(error, ImportError):
        remedy = "install it, or decode only= other fields"
        located = MissingDependencyError(f"{error.name} is not installed", place=place, remedy=remedy)
    else:
        remedy = "run `wdsplit verify`; if it finds no damage, the field was damaged before the conversion"
        if ImageField("pil").takes(name):
            remedy = (
                "`wdsplit bench --bad-samples-file` lists all such samples, and a view leaves them out; "
                "Dataset(on_bad_sample='substitute') replaces them"
            )
        found = f"{type(error).__name__}: {error}"
        located = CorruptDataError("a field cannot be decoded", place=place, found=found, remedy=remedy)
    located.key, located.url = str(sample.get("__key__", "")), str(sample.get("__url__", ""))
    return located
