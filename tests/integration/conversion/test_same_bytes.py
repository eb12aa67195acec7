"""However a table comes in, and however the work is shared out and cut, the files are the same to the byte."""

from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest

from format_inputs import cut_small
from stops import by_shares, stopped_at
from tables import converted, files_of, little_memory, mixed_table, options, shard_files, write_files, write_table
from wdsplit.conversion.convert import convert
from wdsplit.tables.formats import parquet
from written_formats import WRITERS, numbered_table, write_as

# However the work is shared out


def by_jobs(inputs, output, plan):
    converted(inputs, output, jobs=2, **plan)


def by_spilling(inputs, output, plan):
    with pytest.MonkeyPatch.context() as patch:
        little_memory(patch)
        converted(inputs, output, **plan)


def by_resuming(inputs, output, plan):
    with stopped_at() as stop:
        convert(inputs, output, options(**plan), stop)
    converted(inputs, output, resume=True, **plan)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return uneven files of small row groups, an empty file among them, with columns of all kinds."""
    numbers = range(200)
    table = mixed_table(200)
    for name, values in {
        "kind": pa.array([f"class {number % 3}" for number in numbers]).dictionary_encode(),
        "text": pa.array([None if number % 5 == 0 else f"{number}" for number in numbers]),
        "group": pa.array([number * number % 37 for number in numbers]),
    }.items():
        table = table.append_column(name, values)
    return write_files(tmp_path_factory.mktemp("input"), table, [75, 0, 10, 7, 45], 15)


EMIT = ("dali", "energon", "wids")
PLAIN = ("image", "caption", "label", "kind", "text", "vector")
"""Columns that threads write; with JSON among them, processes do."""


@pytest.mark.parametrize(
    ("num_shares", "plan"),
    [
        (3, {"shards": 12, "pad": "drop", "emit": EMIT, "columns": PLAIN}),
        (20, {"shards": 15, "where": "label >= 50 and group != 4", "limit": 100}),
        (3, {"shards": 12, "shuffle": True, "seed": 5, "emit": EMIT, "keep": ("group",)}),
        (9, {"shards": 7, "shuffle": True, "pad": "drop", "key": "caption", "columns": PLAIN}),
        (3, {"shards": 50, "shuffle": True, "columns": ("label",)}),
        (3, {"shards": 6, "shuffle": True, "pad": "none", "world_size": 2}),
    ],
    ids=str,
)
def test_a_dataset_is_the_same_however_the_work_is_shared_out(inputs, tmp_path, plan, num_shares):
    plan = {"null": "omit", **plan}
    converted(inputs, tmp_path / "one", **plan)
    ways = (by_jobs, by_spilling, by_resuming, partial(by_shares, num_shares=num_shares))
    for output, way in zip(map(tmp_path.joinpath, "abcd"), ways, strict=True):
        way(inputs, output, plan)
        assert files_of(output) == files_of(tmp_path / "one"), way


# However the table comes in

TABLE = numbered_table(60)
PLAN = {
    "shards": 4,
    "null": "omit",
    "mapping": {"txt": "caption", "cls": "label", "a.json": "score", "b.cls": "is good"},
}


def several(folder, name):
    """Write the table as files of one format, empty ones among them."""
    cuts = [0, 0, 1, 20, 20, 60]
    return [
        write_as(folder / str(number), name, TABLE.slice(first, stop - first))
        for number, (first, stop) in enumerate(pairwise(cuts))
    ]


LAYOUTS = [([60], None), ([60], 1), ([13, 0, 20], 7), ([1], None), ([0, 40, 0], 40)]
SOURCES = {
    **{name: lambda folder, name=name: write_as(folder, name, TABLE) for name in WRITERS},
    **{f"several {name}": lambda folder, name=name: several(folder, name) for name in ("file.arrow", "é a.csv")},
    **{f"parquet {cut}": lambda folder, cut=cut: write_files(folder, TABLE, *cut) for cut in LAYOUTS},
    "a table": lambda folder: TABLE,
    "a reader": lambda folder: TABLE.to_reader(7),
    "rows": lambda folder: iter(TABLE.to_pylist()),
}


@pytest.fixture(scope="module")
def as_parquet(tmp_path_factory):
    """Return the shards that the table gives as parquet, in order and shuffled."""
    folder = tmp_path_factory.mktemp("parquet")
    path = write_table(folder / "a.parquet", TABLE, 13)
    for shuffle in (False, True):
        converted(path, folder / str(shuffle), shuffle=shuffle, **PLAN)
    return {shuffle: shard_files(folder / str(shuffle)) for shuffle in (False, True)}


@pytest.mark.parametrize("name", SOURCES)
def test_a_table_gives_the_same_shards_however_it_comes_in(name, tmp_path, as_parquet, monkeypatch):
    """In one piece, and cut into blocks and batches so that their boundaries are met everywhere."""
    source = SOURCES[name](tmp_path / "in")
    converted(source, tmp_path / "whole", shuffle=True, jobs=2 if name == "rows" else 1, **PLAN)
    assert shard_files(tmp_path / "whole") == as_parquet[True]
    cut_small(monkeypatch)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 150)
    way = by_resuming if isinstance(source, str | list) else by_spilling
    way(SOURCES[name](tmp_path / "in"), tmp_path / "cut", PLAN)
    assert shard_files(tmp_path / "cut") == as_parquet[False]
