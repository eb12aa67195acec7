import io
import shutil
import subprocess
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tars import FIELDS, SIZES, archive, archives, binary, payload
from webdataset.tariterators import group_by_keys, tar_file_expander

from wdsplit.errors import CorruptDataError, InputError
from wdsplit.tar import (
    BLOCK_BYTES,
    MAX_MEMBER_BYTES,
    RECORD_BYTES,
    build_body,
    pack_headers,
    padding_bytes,
    parse_headers,
    parse_members,
    trailer_bytes,
)

DEVICE_NUMBERS = slice(329, 345)
CHECKSUM = slice(148, 156)


def every_size():
    """One archive with each payload size, in each field, and members left out."""
    rows = range(len(SIZES))
    fields = {
        name: [payload(row, column, SIZES[(row + column) % len(SIZES)]) for row in rows]
        for column, name in enumerate(FIELDS)
    }
    fields["jpg"][2] = fields["json"][0] = None
    return archive([f"train/img_{row}" for row in rows], fields)


def names_and_payloads(members, data, base=0):
    view = memoryview(data)
    return [
        (name.decode(), bytes(view[start - base : start - base + size]))
        for name, start, size in zip(members.names.tolist(), members.starts, members.sizes, strict=True)
    ]


def by_tarfile(members):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            tar.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def header_offsets(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [info.offset for info in tar]


def gnu_tar(*arguments, cwd):
    program = shutil.which("tar")
    assert program, "GNU tar is needed: apt-get install tar"
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


# Writing


@given(archives())
def test_tarfile_reads_the_same_names_and_payloads_and_no_trace_of_the_machine(built):
    with tarfile.open(fileobj=io.BytesIO(built.data)) as tar:
        infos = tar.getmembers()
        read = [(info.name, tar.extractfile(info).read()) for info in infos]
    assert read == built.members
    plain = {"mode": 0o644, "mtime": 0, "uid": 0, "gid": 0, "uname": "", "gname": "", "type": tarfile.REGTYPE}
    assert all({name: getattr(info, name) for name in plain} == plain and not info.pax_headers for info in infos)


@given(archives())
def test_the_bytes_are_those_of_tarfile_but_for_the_device_numbers(built):
    """tarfile leaves the device numbers of a plain file blank; POSIX and GNU tar write zeros, as we do."""
    ours, theirs = bytearray(built.data), bytearray(by_tarfile(built.members))
    assert len(ours) == len(theirs)
    for offset in header_offsets(built.data):
        assert ours[offset:][DEVICE_NUMBERS] == b"0000000\x000000000\x00"
        assert theirs[offset:][DEVICE_NUMBERS] == bytes(16)
        for part in (DEVICE_NUMBERS, CHECKSUM):
            place = slice(offset + part.start, offset + part.stop)
            ours[place] = theirs[place] = bytes(part.stop - part.start)
    assert ours == theirs


def test_the_bytes_are_those_of_gnu_tar(tmp_path):
    built = every_size()
    for name, data in built.members:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    names = [name for name, _ in built.members]
    options = ["--format=ustar", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=0644"]
    gnu_tar("-cf", "gnu.out", *options, *names, cwd=tmp_path)
    assert (tmp_path / "gnu.out").read_bytes() == built.data


def test_gnu_tar_lists_extracts_and_compares(tmp_path):
    built = every_size()
    (tmp_path / "a.tar").write_bytes(built.data)
    assert gnu_tar("-tf", "a.tar", cwd=tmp_path).splitlines() == [name for name, _ in built.members]
    assert all(
        line.startswith("-rw-r--r-- 0/0") and "1970-01-01 00:00" in line
        for line in gnu_tar("--utc", "-tvf", "a.tar", cwd=tmp_path).splitlines()
    )
    gnu_tar("-xf", "a.tar", "--no-same-owner", "--no-same-permissions", cwd=tmp_path)
    assert all((tmp_path / name).read_bytes() == data for name, data in built.members)
    for path in (tmp_path / "train").iterdir():
        path.chmod(0o644)
    ownership = ("Uid differs", "Gid differs")
    compared = subprocess.run(["tar", "--compare", "-f", "a.tar"], cwd=tmp_path, capture_output=True, text=True)
    assert [line for line in (compared.stdout + compared.stderr).splitlines() if not line.endswith(ownership)] == []


@given(archives())
def test_stock_webdataset_groups_the_same_samples(built):
    source = {"url": "a.tar", "stream": io.BytesIO(built.data)}
    read = list(group_by_keys(tar_file_expander([source])))
    wanted = [
        {
            "__key__": sample[0][0].split(".")[0],
            "__url__": "a.tar",
            **{name.split(".", 1)[1]: data for name, data in sample},
        }
        for sample in built.samples
    ]
    assert read == wanted


@given(st.integers(0, 10**12))
def test_the_trailer_is_two_blocks_at_least_and_fills_a_record(body_bytes):
    body_bytes -= body_bytes % BLOCK_BYTES
    trailer = trailer_bytes(body_bytes)
    assert 2 * BLOCK_BYTES <= trailer < 2 * BLOCK_BYTES + RECORD_BYTES
    assert (body_bytes + trailer) % RECORD_BYTES == 0


@given(st.lists(st.integers(0, 2**40), max_size=20))
def test_padding_goes_up_to_the_next_block_and_no_further(sizes):
    padding = padding_bytes(np.array(sizes, np.int64))
    assert ((padding >= 0) & (padding < BLOCK_BYTES)).all()
    assert ((padding + np.array(sizes, np.int64)) % BLOCK_BYTES == 0).all()


@given(archives(min_samples=2), st.data())
def test_slices_of_arrow_arrays_are_written_as_copies_would_be(built, data):
    """Row groups are cut without copying: an array may begin anywhere in its buffers."""
    count = len(built.samples)
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin, count))
    keys = pa.array([sample[0][0].split(".")[0] for sample in built.samples])
    columns = {
        field: binary(
            [dict(sample).get(f"{key}.{field}") for key, sample in zip(keys.tolist(), built.samples, strict=True)]
        )
        for field in dict.fromkeys(name.split(".", 1)[1] for name, _ in built.members)
    }
    body = build_body(keys[begin:end], {field: column[begin:end] for field, column in columns.items()})
    with tarfile.open(fileobj=io.BytesIO(bytes(body.join()) + bytes(trailer_bytes(0)))) as tar:
        read = {info.name: tar.extractfile(info).read() for info in tar}
    assert read == dict(member for sample in built.samples[begin:end] for member in sample)
    assert int(body.sample_bytes.sum()) == len(body.join())


