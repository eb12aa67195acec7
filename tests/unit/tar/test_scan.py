import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tars import by_tarfile, gnu_tar, read_by_tarfile
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.tar.headers import are_sound
from wdsplit.tar.scan import scan_tar, scan_window

FORMATS = (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
GNU_FORMATS = ("ustar", "pax", "gnu", "oldgnu", "v7")

NAMES = (
    "a.jpg",
    "./b.cls",
    "dir/c.json",
    "größe.txt",
    "d" * 100,
    "e" * 70 + "/" + "f" * 60 + ".png",
    "README",
    " a b .txt",
)


def read(data, scan=scan_tar):
    """Return names and payloads as we read them."""
    found = scan(memoryview(data))
    rows = zip(found.names, found.starts.tolist(), found.sizes.tolist(), strict=True)
    return [(name.decode("utf-8", "surrogateescape"), data[start : start + size]) for name, start, size in rows]


def in_a_window(data):
    """Return names and payloads of what is read as a part of a tar."""
    return read(data, lambda part: scan_window(part, 0))


def small_tar(names=("a.jpg", "a.cls", "b.jpg"), **options):
    return by_tarfile([(name, name.encode() * 100) for name in names], **options)


def body_of(data):
    """Return the members of a tar without the zeros at its end."""
    return data[: scan_tar(memoryview(data)).end]


def crafted(
    name=b"a.jpg", size=b"%011o\0" % 3, kind=b"0", payload=b"abc", magic=b"ustar\x0000", prefix=b"", digits=b"%06o\0 "
):
    """Return a member with any bytes in the fields of its header, and a right checksum."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:108] = b"0000644\0"
    header[124:136] = size
    header[156:157] = kind
    header[257:265], header[345 : 345 + len(prefix)] = magic, prefix
    header[148:156] = digits % (sum(header) + 8 * 32)
    return bytes(header) + payload + bytes(-len(payload) % 512)


def pax(kind=b"x", **records):
    """Return an extended header with these records."""
    body = b""
    for keyword, value in records.items():
        rest = f" {keyword.replace('_', '.')}={value}\n".encode()
        length = next(n for n in range(len(rest), len(rest) + 9) if n == len(rest) + len(str(n)))
        body += str(length).encode() + rest
    return crafted(b"././@PaxHeader", b"%011o\0" % len(body), kind, body)


# What others write


class Tar(bytes):
    """The bytes of a tar, told by their number where a test fails."""

    def __repr__(self):
        return f"Tar({len(self)} bytes)"


@st.composite
def tars_of_others(draw):
    """Return the bytes of a tar that Python writes, with folders between the files."""
    format = draw(st.sampled_from(FORMATS))
    names = draw(st.lists(st.sampled_from(NAMES), max_size=6))
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as tar:
        for number, name in enumerate(names):
            if draw(st.booleans()):
                folder = tarfile.TarInfo(f"folder-{number}/" + "x" * draw(st.sampled_from([0, 90])))
                folder.type, folder.mtime = tarfile.DIRTYPE, draw(st.sampled_from([0, 1.5]))
                tar.addfile(folder)
            info = tarfile.TarInfo(name)
            data = bytes([number]) * draw(st.sampled_from([0, 1, 511, 512, 513]))
            info.size, info.mtime = len(data), draw(st.sampled_from([0, 1700000000.25]))
            info.uname = draw(st.sampled_from(["", "user", "ü"]))
            tar.addfile(info, io.BytesIO(data))
    return Tar(sink.getvalue())


def begins_of(data):
    """Return where the members of a tar begin, folders too."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [info.offset for info in tar.getmembers()]


@given(tars_of_others())
def test_the_files_of_a_tar_are_those_that_tarfile_finds(data):
    assert read(data) == read_by_tarfile(data)
    scan = scan_tar(memoryview(data))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        infos = [info for info in tar if info.isreg()]
        assert scan.tops.tolist() == [info.offset for info in infos]
        assert scan.starts.tolist() == [info.offset_data for info in infos]


@pytest.mark.parametrize("format", GNU_FORMATS)
def test_what_gnu_tar_writes_is_read_in_each_of_its_formats(tmp_path, format):
    long = ["sub/" + "n" * 70 + "/" + "m" * 60 + ".json"] if format != "v7" else []
    names = ["a.jpg", "größe.txt", "sub/b.cls", *long]
    for number, name in enumerate(names):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(bytes([number]) * number * 300)
    gnu_tar("-cf", "../out.tar", f"--format={format}", "--sort=name", ".", cwd=tmp_path / "in")
    data = (tmp_path / "out.tar").read_bytes()
    assert read(data) == read_by_tarfile(data)
    assert Counter(name for name, _ in read(data)) == Counter(f"./{name}" for name in names)


@pytest.mark.parametrize("how", ["base 256", "pax"])
def test_a_member_of_9_gib_is_stepped_over_without_being_read(tmp_path, how):
    size = 9 * 1024**3 + 1
    field = tarfile.itn(size, 12, tarfile.GNU_FORMAT) if how == "base 256" else b"%011o\0" % 0
    head = (pax(size=size) if how == "pax" else b"") + crafted(size=field, payload=b"")
    with (tmp_path / "a.tar").open("wb") as sparse:
        sparse.write(head)
        sparse.seek(size + -size % 512, os.SEEK_CUR)
        sparse.write(crafted(b"a.cls"))
    data = np.memmap(tmp_path / "a.tar", np.uint8, "r")
    scan = scan_tar(memoryview(data))
    assert (scan.names, scan.sizes.tolist()) == ([b"a.jpg", b"a.cls"], [size, 3])
    assert bytes(data[scan.starts[1] :][:3]) == b"abc"


# Windows


@given(tars_of_others(), st.data())
def test_any_run_of_members_is_read_from_its_own_bytes(data, draw):
    scan = scan_tar(memoryview(data))
    assume(len(scan.tops))
    first = draw.draw(st.sampled_from(scan.tops.tolist()))
    found = scan_window(memoryview(data)[first : scan.end], first)
    inside = scan.tops >= first
    assert found.names == [name for name, is_in in zip(scan.names, inside, strict=True) if is_in]
    assert found.starts.tolist() == scan.starts[inside].tolist()
    assert found.sizes.tolist() == scan.sizes[inside].tolist()


@given(tars_of_others(), st.data())
def test_a_part_that_does_not_end_with_a_member_is_refused(data, draw):
    scan = scan_tar(memoryview(data))
    places = sorted(set(range(0, scan.end, 512)) - set(begins_of(data)))
    assume(places)
    wrong = draw.draw(st.sampled_from(places))
    with pytest.raises((CorruptDataError, InputError)):
        scan_window(memoryview(data)[:wrong], 0)


def test_zeros_between_the_samples_of_a_window_are_told():
    body = body_of(small_tar(mtime=0.5))
    with pytest.raises(CorruptDataError) as caught:
        scan_window(memoryview(body + bytes(1024)), 5120)
    assert caught.value.offset == 5120 + len(body)


# Ends


@pytest.mark.parametrize("names", [["a.jpg", "a.cls"], []])
def test_a_tar_ends_with_any_number_of_zero_blocks(names):
    body = body_of(small_tar(names))
    for blocks in (0, 1, 2, 3, 20, 41):
        scan = scan_tar(memoryview(body + bytes(512 * blocks)))
        assert (scan.names, scan.end) == ([name.encode() for name in names], len(body))
        assert len(scan.tops) == len(scan.starts) == len(scan.sizes) == len(names)


@pytest.mark.parametrize("zeros", [512, 10_240])
def test_two_tars_in_one_file_are_refused_with_the_place_of_the_second(zeros):
    body = body_of(small_tar())
    with pytest.raises(InputError, match="followed by another") as caught:
        scan_tar(memoryview(body + bytes(zeros) + small_tar(["c.jpg"])))
    assert caught.value.offset == len(body) + zeros
    assert "cat a.tar b.tar" in caught.value.found
    assert "tar --concatenate" in caught.value.remedy


@pytest.mark.parametrize("place", [7, 1000])
def test_bytes_after_the_end_are_told_by_their_place(place):
    tail = bytearray(2048)
    tail[512 + place] = 1
    data = body_of(small_tar()) + bytes(tail)
    with pytest.raises(CorruptDataError, match="bytes follow") as caught:
        scan_tar(memoryview(data))
    assert caught.value.offset == len(data) - 2048 + 512 + place // 512 * 512


@pytest.mark.parametrize("format", FORMATS[1:], ids=["pax", "gnu"])
def test_a_tar_that_was_cut_is_told_at_any_length_or_read_up_to_a_members_end(format):
    whole = small_tar(["a.jpg", "n" * 101, "b.jpg"], format=format, mtime=0)
    scan = scan_tar(memoryview(whole))
    ends = {0, *begins_of(whole), scan.end}
    for length in range(0, len(whole), 128):
        cut = memoryview(whole)[:length]
        if length in ends or (length > scan.end and length % 512 == 0):
            assert scan_tar(cut).names == scan.names[: sum(top < length for top in scan.tops.tolist())]
            continue
        with pytest.raises(CorruptDataError) as caught:
            scan_tar(cut)
        assert caught.value.offset == length
        assert "truncated" in caught.value.cause


# What is refused


@pytest.mark.parametrize(
    ("pack", "name"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")], ids=["gz", "bz2", "xz"]
)
def test_a_compressed_tar_is_refused_with_the_program_that_decompresses_it(pack, name):
    with pytest.raises(InputError, match="compressed") as caught:
        scan_tar(memoryview(pack(small_tar())))
    assert name in caught.value.found
    assert "decompress" in caught.value.remedy


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.CHRTYPE, "a character device"),
        (tarfile.BLKTYPE, "a block device"),
        (tarfile.FIFOTYPE, "a named pipe"),
        (b"V", "a volume's label"),
        (b"Z", "unknown type 'Z'"),
    ],
)
def test_what_is_neither_file_nor_folder_is_refused_by_name(kind, what):
    body = body_of(small_tar())
    info = tarfile.TarInfo("l" * 90 + ".jpg")
    info.type, info.linkname = kind, "a.jpg"
    with pytest.raises(InputError) as caught:
        scan_tar(memoryview(body + info.tobuf() + bytes(1024)))
    assert what in caught.value.cause
    assert repr(info.name) in caught.value.place
    assert f"byte {caught.value.offset}" in caught.value.place
    assert caught.value.offset >= len(body)


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=pax"], ["--format=pax", "--sparse-version=0.1"]])
def test_a_sparse_file_is_refused_by_name(tmp_path, options):
    with (tmp_path / "hole.bin").open("wb") as file:
        file.truncate(10**6)
        file.seek(500_000)
        file.write(b"data")
    gnu_tar("--sparse", *options, "-cf", "a.tar", "hole.bin", cwd=tmp_path)
    with pytest.raises(InputError, match="sparse file") as caught:
        scan_tar(memoryview((tmp_path / "a.tar").read_bytes()))
    assert "hole.bin" in caught.value.place


