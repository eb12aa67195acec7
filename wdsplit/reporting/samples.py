"""Samples for the contact sheet: images as thumbnails, short audio whole, texts shortened, arrays by shape and range.

Only audio comes into the page as it is, and only if its name tells its format.
"""

from __future__ import annotations

import base64
import io
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdsplit.errors import MissingDependencyError
from wdsplit.loading.stages.image_files import IMAGE_FORMATS, open_image
from wdsplit.reporting.payloads import MIME_TYPES, array_header, kind_of
from wdsplit.reporting.subject import Subject
from wdsplit.shards.manifest import Field
from wdsplit.tar.names import RESERVED_FIELDS, unescape_key
from wdsplit.texts import class_name, counted, human_bytes, human_number, safe_text

__all__ = ["Card", "Item", "cards"]

_SIDE = 112
"""Pixels of a thumbnail's longer side, at most."""
_MAX_PIXELS = 64_000_000
_MAX_AUDIO_BYTES = 96_000
_MAX_EMBEDDED_BYTES = 1_500_000
"""Bytes of all that a contact sheet shows, so that the page stays below its limit."""
_TEXT_CHARACTERS, _FEW_CHARACTERS, _KEY_CHARACTERS, _FILE_CHARACTERS = 240, 20, 80, 160
_MAX_ARRAY_BYTES = 4_000_000
_MAX_FIELDS = 12