def test_a_name_of_99_bytes_is_written_and_one_of_100_refused():
    longest = "k" * 95
    assert archive([longest], {"jpg": [b"1"]}).members == [(f"{longest}.jpg", b"1")]
    with pytest.raises(InputError) as caught:
        archive(["short", longest + "k"], {"jpg": [b"1", b"2"]})
    assert caught.value.key == longest + "k"
    assert "99 bytes" in caught.value.expected and "100 bytes" in caught.value.found


@pytest.mark.parametrize("size", [0, 1, 7, 8, 511, 2**32, 2**33 - 2, MAX_MEMBER_BYTES])
def test_a_size_below_8_gib_fits_the_header_and_is_read_back(size):
    names = np.zeros((1, 100), np.uint8)
    names[0, :5] = np.frombuffer(b"a.jpg", np.uint8)
    headers = pack_headers(names, np.array([size], np.int64))
    info = tarfile.TarInfo.frombuf(headers.tobytes(), "ascii", "strict")
    assert (info.name, info.size) == ("a.jpg", size)
    parsed_names, parsed_sizes, valid = parse_headers(headers)
    assert (parsed_names.tolist(), parsed_sizes.tolist(), valid.tolist()) == ([b"a.jpg"], [size], [True])


def test_a_member_of_8_gib_is_refused_with_its_key(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as sparse:
        sparse.truncate(MAX_MEMBER_BYTES + 1)
    with pa.memory_map(str(path)) as mapped:
        offsets = pa.py_buffer(np.array([0, 0, MAX_MEMBER_BYTES + 1], np.int64))
        huge = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2, [None, offsets, mapped.read_buffer()])
        with pytest.raises(InputError) as caught:
            build_body(pa.array(["small", "huge"]), {"mp4": huge})
    assert caught.value.key == "huge"
    assert str(MAX_MEMBER_BYTES) in caught.value.expected and "'mp4'" in caught.value.found


