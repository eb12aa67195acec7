"""The names of a sample: keys, field names, pad keys and member names.

Pure (no I/O). A key is the part of a tar member's name before the first dot of its base name; the rest is the field.
Keys contain only `[A-Za-z0-9_/-]`, so that every tar reader splits a name at the same place. Any other key is escaped
reversibly: each other byte of its UTF-8 form becomes `_xHH`, as in OOXML names.
"""

from __future__ import annotations

import re

from wdsplit.errors import InputError

__all__ = [
    "KEY_PATTERN",
    "MAX_COMPONENT_BYTES",
    "MAX_FIELDS",
    "MAX_NAME_BYTES",
    "MEMBER_PATTERN",
    "META_PATTERN",
    "ODD_KEY_PATTERN",
    "PAD_PREFIX",
    "RESERVED_FIELDS",
    "ambiguous_key",
    "check_field",
    "escape_key",
    "pad_key",
    "split_member",
    "unescape_key",
]

MAX_NAME_BYTES = 1024
"""Maximum length of a member name. Over 99 bytes, each member needs an extended header of 1 KiB."""

MAX_COMPONENT_BYTES = 255
"""Maximum length of a name between slashes: the limit of file systems, to which members may be extracted."""

PAD_PREFIX = "_pad_/"
"""The prefix of all pads' keys, and of no other key: any reader can recognise a pad by its key.

Not `__pad__/`, because webdataset skips members in folders of that form.
"""

MAX_FIELDS = 1000
"""Maximum number of different fields in a tar: more come from keys with dots."""

RESERVED_FIELDS = ("__key__", "__url__", "__position__", "__pad__")

KEY_PATTERN = r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*"
"""Matches keys that need no escape, unless they match ODD_KEY_PATTERN too."""

ODD_KEY_PATTERN = r"_x|^_pad_/|^__[^/]*__/"
"""Matches keys that need an escape all the same: they look escaped or like a pad, or webdataset would skip them."""

MEMBER_PATTERN = r"^(?:\./)*(?P<key>(?:(?:[^/.][^/]*|\.[^/]+)?/(?:[^/]*/)*)?[^/.][^/.]*)\.(?P<field>[^/]+)$"
"""How the name of a tar's member splits: webdataset's rule, with two exceptions.

A leading `./` is dropped, because `tar -c .` writes it. A hidden file such as `._a.jpg` belongs to no sample, though
webdataset would take its folder as the key.
"""

META_PATTERN = r"^(?:\./)*__[^/]*__/"
"""Matches the members that webdataset leaves out: those in folders such as `__meta__/`."""

_MEMBER = re.compile(MEMBER_PATTERN.encode(), re.DOTALL)
_META = re.compile(META_PATTERN.encode())
_SAFE = re.compile(KEY_PATTERN)
_ODD = re.compile(ODD_KEY_PATTERN)
_SKIPPED_FOLDER = re.compile(rb"_pad_/|__[^/]*__/")
_ESCAPE_LOOKALIKE = re.compile(r"_x[0-9A-F]{2}")
_FIELD = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_LITERAL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def escape_key(raw: str) -> str:
    """Return `raw` as a key, with all characters but `[A-Za-z0-9_/-]` escaped. Reversed by `unescape_key`.

    A slash between two names is kept. It is escaped where extraction would lose it (first, last, doubled), and after a
    folder that readers treat specially (pads, and webdataset's `__name__/`).

    Raises:
        InputError: The key is empty.
    """
    if not raw:
        raise InputError("a key is empty", expected="at least one character", remedy="choose another key column")
    if _SAFE.fullmatch(raw) and not _ODD.search(raw):
        return raw
    data = raw.encode("utf-8", "surrogateescape")
    skipped = _SKIPPED_FOLDER.match(data)
    out: list[str] = []
    for i, byte in enumerate(data):
        if byte == 0x2F:
            inner = 0 < i < len(data) - 1 and data[i - 1] != 0x2F
            keep = inner and (skipped is None or i != skipped.end() - 1)
        elif byte == 0x5F:
            keep = not _ESCAPE_LOOKALIKE.match(data[i : i + 4].decode("latin-1"))
        else:
            keep = byte in _LITERAL
        out.append(chr(byte) if keep else f"_x{byte:02X}")
    return "".join(out)


def unescape_key(key: str) -> str:
    """Return the original of an escaped key: the inverse of `escape_key`.

        print(wdsplit.unescape_key("img_x2E1"))  # img.1

    A key without escapes is returned unchanged. Bytes that are not UTF-8 become surrogates (`surrogateescape`).
    """
    if "_x" not in key:
        return key
    data = re.sub(rb"_x([0-9A-F]{2})", lambda m: bytes([int(m.group(1), 16)]), key.encode())
    return data.decode("utf-8", "surrogateescape")


def ambiguous_key(key: str, url: str) -> InputError:
    """Return the error that two samples have a key: one in the tar, the other before it was escaped."""
    return InputError(
        "a key belongs to two samples",
        place=url,
        expected=f"{unescape_key(key)!r}, which is {key!r} in the tar; or {escape_key(key)!r}, which was {key!r} "
        "before it was escaped",
        found=repr(key),
        remedy="write one of these",
        key=key,
    )


def check_field(name: str) -> str:
    """Return `name` if it is a valid field name (a member's extension).

    Raises:
        InputError: The name is reserved, empty or not `[a-z0-9_-]` separated by dots.
    """
    if name in RESERVED_FIELDS or name.endswith("__") or not _FIELD.fullmatch(name):
        raise InputError(
            f"invalid field name {name!r}",
            expected="lower-case letters, digits, '_' and '-', separated by dots, such as jpg, cls or seg.png",
            remedy="name the field with --map EXT=COLUMN",
        )
    return name


def pad_key(shard: int, number: int) -> str:
    """Return the key of the pad `number` of a shard: unique in the whole dataset, with the prefix of pads."""
    return f"{PAD_PREFIX}{shard:06d}-{number:06d}"


def split_member(name: bytes) -> tuple[bytes, bytes] | None:
    """Return the key and field in a member's name; None if it belongs to no sample (MEMBER_PATTERN, META_PATTERN)."""
    match = _MEMBER.search(name)
    if match is None or _META.search(name):
        return None
    return match["key"], match["field"]
