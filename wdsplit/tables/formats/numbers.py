"""Numbers in text that must not lose digits.

Pure (no I/O).
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["are_exact", "inexact_numbers", "number_places"]

_SAFE_DIGITS = 15
"""A double holds any number of so many digits."""
_LONG_NUMBER = re.compile(rb"[0-9][0-9.]{15,}(?:[eE][-+]?[0-9]+)?")
_SMALL_NUMBER = re.compile(rb"[0-9][0-9.]*[eE]-[0-9]{3,}")
_SMALL_EXPONENT = re.compile(rb"[eE]-[0-9]{3}")
_NUMBER = r"^[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$"
_INTEGER = r"^[0-9]{1,19}$"


def are_exact(numbers: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell which numbers a double holds with all the digits that they are written with: bool of shape (n,).

    That is so if the double, printed with as many digits, is the same number again. Zeros at the end count: `1.10` is
    exact, and so is 0.1 printed with 17 or with 30 digits, but not 9007199254740993.

    Args:
        numbers: n strings that Arrow reads as doubles; infinities and NaN count as exact.
    """
    exact = np.ones(len(numbers), np.bool_)
    odd = (pc.greater(pc.binary_length(numbers), _SAFE_DIGITS)).to_numpy(zero_copy_only=False)
    if not odd.all():
        odd = odd | pc.match_substring_regex(numbers, "[eE][-+]?[0-9]{3}").to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(odd)
    some = numbers.take(pa.array(rows))
    doubles = some.cast(pa.float64())
    shortest = pc.ascii_rtrim(_digits(doubles.cast(some.type)), "0")
    same = pc.equal(shortest, pc.ascii_rtrim(_digits(some), "0")).to_numpy(zero_copy_only=False)
    exact[rows[~same]] = _are_printed_so(some.filter(pa.array(~same)), doubles.to_numpy()[~same])
    return exact


def _digits(numbers: pa.Array) -> pa.Array:
    """Return the digits of numbers, without exponent and without zeros at the beginning."""
    if pc.any(pc.match_substring(numbers, "e", ignore_case=True), min_count=0).as_py():
        numbers = pc.replace_substring_regex(numbers, "[eE].*", "")
    return pc.ascii_ltrim(pc.replace_substring(numbers, ".", ""), "-+0")


def _are_printed_so(numbers: pa.Array, doubles: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Tell which numbers have the digits that the doubles have when printed with as many."""
    exact = np.zeros(len(numbers), np.bool_)
    digits = _digits(numbers)
    lengths = np.asarray(pc.binary_length(digits))
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        form = f"%.{max(0, length - 1)}e"
        printed = pa.array([form % value for value in doubles[rows].tolist()], digits.type)
        exact[rows] = pc.equal(_digits(printed), digits.take(pa.array(rows))).to_numpy(zero_copy_only=False)
    return exact


def inexact_numbers(data: bytes) -> tuple[set[bytes], set[bytes]]:
    """Return the integers of 64 bits, and the other numbers, that no double holds; without signs.

    Some of them may stand inside strings.
    """
    tokens: list[bytes] = []
    if _has_long_run(data):
        tokens += _LONG_NUMBER.findall(data)
    if (b"e-" in data or b"E-" in data) and _SMALL_EXPONENT.search(data):
        tokens += _SMALL_NUMBER.findall(data)
    if not tokens:
        return set(), set()
    numbers = pa.array(tokens, pa.binary()).cast(pa.string())
    numbers = numbers.filter(pc.match_substring_regex(numbers, _NUMBER))
    numbers = numbers.filter(pa.array(~are_exact(numbers)))
    is_integer = pc.match_substring_regex(numbers, _INTEGER)
    integers = {text.encode() for text in numbers.filter(is_integer).to_pylist() if int(text) < 2**63}
    return integers, {text.encode() for text in numbers.to_pylist()} - integers


def _has_long_run(data: bytes) -> bool:
    """Tell whether 16 digits or points stand one after another; slashes count too."""
    runs = np.frombuffer(data, np.uint8) - np.uint8(ord(".")) < 12
    for step in (1, 2, 4, 8):
        runs = runs[:-step] & runs[step:]
    return bool(runs.any())


def number_places(data: bytes, numbers: Collection[bytes]) -> list[int]:
    """Return where some of the numbers stand that `inexact_numbers` has found, rising."""
    matches = (*_LONG_NUMBER.finditer(data), *_SMALL_NUMBER.finditer(data))
    return sorted(match.start() for match in matches if match.group() in numbers)