# Reading


@given(archives())
def test_parse_is_the_inverse_of_build(built):
    members = parse_members(memoryview(built.data), built.offsets)
    assert names_and_payloads(members, built.data) == built.members
    assert members.counts.tolist() == [len(sample) for sample in built.samples]


@given(archives(min_samples=1), st.data())
def test_a_range_of_samples_is_read_from_its_own_bytes(built, data):
    begin = data.draw(st.integers(0, len(built.samples) - 1))
    end = data.draw(st.integers(begin + 1, len(built.samples)))
    base = int(built.offsets[begin])
    window = built.data[base : int(built.offsets[end])]
    members = parse_members(memoryview(window), built.offsets[begin : end + 1], base)
    assert names_and_payloads(members, window, base) == [m for sample in built.samples[begin:end] for m in sample]


@given(archives())
def test_what_follows_the_last_sample_is_the_end_of_the_archive(built):
    assert not any(built.data[int(built.offsets[-1]) :])


def test_any_changed_byte_of_a_header_is_found_or_changes_nothing():
    built = archive(["a", "b"], {"jpg": [payload(0, 0, 513), payload(1, 0, 3)], "cls": [b"7", None]})
    unnoticed = set()
    for offset in header_offsets(built.data):
        for place in range(offset, offset + BLOCK_BYTES):
            for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
                damaged = bytearray(built.data)
                damaged[place] ^= mask
                try:
                    members = parse_members(memoryview(damaged), built.offsets)
                except CorruptDataError as error:
                    assert error.offset == offset
                else:
                    assert names_and_payloads(members, damaged) == built.members
                    unnoticed.add(place - offset)
    assert unnoticed <= {154, 155}, "only what ends the checksum may change unnoticed"


@given(archives(min_samples=1), st.data())
def test_a_truncated_shard_is_found_at_any_length(built, data):
    length = data.draw(st.integers(0, int(built.offsets[-1]) - 1))
    with pytest.raises(CorruptDataError, match="shorter") as caught:
        parse_members(memoryview(built.data)[:length], built.offsets)
    assert caught.value.offset == length


@pytest.mark.parametrize("wrong", [(0, 512, 2048), (0, 1536, 3072), (0, 1024, 2560), (512, 1024, 3072)])
def test_samples_that_do_not_end_where_the_index_says_are_found(wrong):
    built = archive(["a", "b"], {"jpg": [b"1", bytes(1025)]})
    assert built.offsets.tolist() == [0, 1024, 3072]
    with pytest.raises(CorruptDataError, match="header"):
        parse_members(memoryview(built.data), np.array(wrong))


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_header_that_is_no_plain_files_is_not_valid(kind):
    info = tarfile.TarInfo("a.jpg")
    info.type = kind
    header = np.frombuffer(info.tobuf(tarfile.USTAR_FORMAT), np.uint8).reshape(1, -1)
    assert parse_headers(header)[2].tolist() == [False]


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, MAX_MEMBER_BYTES)), max_size=20))
def test_headers_that_tarfile_writes_are_read(members):
    infos = []
    for length, size in members:
        infos.append(tarfile.TarInfo("n" * length))
        infos[-1].size = size
    packed = b"".join(info.tobuf(tarfile.USTAR_FORMAT) for info in infos)
    names, sizes, valid = parse_headers(np.frombuffer(packed, np.uint8).reshape(-1, BLOCK_BYTES))
    assert valid.all()
    assert [(len(name), size) for name, size in zip(names.tolist(), sizes.tolist(), strict=True)] == members


@pytest.mark.parametrize("sizes", [[0, 1, 511], [20_000, 0, 100_000], [16_384] * 5])
def test_parts_put_together_are_the_joined_bytes(sizes):
    payload = pa.array([bytes([size % 251]) * size for size in [7, *sizes]], pa.large_binary()).slice(1)
    other = pa.array([None if size == 0 else b"x" for size in sizes], pa.large_binary())
    body = build_body(pa.array([f"k{i}" for i in range(len(sizes))]), {"jpg": payload, "cls": other})
    assert b"".join(body.parts()) == bytes(body.join())
