"""Quotes in CSV (RFC 4180): where rows end, and what cannot be told apart.

Pure (no I/O). A quote opens a quoted part only where a field begins, as for Arrow's parser and Python's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wdsplit.tables.formats.text import Block

__all__ = ["row_end"]

_QUOTE, _RETURN, _NEWLINE = b'"\r\n'

Int64 = npt.NDArray[np.int64]


def row_end(block: Block, delimiter: str, is_last: bool) -> int:
    """Return the place after the last line end that ends a row.

    Raises:
        InputError: A quote is where none can be, or does not end, or a carriage return has no newline after it.
    """
    data = block.data
    opens, closes = _quoted(block, delimiter)
    if is_last and len(opens) > len(closes):
        raise block.error(
            "a quoted field has no end",
            int(opens[-1]),
            expected="a closing quote",
            found="the end of the file",
            remedy="close the quote, or double it if it is part of the text and the field is quoted",
        )
    end = len(data) if is_last else _last_outside(data, opens, closes)
    _check_returns(block, end, opens, closes)
    return end


def _last_outside(data: bytes, opens: Int64, closes: Int64) -> int:
    """Return the place after the last newline outside of quotes."""
    place = data.rfind(b"\n")
    while place >= 0:
        number = int(np.searchsorted(opens, place)) - 1
        if number < 0 or (number < len(closes) and closes[number] < place):
            break
        place = data.rfind(b"\n", 0, int(opens[number]))
    return place + 1


def _quoted(block: Block, delimiter: str) -> tuple[Int64, Int64]:
    """Return where quoted parts begin and where they end; a doubled quote ends one and begins the next.

    The last one may lack its end.
    """
    data = np.frombuffer(block.data, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    if not len(quotes):
        return quotes, quotes
    opens, closes = quotes[::2], quotes[1::2]
    around = np.array([ord(delimiter), _RETURN, _NEWLINE, _QUOTE], np.uint8)
    before = data[opens[opens > 0] - 1]
    after = data[closes[closes < len(data) - 1] + 1]
    if np.isin(before, around).all() and np.isin(after, around).all():
        return opens, closes
    return _quoted_slowly(block, quotes.tolist(), around[:3].tobytes())


def _quoted_slowly(block: Block, quotes: Sequence[int], ends: bytes) -> tuple[Int64, Int64]:
    """Do what `_quoted` does, quote by quote: a quote inside an unquoted field is a character as any other."""
    data, opens, closes = block.data, list[int](), list[int]()
    skip = -1
    for quote in quotes:
        if quote == skip:
            continue
        following = data[quote + 1 : quote + 2]
        if len(opens) == len(closes):
            if quote == 0 or data[quote - 1] in ends:
                opens.append(quote)
        elif following == b'"':
            skip = quote + 1
        elif not following or following in ends:
            closes.append(quote)
        else:
            raise block.error(
                "text follows a closing quote",
                quote,
                expected="a delimiter or the end of the row",
                found=repr(data[max(0, quote - 20) : quote + 20].decode("utf-8", "replace")),
                remedy='double the quotes inside quoted fields: "say ""hi"""',
            )
    return np.array(opens, np.int64), np.array(closes, np.int64)


def _check_returns(block: Block, end: int, opens: Int64, closes: Int64) -> None:
    """Refuse a carriage return that stands alone outside of quotes: some readers end a row there, and some do not."""
    data = block.data
    if data.count(b"\r", 0, end) == data.count(b"\r\n", 0, end):
        return
    codes = np.frombuffer(data, np.uint8, end)
    alone = np.flatnonzero(codes == _RETURN)
    alone = alone[(alone == end - 1) | (codes[np.minimum(alone + 1, end - 1)] != _NEWLINE)]
    numbers = np.searchsorted(opens, alone) - 1
    outside = (numbers < 0) | (np.append(closes, len(data))[numbers] < alone) & (numbers >= 0)
    if outside.any():
        raise block.error(
            "a carriage return stands alone",
            int(alone[int(outside.argmax())]),
            expected="rows that end with a newline, or with both",
            found="a carriage return without a newline",
            remedy="convert the line ends, as with `tr '\\r' '\\n'`, or quote the field",
        )
