import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from faults import FAST, Cut, EveryOther, Shorten, Truncate, internal_error
from tables import files_of, planned, write_table
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.errors import InputError
from wdsplit.tables.find import find_inputs
from wdsplit.tables.formats import opening, parquet
from wdsplit.tables.read import open_inputs, read_rows
from written_formats import WRITERS, arrow_bytes, numbered_table, tar_bytes

PAGES = {"data_page_size": 20_000, "write_batch_size": 1}
MAKERS = {**WRITERS, "a.tar": tar_bytes}


def hashes(folder):
    """Return the files of a dataset; its header without what it says of paths and plans."""
    found = files_of(folder)
    found["wdsplit.json"] = re.sub(rb'"(path|plan)": ?"[^"]*"', b"", found["wdsplit.json"])
    return found


def converted(inputs, output, jobs=1, storage_options=FAST, **plan):
    options = ConvertOptions(**{"shards": 3, "null": "omit", **plan}, jobs=jobs)
    return convert(inputs, output, options, storage_options=storage_options)


def assert_same_as_local(local, remote, folder, jobs=1, **plan):
    """Convert inputs from a disk and from elsewhere; return the manifests."""
    manifests = []
    for name, inputs, count in (("local", local, 1), ("remote", remote, jobs)):
        shutil.rmtree(folder / name, ignore_errors=True)
        manifests.append(converted(str(inputs), folder / name, count, **plan))
    assert hashes(folder / "remote") == hashes(folder / "local")
    return manifests


MANY_COLUMNS = pa.table({f"c{i}": list(range(500)) for i in range(30)})


def media(num_rows, size):
    chance = np.random.default_rng(1)
    return pa.table(
        {
            "image": [b"\xff\xd8\xff" + chance.bytes(size) for _ in range(num_rows)],
            "label": pa.array(range(num_rows), pa.int64()),
            "other": [chance.bytes(size) for _ in range(num_rows)],
        }
    )


# The same as from the disk


@pytest.mark.parametrize("name", MAKERS)
def test_each_format_gives_the_dataset_that_it_gives_from_the_disk(bucket, tmp_path, name):
    numbers = range(1 if name == "a.tar" else 2)
    for number in numbers:
        path = bucket.folder / f"raw é/{number}" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(MAKERS[name](numbered_table(50, 50 * number)))
    local, remote = assert_same_as_local(bucket.folder / "raw é", f"{bucket.url}/raw é", tmp_path)
    assert remote.provenance["plan"] == local.provenance["plan"]
    assert [file["path"] for file in remote.provenance["inputs"]] == [
        f"{bucket.url}/raw é/{number}/{name}" for number in numbers
    ]


@pytest.mark.parametrize(
    ("rows_per_group", "buffer_bytes", "plan"),
    [
        (7, opening.MAX_BUFFER_BYTES, {"where": "label >= 35", "limit": 60}),
        (7, 20_000, {"where": "label >= 35"}),
        (1000, 1, {"shuffle": True}),
    ],
)
def test_parquet_files_give_the_same_whatever_is_buffered(
    bucket, tmp_path, monkeypatch, rows_per_group, buffer_bytes, plan
):
    monkeypatch.setattr(parquet, "MAX_BUFFER_BYTES", buffer_bytes)
    write_table(bucket.folder / "a.parquet", media(100, 2000), rows_per_group)
    assert_same_as_local(bucket.folder / "a.parquet", f"{bucket.url}/a.parquet", tmp_path, jobs=2, **plan)


@pytest.mark.parametrize(("new", "compression"), [(ipc.new_file, "zstd"), (ipc.new_stream, None)])
def test_arrow_files_with_dictionaries_and_large_batches_give_the_same(bucket, tmp_path, new, compression):
    table = media(300, 3000).append_column("word", pa.array([f"w{i % 7}" for i in range(300)]).dictionary_encode())
    (bucket.folder / "a.arrow").write_bytes(arrow_bytes(table, new, compression, rows=90))
    assert_same_as_local(bucket.folder / "a.arrow", f"{bucket.url}/a.arrow", tmp_path)


