import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.tar.headers import (
    BLOCK_BYTES,
    MAX_MEMBER_BYTES,
    are_sound,
    pack_headers,
    parse_number,
    parse_records,
    size_digits,
    whole_names,
)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 511, 2**32, 2**33 - 2, MAX_MEMBER_BYTES])
def test_a_size_below_8_gib_fits_the_header_and_is_read_back(size):
    names = np.zeros((1, 100), np.uint8)
    names[0, :5] = np.frombuffer(b"a.jpg", np.uint8)
    headers = pack_headers(names, np.array([size], np.int64))
    info = tarfile.TarInfo.frombuf(headers.tobytes(), "ascii", "strict")
    assert (info.name, info.size) == ("a.jpg", size)
    assert size_digits(np.array([size])).tobytes() == b"%011o" % size


def as_rows(data):
    return np.frombuffer(bytes(data), np.uint8).reshape(-1, BLOCK_BYTES)


def test_what_old_gnu_tar_keeps_where_ustar_has_the_prefix_is_no_part_of_the_name():
    header = bytearray(tarfile.TarInfo("a.jpg").tobuf(tarfile.GNU_FORMAT))
    header[345:357] = b"14523452345\0"
    assert whole_names(as_rows(header)) == [b"a.jpg"]


@given(st.binary(min_size=512, max_size=512), st.booleans())
def test_the_checksums_of_bytes_and_of_signed_bytes_are_right_and_no_others(data, signed):
    header = bytearray(data)
    rest = header[:148] + header[156:]
    total = 8 * 32 + sum(byte - 256 * (signed and byte >= 128) for byte in rest)
    if total < 0:
        return
    header[148:156] = b"%06o\0 " % total
    assert are_sound(as_rows(header)).tolist() == [True]
    header[148:156] = b"%06o\0 " % (total + 1)
    other = 8 * 32 + sum(byte - 256 * (not signed and byte >= 128) for byte in rest)
    assert are_sound(as_rows(header)).tolist() == [other == total + 1]


@pytest.mark.parametrize("digits", [b"%6o \0", b"%7o\0", b"%-7o\0", b"%07o\0"])
def test_checksums_are_read_as_old_programs_write_them(digits):
    header = bytearray(tarfile.TarInfo("a.jpg").tobuf(tarfile.USTAR_FORMAT))
    header[148:156] = digits % int(header[148:154], 8)
    assert are_sound(as_rows(header)).tolist() == [True]


@pytest.mark.parametrize(
    ("field", "number"),
    [
        (b"        144 ", 100),
        (b"144\0\0\0\0\0\0\0\0\0", 100),
        (b"777777777777", 8**12 - 1),
        (b"            ", 0),
        (b"00000000008\0", -1),
        (b"-0000000001\0", -1),
        (b"0000000_001\0", -1),
        (b"1 1         ", -1),
        (b"\xff" * 12, -1),
        (b"\x81" + bytes(11), -1),
    ],
)
def test_a_number_is_octal_digits_between_blanks_or_no_number(field, number):
    assert parse_number(field) == number


@given(st.dictionaries(st.sampled_from(["path", "size", "mtime", "SCHILY.xattr.a"]), st.text(max_size=120)))
def test_records_are_read_as_tarfile_writes_them(records):
    info = tarfile.TarInfo("a")
    header = info.create_pax_global_header(records)
    size = int(header[124:135], 8)
    body = header[BLOCK_BYTES : BLOCK_BYTES + size]
    assert parse_records(body) == {keyword.encode(): value.encode() for keyword, value in records.items()}
    assert parse_records(body + bytes(3)) == parse_records(body), "some programs count the NULs that fill the block"


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"8 path=a",
        b"7 path=a\n",
        b"11 path=a\n",
        b"99 path=a\n",
        b" 9 path=a\n",
        b"9 pathxa\n",
        b"-9 path=a\n",
        b"0 \n",
    ],
)
def test_damaged_records_are_told(body):
    assert parse_records(b"9 path=b\n" + body) is None
    assert parse_records(b"9 path=b\n") == {b"path": b"b"}
