"""Any bytes give samples or an error of ours, and take no more time and memory than bytes of their number should."""

import io
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_targets import BLOCK, TARGETS, manifest_files, mended, mutated, signed
from paths import SUPPORT
from tars import by_tarfile
from wdsplit.shards.manifest import Manifest, Shards, dump_manifest
from wdsplit.tar.names import split_member

SEEDS = {name: list(seeds()) for name, (_, seeds, _) in TARGETS.items()}
TARS = [name for name, (_, _, begins) in TARGETS.items() if begins is not None]

every_target = pytest.mark.parametrize("name", TARGETS)


@every_target
def test_a_target_accepts_its_seeds(name):
    """Else mutations of them would not get far."""
    assert sum(map(TARGETS[name][0], SEEDS[name])) >= len(SEEDS[name]) * 2 // 3


@every_target
@given(data=st.binary(max_size=2048))
def test_any_bytes_are_refused_or_right(name, data):
    TARGETS[name][0](data)


@every_target
@settings(max_examples=200)
@given(data=st.data())
def test_seeds_that_were_flipped_cut_and_spliced_are_refused_or_right(name, data):
    seed, other = (SEEDS[name][data.draw(st.integers(0, len(SEEDS[name]) - 1))] for _ in range(2))
    changed = bytearray(seed)
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut, again = data.draw(st.integers(0, len(changed))), data.draw(st.integers(0, len(other)))
    TARGETS[name][0](bytes(changed[:cut] + other[again:]))


@pytest.mark.parametrize("name", TARS)
@settings(max_examples=400)
@given(chance=st.randoms(use_true_random=False), count=st.integers(1, 4))
def test_tars_of_other_members_with_right_checksums_are_refused_or_read_as_tarfile_reads_them(name, chance, count):
    target, _, begins = TARGETS[name]
    seed = SEEDS[name][chance.randrange(len(SEEDS[name]))]
    lead, tar = seed[:begins], seed[begins:]
    for _ in range(count):
        tar = mutated(tar, chance)
    target(lead + mended(tar))


# Bytes that stand for many more, and those that take long


def member(name, size, kind=b"0"):
    """Return a header that says anything of what follows it."""
    header = bytearray(by_tarfile([(name, b"")])[:BLOCK])
    header[124:136], header[156:157] = size, kind
    return mended(header)


def table_of(num_rows, path, **options):
    """Return a manifest of a shard table with these paths, whose header tells so many shards."""
    columns = dict.fromkeys(("num_samples", "num_pads", "num_bytes"), pa.array(np.zeros(num_rows, np.int64)))
    table, sink = pa.table({"path": path, "checksum": repeated("x", num_rows), **columns}), io.BytesIO()
    pq.write_table(table, sink, **{"compression": "zstd", "store_schema": False, "write_statistics": False, **options})
    header = dump_manifest(Manifest(Shards.of([]), (), 1, 1, "none", {}))[0]
    header = header.replace(b'"num_shards": 0', b'"num_shards": %d' % num_rows)
    return manifest_files(signed(header, sink.getvalue()), sink.getvalue())


def repeated(text, count):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [text])


def delta_encoded(num_rows):
    paths = ["x" * 30_000 + str(row) for row in range(num_rows)]
    return table_of(num_rows, paths, use_dictionary=False, column_encoding={"path": "DELTA_BYTE_ARRAY"})


BOMBS = {
    "a header of many lists": lambda: ("manifest", manifest_files(b'{"wdsplit":' + b"[" * 900 + b"]" * 900, b"")),
    "a text of 1 MB in each of 60,000 rows": lambda: ("manifest", table_of(60_000, repeated("x" * 10**6, 60_000))),
    "a text of 128 MB": lambda: ("manifest", table_of(1, ["x" * 2**27], use_dictionary=False)),
    "texts that repeat the one before": lambda: ("manifest", delta_encoded(5000)),
    "2**22 rows": lambda: ("manifest", table_of(2**22, repeated("x", 2**22))),
    "a member of 8 GiB": lambda: ("scan", member("a.jpg", b"7" * 11 + b"\0") + bytes(BLOCK)),
    "a member of 2**87 bytes": lambda: ("scan", member("a.jpg", b"\x80\x7f" + bytes(10)) + bytes(BLOCK)),
    "an extended header of 256 MB": lambda: ("scan", member("x", b"%011o\0" % 2**28, b"x") + bytes(2**28)),
    "many extended headers": lambda: (
        "scan",
        (member("x", b"%011o\0" % 9, b"x") + b"9 path=a\n".ljust(BLOCK, b"\0")) * 20_000,
    ),
    "zeros and a byte": lambda: ("scan", by_tarfile([("a.jpg", b"")]) + bytes(2**28) + b"x" * BLOCK),
}
MEASURE = """
import resource, sys, time
from fuzz_targets import TARGETS


def kilobytes(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what))


name, path = sys.argv[1:]
data = open(path, "rb").read()
TARGETS[name][0](b"")
limit = 1024 * kilobytes("VmSize:") + 2**31
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before, began = kilobytes("VmHWM:"), time.process_time()
accepted = TARGETS[name][0](data)
print(accepted, kilobytes("VmHWM:") - before, time.process_time() - began)
"""


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_stands_for_much_more_is_refused_with_little_memory_and_at_once(tmp_path, bomb):
    name, data = BOMBS[bomb]()
    (tmp_path / "bomb").write_bytes(data)
    command = [sys.executable, "-c", MEASURE, name, str(tmp_path / "bomb")]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    accepted, kilobytes, seconds = done.stdout.split()
    assert accepted == "False"
    assert int(kilobytes) < 48_000
    assert float(seconds) < 20


@pytest.mark.parametrize("name", [b"./" * 2046 + b"a.b/", b"./" * 2046 + b"a", b"a.b/" * 1023, b"__" * 2046])
def test_the_longest_names_are_split_in_no_time(name):
    began = time.process_time()
    for _ in range(10):
        assert split_member(name) is None
    assert time.process_time() - began < 3