def long_link(name):
    return crafted(b"././@LongLink", b"%011o\0" % len(name), b"L", name)


def folder(size=0, kind=b"\0", payload=b""):
    return crafted(b"dir/", b"%011o\0" % size, kind, payload)


ODD_DIGITS = ["a.jpg", "a.cls", "a.jpg"]
LONG_NAME = "n" * 4092 + ".jpg"
"""As long as a name may be."""


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (crafted(kind=b"\0", magic=bytes(8)) + folder() + crafted(b"dir/b.jpg", kind=b"\0"), ["a.jpg", "dir/b.jpg"]),
        (folder(4096, b"5") + crafted(), ["a.jpg"]),
        (crafted(b"a.jpg\0junk") + crafted(b"a.cls"), ["a.jpg", "a.cls"]),
        (long_link(b"l.jpg\0") + pax(path="x.jpg") + crafted(), ["l.jpg"]),
        (pax(path="x.jpg") + long_link(b"l.jpg\0") + crafted(), ["x.jpg"]),
        (pax(b"g", comment="path", SCHILY_xattr="a=b") + pax(mtime="1.5") + crafted(), ["a.jpg"]),
        (pax(path=LONG_NAME) + crafted(), [LONG_NAME]),
        (long_link(LONG_NAME.encode() + b"\0") + crafted(), [LONG_NAME]),
        (crafted(size=b"          3 ") + crafted(b"a.cls", b"3" + bytes(11)), ["a.jpg", "a.cls"]),
        (crafted(digits=b"%6o \0") + crafted(b"a.cls", digits=b"%-7o\0") + crafted(digits=b"%07o\0"), ODD_DIGITS),
        (pax(mtime="1.5", path="b.jpg", comment="=\n") + crafted(), ["b.jpg"]),
    ],
    ids=range(11),
)
def test_odd_headers_are_read_as_tarfile_reads_them_in_whole_tars_and_in_windows(data, names):
    assert read(data) == in_a_window(data) == read_by_tarfile(data + bytes(1024)) == [(name, b"abc") for name in names]


