"""The rules that choose field and encoding for each Arrow type. docs/types.md is made from them.

Pure (no I/O). The first matching rule decides. Dictionaries count as their values, extension types as their storage. A
type without a rule is an error, and so is a type that contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "RULES",
    "WRAPPERS",
    "Rule",
    "is_array",
    "is_binary",
    "is_list",
    "is_media",
    "is_nested_numbers",
    "is_tensor",
    "is_text",
    "rule_of",
    "unwrap",
    "why_refused",
]


@dataclass(frozen=True)
class Rule:
    """How columns of some types are written.

    Attributes:
        types: The types, for the documentation.
        matches: Returns whether a type is one of them.
        encoding: How `encode` writes them; empty if columns of these types are refused.
        extension: Their field; empty if their first bytes decide, or if the columns are refused. With a dot in front,
            the name of the column always comes first: `height.json` says what the number is.
        payload: The payload, for the documentation.
        inner: The value inside a list, struct or map, for the documentation.
    """

    types: str
    matches: Callable[[pa.DataType], bool]
    encoding: str
    extension: str
    payload: str
    inner: str


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a string type."""
    return str(kind) in ("string", "large_string", "string_view")


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is a type of bytes."""
    return str(kind) in ("binary", "large_binary", "binary_view") or bool(pa.types.is_fixed_size_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list type, of any or fixed length."""
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<", "list_view<", "large_list_view<"))


def is_tensor(kind: pa.DataType) -> bool:
    """Return whether a type is the extension type of tensors with a fixed shape."""
    return getattr(kind, "extension_name", None) == "arrow.fixed_shape_tensor"


def _is_json_text(kind: pa.DataType) -> bool:
    return getattr(kind, "extension_name", None) == "arrow.json"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_nested_numbers(kind: pa.DataType) -> bool:
    """Return whether a type is lists of numbers or booleans, or lists of such lists, to any depth."""
    return is_list(kind) and (_is_number(kind.value_type) or is_nested_numbers(kind.value_type))


def is_array(kind: pa.DataType) -> bool:
    """Return whether the type alone makes its values arrays: only the outermost lists may vary in length."""
    if not is_list(kind):
        return False
    inner = kind.value_type
    return _is_number(inner) or (bool(pa.types.is_fixed_size_list(inner)) and is_array(inner))


def is_media(kind: pa.DataType) -> bool:
    """Return whether a type is that of Hugging Face's images and audio: structs of bytes and path."""
    if not pa.types.is_struct(kind):
        return False
    children = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    return "bytes" in children and is_binary(children["bytes"]) and children.keys() <= {"bytes", "path"}


