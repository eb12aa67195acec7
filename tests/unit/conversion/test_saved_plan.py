import contextlib
import dataclasses
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
    assert b"SECRET" not in zlib.decompress(data[data.index(b"\n") + 1 :])
    (found,) = parse_plan(data, VERSION).plan.table.files
    assert found.remote is not None and found.remote.options is None


def test_a_byte_that_was_changed_or_is_missing_is_noticed_or_changes_nothing():
    """One of the version makes it that of another; bits behind the end of the compressed data mean nothing."""
    saved = saved_of(PLANS["plain"])
    data = dump_plan(saved)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with contextlib.suppress(CorruptDataError, InputError):
            assert parse_plan(bytes(changed), VERSION) == saved
        with pytest.raises(CorruptDataError, match="a plan file is damaged"):
            parse_plan(data[:place], VERSION)