def records(body):
    """Return an extended header with this text, and a member."""
    return crafted(b"././@PaxHeader", b"%011o\0" % len(body), b"x", body) + crafted()


UNFIT = [
    crafted(b""),
    crafted(b"", b"%011o\0" % 0, payload=b"", prefix=b"dir"),
    *(
        crafted(size=text.ljust(12, b"\0"))
        for text in (b"-0000000001", b"\xff" * 12, b"0000000000x", b"8", b"1 1", b"0_1")
    ),
    folder(3, payload=b"abc"),
    folder(1024, payload=crafted(b"x.cls")) + crafted(),
    *(pax(size=text) + crafted() for text in ("1x", "", "3 ", "-1", "9" * 19, "9" * 30)),
    pax(path="") + crafted(),
    pax(path="a\0b") + crafted(),
    pax(path="n" + LONG_NAME) + crafted(),
    long_link(b"n" + LONG_NAME.encode() + b"\0") + crafted(),
    *(records(b"9 path=b\n" + text) for text in (b"x", b"9 path=ab", b"7 path=a\n", b"11 path=a\n", b"99 path=a\n")),
    *(records(b"9 path=b\n" + text) for text in (b" 9 path=a\n", b"9 pathxa\n", b"-9 path=a\n", b"0 \n")),
    long_link(b"\0") + crafted(),
    long_link(b"n" * 2 * 1024**2) + crafted(),
    crafted() + pax(path="b.jpg"),
    crafted() + long_link(b"b.jpg\0"),
    # a folder that another name makes a file, and a file that it makes a folder
    pax(path="b.jpg") + folder(),
    long_link(b"b.jpg\0") + folder(),
    long_link(b"dir/\0") + crafted(b"b.jpg", b"%011o\0" % 0, b"\0", b""),
    # bytes that fill up an extended header, which readers take for a part of it
    pax(path="b.jpg")[:-20] + b"15 path=c.jpg\n".ljust(20, b"\0") + crafted(),
    long_link(b"b.jpg")[:-507] + b"x" + bytes(506) + crafted(),
]
UNSUPPORTED = [
    *(pax(b"g", **records) + crafted() for records in ({"path": "a.jpg"}, {"size": "3"})),
    *(
        pax(**{f"GNU_sparse_{name}": value}) + crafted()
        for name, value in (("name", "b"), ("map", "0,3"), ("major", "1"))
    ),
]