def test_inputs_come_from_a_web_server_and_tell_no_signature(web, tmp_path):
    for number in (1, 2):
        write_table(web.folder / "raw x" / f"a {number}.parquet", media(50, 500), 10)
    url = f"{web.endpoint}/raw x/a%20{{1..2}}.parquet"
    _, manifest = assert_same_as_local(web.folder / "raw x", f"{url}?token=SECRET", tmp_path, jobs=2)
    assert [file["path"] for file in manifest.provenance["inputs"]] == [
        f"{web.endpoint}/raw x/a%20{number}.parquet" for number in (1, 2)
    ]
    assert b"SECRET" not in b"".join(files_of(tmp_path / "remote").values())
    plans = [planned(f"{url}?token={token}", ConvertOptions()) for token in ("A", "B")]
    assert plans[0].hash == plans[1].hash and plans[0].modified == plans[1].modified
    assert "token" not in repr(plans[0])
    for place in ("raw x/*.parquet", "raw x", "raw x/", "raw x/missing.parquet"):
        with pytest.raises(InputError, match="lists no files"):
            find_inputs([f"{web.endpoint}/{place}?token=SECRET"])


# Finding


TREE = ("b.parquet", "a.parquet", "10.parquet", "sub/c.parquet", "sub/deep/d.parquet", "x[1].parquet", ".h.parquet")


@pytest.fixture(params=["s3", "memory"])
def raw(request, tmp_path):
    """Return a function that writes tables into a folder and a store, and returns the folder and its URL there."""

    def stored(names):
        folder = tmp_path / "raw"
        for name in names:
            write_table(folder / name, {"a": [1]})
        (folder / "notes.txt").write_text("no table")
        if request.param == "memory":
            request.getfixturevalue("memory").put(str(folder), "/raw", recursive=True)
            return folder, "memory://raw"
        return folder, request.getfixturevalue("bucket").put(folder, "raw")

    return stored


PATTERNS = ["/", "/*.parquet", "/[ab].parquet", "/**/*.parquet", "/sub/", "/su*", "/*/*.parquet", "/{b,a}.parquet",
            "/{10,sub/c}.parquet", "/x[[]1].parquet", "/sub/deep/d.parquet"]  # fmt: skip


def test_globs_braces_and_folders_name_what_they_name_on_the_disk(raw):
    folder, url = raw(TREE)
    for pattern in PATTERNS:
        expected = [os.path.relpath(path, folder) for path in find_inputs([f"{folder}{pattern}"])]
        found = find_inputs([f"{url}{pattern}"])
        assert sorted(path.removeprefix(f"{url}/") for path in found) == sorted(expected), pattern
        assert open_inputs(found).num_rows == len(expected)
    for pattern in ("/none.parquet", "/none/", "/none*.parquet", "/none/*.parquet", "/x{1..2}.parquet"):
        with pytest.raises(InputError, match="input not found") as caught:
            find_inputs([f"{url}{pattern}"])
        assert caught.value.place.startswith(f"{url}/")
    with pytest.raises(InputError, match="duplicate input"):
        find_inputs([f"{url}/a.parquet", f"{url}/*.parquet"])


def test_a_folder_without_a_slash_is_one_where_the_store_tells(bucket, memory, tmp_path):
    write_table(bucket.folder / "raw" / "a.parquet", media(50, 500), 10)
    memory.put(str(bucket.folder / "raw"), "/raw", recursive=True)
    for inputs in (f"{bucket.url}/raw", bucket.url):
        assert find_inputs([inputs]) == [f"{bucket.url}/raw/a.parquet"]
    assert find_inputs(["memory://raw"]) == ["memory://raw/a.parquet"]
    assert_same_as_local(bucket.folder / "raw", "memory://raw", tmp_path)
    url = bucket.put(tmp_path / "local", "set")
    assert find_inputs([url]) == [f"{url}/00000{number}.tar" for number in range(3)]