RULES: tuple[Rule, ...] = (
    Rule("null", pa.types.is_null, "", "", "left out with `--null omit`, else refused", "`null`"),
    Rule("boolean", pa.types.is_boolean, "integer", ".json", "`false` or `true`", "the same"),
    Rule("integer of 8 to 64 bits", pa.types.is_integer, "integer", ".json", "number, all digits", "the same"),
    Rule(
        "float of 16 to 64 bits",
        pa.types.is_floating,
        "json",
        ".json",
        "shortest number that reads back the same; `NaN`, `Infinity`, `-Infinity`",
        "the same",
    ),
    Rule("decimal of 32 to 256 bits", pa.types.is_decimal, "json", ".json", 'string: `"12.30"`', "the same"),
    Rule("string, large string, string view", is_text, "text", "txt", "UTF-8", "string"),
    Rule(
        "JSON text (the extension type `arrow.json`)",
        _is_json_text,
        "text",
        "json",
        "unchanged",
        "string that holds the text",
    ),
    Rule(
        "binary, large binary, fixed-size binary, binary view",
        is_binary,
        "bytes",
        "",
        "as they are",
        "string in base64",
    ),
    Rule(
        "struct of `bytes` and `path`: Hugging Face images and audio",
        is_media,
        "media",
        "",
        "the `bytes` as they are; the `path` is not kept",
        "as any struct",
    ),
    Rule("date", pa.types.is_date, "json", ".json", '`"2024-02-29"`', "the same"),
    Rule("time", pa.types.is_time, "json", ".json", '`"23:59:59.123"`, all digits of its unit', "the same"),
    Rule(
        "timestamp with a zone",
        lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
        "json",
        ".json",
        '`"2024-02-29T23:59:59.123456Z"`: the instant in UTC, all digits of its unit (to ns)',
        "the same",
    ),
    Rule(
        "timestamp without a zone",
        pa.types.is_timestamp,
        "json",
        ".json",
        '`"2024-02-29T23:59:59.123456"`, all digits of its unit (to ns)',
        "the same",
    ),
    Rule("duration", pa.types.is_duration, "json", ".json", "whole number of its unit", "the same"),
    Rule(
        "fixed-shape tensor (the extension type)",
        is_tensor,
        "npy",
        "npy",
        "array of its shape, permuted as it says (a permutation that is not its own inverse is refused)",
        "flat list of numbers, as it is stored",
    ),
    Rule(
        "list of numbers or booleans (plain, large, fixed-size, view), and of fixed-size lists of them",
        is_array,
        "npy",
        "npy",
        "array of as many dimensions as lists",
        "list",
    ),
    Rule("any other list", is_list, "json", "json", "list", "the same"),
    Rule("any other struct", pa.types.is_struct, "json", "json", "object", "the same"),
    Rule("map", pa.types.is_map, "json", "json", "list of pairs: `[[key,value],...]`, in their order", "the same"),
)

WRAPPERS: tuple[Rule, ...] = (
    Rule("dictionary", pa.types.is_dictionary, "", "", "as its values", "the same"),
    Rule(
        "any other extension type (`arrow.uuid`, `arrow.bool8`, ...)",
        lambda kind: isinstance(kind, pa.BaseExtensionType) and not is_tensor(kind) and not _is_json_text(kind),
        "",
        "",
        "as its storage",
        "the same",
    ),
)
"""Types that count as what they contain."""


def unwrap(kind: pa.DataType) -> pa.DataType:
    """Return the type that decides how to write a column: that of a dictionary's values or an extension's storage."""
    dictionary, extension = WRAPPERS
    while True:
        if dictionary.matches(kind):
            kind = kind.value_type
        elif extension.matches(kind):
            kind = kind.storage_type
        else:
            return kind


def rule_of(kind: pa.DataType) -> Rule | None:
    """Return the rule for a type, or None if it is unknown; types inside it are not checked."""
    kind = unwrap(kind)
    return next((rule for rule in RULES if rule.matches(kind)), None)


def why_refused(kind: pa.DataType) -> str | None:
    """Return why a column of a type cannot be written, or None if it can."""
    kind = unwrap(kind)
    rule = rule_of(kind)
    if rule is not None and not rule.encoding:
        return "a column of nulls has nothing to write"
    # By the specification, dimension i of the array is dimension permutation[i] of the storage. But pyarrow's
    # `from_numpy_ndarray` writes the inverse, and its `to_numpy_ndarray` returns neither: all readings must agree.
    axes = list(kind.permutation or []) if is_tensor(kind) else []
    if any(axes[axis] != number for number, axis in enumerate(axes)):
        return f"pyarrow and the format's specification differ on the meaning of the permutation {kind.permutation}"
    return _why_refused_inside(kind)


def _why_refused_inside(kind: pa.DataType) -> str | None:
    kind = unwrap(kind)
    children: list[pa.DataType] = []
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if not names:
            return "a struct has no fields"
        if len(set(names)) < len(names):
            return "two fields of a struct share a name"
        children = [kind.field(i).type for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        children = [kind.key_type, kind.item_type]
    elif is_list(kind):
        children = [kind.value_type]
    elif rule_of(kind) is None:
        return f"there is no rule for {kind}"
    return next((why for why in map(_why_refused_inside, children) if why), None)