@dataclass(frozen=True)
class Item:
    """A field of a sample, as it is shown.

    Attributes:
        field: Its name.
        kind: image, audio, text or note.
        text: The text, or a description.
        uri: A data URI of the image or audio.
        is_tiny: Whether the image has few pixels, each of which should be seen.
    """

    field: str
    kind: str
    text: str
    uri: str = ""
    is_tiny: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes in the page, at most: an escaped character takes five."""
        return len(self.uri) + 5 * len(self.text)


@dataclass(frozen=True)
class Card:
    """A sample, as it is shown.

    Attributes:
        number: Its number in the dataset.
        key: Its key.
        label: The name of its class; empty if there is none.
        shard: The name of its shard.
        items: Its fields.
        why: What is odd about it, for samples that stand out.
        file: The file that it was made from; empty if the dataset does not say.
    """

    number: int
    key: str
    label: str
    shard: str
    items: tuple[Item, ...]
    why: str = ""
    file: str = ""

    @property
    def has_image(self) -> bool:
        """Whether a thumbnail is shown."""
        return any(item.kind == "image" for item in self.items)

    @property
    def anchor(self) -> str:
        """The fragment of links to it."""
        return f"sample-{self.number}"


def cards(
    subject: Subject, numbers: Sequence[int], label_field: str, why: Mapping[int, str] | None = None
) -> list[Card]:
    """Read samples and make their cards, in the order of the numbers.

    Args:
        subject: The dataset.
        numbers: The numbers of samples.
        label_field: The field that holds the classes; empty if none does.
        why: For samples that stand out, what is odd.
    """
    known = {each.name: each for manifest in subject.manifests for each in manifest.fields}
    files, made, max_bytes = subject.file_names(numbers), dict[int, Card](), _MAX_EMBEDDED_BYTES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of odd files
        for number, sample in subject.samples(numbers):
            file = safe_text(files[number], _FILE_CHARACTERS)
            card = _card(number, sample, known, label_field, max_bytes)
            made[number] = replace(card, why=(why or {}).get(number, ""), file=file)
            max_bytes -= sum(item.num_bytes for item in card.items)
    return [made[number] for number in dict.fromkeys(numbers)]


def _card(number: int, sample: dict[str, Any], known: dict[str, Field], label_field: str, max_bytes: int) -> Card:
    fields = [name for name in sample if name not in RESERVED_FIELDS and name != "__source__"]
    label = ""
    if label_field in sample:
        names = known[label_field].names if label_field in known else ()
        label = safe_text(class_name(sample[label_field].decode("utf-8", "replace").strip(), names), _KEY_CHARACTERS)
    items = []
    for name in fields[:_MAX_FIELDS]:
        if name == label_field:
            continue
        item = _item(name, sample[name], kind_of(name, known.get(name)), max_bytes)
        max_bytes -= item.num_bytes
        items.append(item)
    if len(fields) > _MAX_FIELDS:
        items.append(Item("", "note", counted(len(fields) - _MAX_FIELDS, "more field")))
    key = safe_text(unescape_key(sample["__key__"]), _KEY_CHARACTERS)
    shard = safe_text(str(sample["__url__"]).rpartition("/")[2], _KEY_CHARACTERS)
    return Card(number, key, label, shard, tuple(items))


def _item(name: str, payload: bytes, kind: str, max_bytes: int) -> Item:
    shown = safe_text(name, _KEY_CHARACTERS)
    if not payload:
        return Item(shown, "note", "empty")
    try:
        if kind == "image":
            return _image(shown, payload, max_bytes)
        if kind == "audio":
            return _audio(shown, name, payload, max_bytes)
        if kind == "array":
            return Item(shown, "note", _array(payload))
        if kind in ("json", "text", "number"):
            text = json.dumps(json.loads(payload), ensure_ascii=False) if kind == "json" else payload.decode()
            characters = max(_FEW_CHARACTERS, min(_TEXT_CHARACTERS, max_bytes // 10))
            return Item(shown, "text", safe_text(text, characters, lines=True))
    except (OSError, ValueError, SyntaxError, EOFError, RecursionError, TypeError, IndexError, KeyError):
        return Item(shown, "note", f"unreadable as {kind}, {human_bytes(len(payload))}")
    return Item(shown, "note", f"{human_bytes(len(payload))}")


def _image(shown: str, payload: bytes, max_bytes: int) -> Item:
    """Return a thumbnail. It is encoded anew, so no byte of a dataset's image reaches the page."""
    size = human_bytes(len(payload))
    try:
        image = open_image(payload, IMAGE_FORMATS)
    except MissingDependencyError:
        return Item(shown, "note", f"{size}; to see it: pip install 'wdsplit[report]'")
    width, height = image.size
    note = f"{width:,} x {height:,} {image.format or 'PNG'}, {size}"
    if width * height > _MAX_PIXELS:
        return Item(shown, "note", f"{note}: too large to draw here")
    has_alpha = image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info
    image.draft("RGB", (2 * _SIDE, 2 * _SIDE))
    small = image.convert("RGBA" if has_alpha else "RGB")
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    if has_alpha:
        small.save(file, "PNG", optimize=True)
    else:
        small.save(file, "JPEG", quality=82)
    uri = _data_uri("image/png" if has_alpha else "image/jpeg", file.getvalue())
    if len(uri) > max_bytes:
        return Item(shown, "note", note)
    return Item(shown, "image", note, uri, max(width, height) <= _SIDE // 2)


def _audio(shown: str, name: str, payload: bytes, max_bytes: int) -> Item:
    note = human_bytes(len(payload))
    last = name.rpartition(".")[2]
    if len(payload) > min(_MAX_AUDIO_BYTES, max_bytes * 3 // 4 - 64):
        return Item(shown, "note", f"{note}: too large to play here")
    return Item(shown, "audio", note, _data_uri(MIME_TYPES[last], payload))


def _data_uri(mime_type: str, data: bytes) -> str:
    return f"data:{mime_type};base64,{base64.b64encode(data).decode('ascii')}"


def _array(payload: bytes) -> str:
    shape, dtype = array_header(payload)
    text = f"{' x '.join(map(str, shape)) or 'scalar'} {dtype}"
    if len(payload) > _MAX_ARRAY_BYTES or np.dtype(dtype).kind not in "biuf":
        return text
    values = np.load(io.BytesIO(payload), allow_pickle=False)
    if not values.size:
        return text
    return f"{text}, from {human_number(float(values.min()))} to {human_number(float(values.max()))}"