@pytest.mark.parametrize(
    ("data", "kind"),
    [*((data, CorruptDataError) for data in UNFIT), *((data, InputError) for data in UNSUPPORTED)],
    ids=range(len(UNFIT) + len(UNSUPPORTED)),
)
def test_a_header_that_readers_could_take_for_different_things_is_refused(data, kind):
    for parse in (read, in_a_window):
        with pytest.raises(kind):
            parse(data)


@pytest.mark.parametrize("format", FORMATS[1:], ids=["pax", "gnu"])
def test_any_changed_byte_of_a_header_is_found_or_changes_nothing(format):
    """Only a name in an extended header has no checksum."""
    data = by_tarfile([("n" * 60 + "/" + "m" * 60, b""), ("b.jpg", b"")], format, mtime=0)
    scan, name = scan_tar(memoryview(data)), data.index(b"m" * 60, 512)
    told = 0
    for place in range(0, scan.end, 3):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        try:
            found = scan_tar(memoryview(damaged))
        except (CorruptDataError, InputError) as error:
            told += 1
            assert error.offset // 512 <= place // 512
        else:
            assert found.sizes.tolist() == [0, 0]
            assert found.names == scan.names or place // 512 == name // 512
    assert told > 500


def test_what_old_gnu_tar_keeps_where_ustar_has_the_prefix_is_no_part_of_the_name():
    assert read(crafted(magic=b"ustar  \0", prefix=b"14523452345\0")) == [("a.jpg", b"abc")]


@given(st.binary(min_size=512, max_size=512), st.booleans())
def test_the_checksums_of_bytes_and_of_signed_bytes_are_right_and_no_others(data, signed):
    header = bytearray(data)
    sums = [8 * 32 + sum(byte - of * (byte >= 128) for byte in header[:148] + header[156:]) for of in (0, 256)]
    for wrong in (0, 1):
        total = sums[signed] + wrong
        assume(total >= 0)
        header[148:156] = b"%06o\0 " % total
        assert are_sound(np.frombuffer(header, np.uint8)[None, :]).tolist() == [total in sums]
