import dataclasses
import subprocess
import sys
import zlib

import pyarrow as pa
import pytest

from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.conversion.plan.plan import make_plan
from wdsplit.conversion.plan.saved_plan import SavedPlan, dump_plan, is_plan, parse_plan
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.shards.manifest import Field
from wdsplit.tables.table import InputFile, Remote, Selection, Split, Table

VERSION = "1.2.3"
ALL = Selection()
SCHEMA = pa.schema(
    [
        pa.field("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]), metadata={"a": "b"}),
        pa.field("label", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("tensor", pa.fixed_shape_tensor(pa.float32(), (2, 3))),
        pa.field("group", pa.timestamp("ns", "Europe/Berlin")),
    ],
    metadata={"huggingface": "{}"},
)
FIELDS = (Field("jpg", "image", "bytes", "binary"), Field("cls", "label", "integer", "int64", ("cat", "dög")))


def plan_of(files, selection=ALL, key=None, **options):
    return make_plan(Table(tuple(files), SCHEMA, selection), FIELDS, key, PlanOptions(**options))


def saved_of(plan, **changes):
    return dataclasses.replace(SavedPlan(plan, "s3://bucket/out", "/data", 2**30, (), VERSION), **changes)


PLAIN = [
    InputFile("raw/größe 1.parquet", 1000, 23, (20, 3), 900, "f0", 1_700_000_000_123_456_789),
    InputFile("raw/empty.parquet", 10, 0, (), 0, "f1", -5),
]
CSV = [InputFile("/a/b.csv", 400, 9, (5, 4), 300, "f2", 7, "csv", (10, 200, 400))]
SELECTED = [dataclasses.replace(PLAIN[0], selected=(7, 0)), dataclasses.replace(PLAIN[1], selected=())]
REMOTE = [
    dataclasses.replace(PLAIN[0], path="s3://b/x.parquet", modified_ns=2**64 - 1, remote=Remote("s3://b/x.parquet"))
]

PLANS = {
    "plain": plan_of(PLAIN, shards=4),
    "csv": plan_of(CSV, shards=2, pad="drop", null="omit", window=7, lanes=2),
    "shuffled": plan_of(PLAIN, shuffle=True, seed=5, world_size=2, workers=3),
    "selected": plan_of(SELECTED, Selection('label < "z"', 10, Split("group", 0, 2**64)), shards=2),
    "drawn": plan_of(SELECTED, Selection(split=Split(None, 2**63, 2**64)), key="group", shards=2),
    "remote": plan_of(REMOTE, samples_per_shard=3),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_comes_back_as_it_was_and_the_same_plan_gives_the_same_bytes(plan):
    saved = saved_of(plan, emit=("dali", "wids"), memory=5, output="/out")
    data = dump_plan(saved)
    found = parse_plan(data, VERSION)
    assert found == saved
    assert (found.plan.hash, found.plan.modified) == (plan.hash, plan.modified)
    assert found.plan.summary() == plan.summary()
    assert found.plan.table.schema.equals(SCHEMA, check_metadata=True)
    assert all(found.plan.rows(shard) == plan.rows(shard) for shard in range(plan.num_shards))
    urls = [[file.remote and file.remote.url for file in each.table.files] for each in (found.plan, plan)]
    assert urls[0] == urls[1]
    assert dump_plan(found) == dump_plan(saved) == data
    assert is_plan(data[:64])
    assert not any(map(is_plan, (b"", b"PAR1", b"PK\3\4", b"wdsplit")))


@pytest.mark.parametrize("url", ["https://host/x.parquet?X-Amz-Signature=SECRET", "https://me:SECRET@host/x.parquet"])
def test_a_url_with_a_secret_is_refused_and_not_told(url):
    file = dataclasses.replace(REMOTE[0], path="https://host/x.parquet", remote=Remote(url))
    with pytest.raises(InputError, match="must not be in a plan file") as found:
        dump_plan(saved_of(plan_of([file], shards=1)))
    assert "SECRET" not in str(found.value)
    file = dataclasses.replace(REMOTE[0], remote=Remote("s3://b/x.parquet", {"secret_access_key": "SECRET"}))
    data = dump_plan(saved_of(plan_of([file], shards=1)))
    assert b"SECRET" not in zlib.decompress(data[data.index(b"\n") + 17 :])
    (found,) = parse_plan(data, VERSION).plan.table.files
    assert found.remote is not None and found.remote.options is None


def test_a_byte_that_was_changed_or_is_missing_is_noticed():
    data = dump_plan(saved_of(PLANS["plain"]))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        for damaged in (bytes(changed), data[:place]):
            with pytest.raises(CorruptDataError, match="a plan file is damaged"):
                parse_plan(damaged, VERSION)


def test_another_version_is_refused_with_both():
    with pytest.raises(InputError, match="another version") as found:
        parse_plan(dump_plan(saved_of(PLANS["plain"])), "1.3.0")
    assert VERSION in found.value.found and "1.3.0" in found.value.expected


LARGE = """
import re
from pathlib import Path
import pyarrow as pa
from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.conversion.plan.plan import make_plan
from wdsplit.conversion.plan.saved_plan import SavedPlan, dump_plan, parse_plan
from wdsplit.tables.table import InputFile, Table

FILES, GROUPS = 100_000, 80
groups = [tuple(12_500 + (f + g) % 7 for g in range(GROUPS)) for f in range(1000)]
files = tuple(
    InputFile(
        f"s3://bucket/year=2024/part-{number:06d}.parquet", 10**10, sum(groups[number % 1000]), groups[number % 1000],
        10**10, f"{number:032x}", number,
    )
    for number in range(FILES)
)
plan = make_plan(Table(files, pa.schema([])), [], None, PlanOptions(shards=1_000_000))
plan.hash
data = dump_plan(SavedPlan(plan, "s3://bucket/out", "", 2**30, (), "1"))
found = parse_plan(data, "1")
assert found.plan.hash == plan.hash and found.plan.table == plan.table
peak_kib = re.search(r"VmHWM: *\\t* *(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(len(data), 1024 * int(peak_kib))  # getrusage would count the memory of the process that started this one
"""


@pytest.mark.slow
def test_a_plan_of_100_000_files_with_80_row_groups_each_takes_less_than_1_3_gib():
    ended = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    num_bytes, max_bytes = map(float, ended.stdout.split())
    assert max_bytes < 1.3 * 2**30
    assert num_bytes < 50e6