def test_partitions_are_those_of_the_disk(web):
    names = [f"y={year}/l={lang}/a.parquet" for year in (2024, 2025) for lang in ("en", "de%20fr")]
    for name in names:
        write_table(web.folder / "hive" / name, {"a": [1]})
    urls = [f"{web.endpoint}/hive/{name.replace('%', '%25')}" for name in names]
    assert [file.constants for file in open_inputs(urls).files] == [
        (("y", year), ("l", lang)) for year in (2024, 2025) for lang in ("en", "de fr")
    ]
    assert planned(urls, ConvertOptions(where="y == 2024 and l == 'de fr'")).num_rows == 1


# What changes, and faults


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "a.jsonl", "a.tar"])
def test_an_input_that_is_replaced_after_the_plan_is_refused(bucket, name):
    make = {**MAKERS, "a.parquet": parquet_bytes}[name]
    path = bucket.folder / name
    path.write_bytes(make(numbered_table(20)))
    table = open_inputs([f"{bucket.url}/{name}"])
    assert sum(map(len, read_rows(table, 0, 20, table.schema.names[:1]))) == 20
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="has changed") as caught:
        list(read_rows(table, 0, 20, table.schema.names[:1]))
    assert caught.value.place == f"{bucket.url}/{name}"


def parquet_bytes(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "a.jsonl", "a.tar"])
def test_faults_while_inputs_are_read_do_no_harm(bucket, tmp_path, fault_proxy, name):
    make = {**MAKERS, "a.parquet": parquet_bytes}[name]
    (bucket.folder / name).write_bytes(make(numbered_table(200)))
    converted(str(bucket.folder / name), tmp_path / "local")
    faults = [Cut(500), Truncate(500), Shorten(500), internal_error()]
    for number, jobs in enumerate((1, 1, 1, 2)):
        plan = fault_proxy.plan = EveryOther(faults[number:] + faults[:number], 501)
        converted(f"{bucket.url}/{name}", tmp_path / f"remote {number}", jobs)
        assert plan.num_given > 1
        assert hashes(tmp_path / f"remote {number}") == hashes(tmp_path / "local")


# Adopting


# Requests


def asked(proxy):
    """Return the ranges that were asked for."""
    return [exchange.request.range for exchange in proxy.exchanges if exchange.request.range]


@pytest.mark.parametrize(
    ("name", "data", "columns", "to_open", "to_read"),
    [
        ("a.parquet", lambda: parquet_bytes(MANY_COLUMNS, row_group_size=10), ["c3", "c7"], 3, 8),
        ("a.arrow", lambda: arrow_bytes(media(500, 20_000), ipc.new_file, rows=100), ["label"], 10, 20),
        ("a.jsonl", lambda: b'{"a": "%s"}\n' % (b"x" * 90) * 30_000, ["a"], 3, 3),
    ],
)
def test_many_row_groups_columns_and_rows_are_read_by_few_requests(
    bucket, fault_proxy, name, data, columns, to_open, to_read
):
    (bucket.folder / name).write_bytes(data())
    opened = open_inputs([f"{bucket.url}/{name}"])
    assert len(asked(fault_proxy)) <= to_open
    sent = sum(exchange.bytes_sent for exchange in fault_proxy.exchanges)
    assert name != "a.arrow" or sent < opened.files[0].num_bytes / 2, "only headers are read to plan"
    assert sum(map(len, read_rows(opened, 0, opened.num_rows, columns))) == opened.num_rows
    assert len(asked(fault_proxy)) <= to_read


def test_a_row_group_that_is_too_large_to_be_held_is_read_in_pieces(bucket, fault_proxy, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BUFFER_BYTES", 100_000)
    monkeypatch.setattr(parquet, "AHEAD_BYTES", 200_000)
    pq.write_table(media(100, 10_000), bucket.folder / "a.parquet", use_dictionary=False, **PAGES)
    opened = open_inputs([f"{bucket.url}/a.parquet"])
    list(read_rows(opened, 0, 100, ["image"]))
    sizes = [last - first + 1 for first, last in asked(fault_proxy)]
    assert max(sizes) <= 210_000
    assert len(sizes) < 20
