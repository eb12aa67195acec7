import hashlib
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import wdsplit
from faults import Cut, EveryOther, Shorten, Truncate, internal_error
from tables import planned, write_table
from tars import by_tarfile
from wdsplit.conversion.adopt_tars import index_tars
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions, IndexOptions
from wdsplit.errors import InputError, OutputExistsError, StorageError
from wdsplit.tables.find import find_inputs
from wdsplit.tables.formats import opening, parquet
from wdsplit.tables.read import open_inputs, read_rows
from written_formats import WRITERS, arrow_bytes, numbered_table, tar_bytes

FAST = {"first_delay_s": 0.01, "max_delay_s": 0.05, "timeout_s": 20, "deadline_s": 200}
PAGES = {"data_page_size": 20_000, "write_batch_size": 1}
MAKERS = {**WRITERS, "a.tar": tar_bytes}


def hashes(folder):
    """Return the checksum of each file of a dataset; of the header without what it says of paths and plans."""
    found = {}
    for name in sorted(os.listdir(folder)):
        data = (folder / name).read_bytes()
        if name == "wdsplit.json":
            data = re.sub(rb'"(path|plan)": ?"[^"]*"', b"", data)
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def converted(inputs, output, jobs=1, storage_options=FAST, **plan):
    options = ConvertOptions(**{"shards": 3, "null": "omit", **plan}, jobs=jobs)
    return convert(inputs, output, options, storage_options=storage_options)


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
    local = converted(str(bucket.folder / "raw é"), tmp_path / "local")
    remote = converted(f"{bucket.url}/raw é", tmp_path / "remote", jobs=2 if name == "file.arrow" else 1)
    assert hashes(tmp_path / "remote") == hashes(tmp_path / "local")
    assert remote.provenance["plan"] == local.provenance["plan"]
    assert [file["path"] for file in remote.provenance["inputs"]] == [
        f"{bucket.url}/raw é/{number}/{name}" for number in numbers
    ]


@pytest.mark.parametrize("rows_per_group", [7, 1000])
@pytest.mark.parametrize("buffer_bytes", [opening.MAX_BUFFER_BYTES, 20_000, 1])
def test_parquet_files_give_the_same_whatever_is_buffered(bucket, tmp_path, monkeypatch, rows_per_group, buffer_bytes):
    monkeypatch.setattr(parquet, "MAX_BUFFER_BYTES", buffer_bytes)
    write_table(bucket.folder / "a.parquet", media(100, 2000), rows_per_group)
    for options in ({}, {"shuffle": True}):
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
        shutil.rmtree(tmp_path / "remote", ignore_errors=True)
        converted(str(bucket.folder / "a.parquet"), tmp_path / "local", **options)
        converted(f"{bucket.url}/a.parquet", tmp_path / "remote", jobs=2, **options)
        assert hashes(tmp_path / "remote") == hashes(tmp_path / "local")


@pytest.mark.parametrize("new", [ipc.new_file, ipc.new_stream])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_files_with_dictionaries_and_large_batches_give_the_same(bucket, tmp_path, new, compression):
    table = media(300, 3000).append_column("word", pa.array([f"w{i % 7}" for i in range(300)]).dictionary_encode())
    (bucket.folder / "a.arrow").write_bytes(arrow_bytes(table, new, compression, rows=90))
    converted(str(bucket.folder / "a.arrow"), tmp_path / "local")
    converted(f"{bucket.url}/a.arrow", tmp_path / "remote")
    assert hashes(tmp_path / "remote") == hashes(tmp_path / "local")


def test_rows_are_selected_and_counted_as_from_the_disk(bucket, tmp_path):
    write_table(bucket.folder / "a.parquet", media(100, 100), 10)
    options = ConvertOptions(shards=2, where="label >= 35", limit=20)
    found = [
        planned(f"{at}/a.parquet", options, None if at is bucket.folder else FAST) for at in (bucket.folder, bucket.url)
    ]
    assert found[0].hash == found[1].hash
    assert found[1].num_rows == 20


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_inputs_come_from_a_web_server_and_tell_no_signature(web, tmp_path, jobs):
    write_table(web.folder / "raw x" / "a 1.parquet", media(50, 500), 10)
    write_table(web.folder / "raw x" / "a 2.parquet", media(50, 500), 10)
    url = f"{web.endpoint}/raw x/a%20{{1..2}}.parquet?token=SECRET"
    manifest = converted(url, tmp_path / "remote", jobs=jobs)
    converted(str(web.folder / "raw x"), tmp_path / "local")
    assert hashes(tmp_path / "remote") == hashes(tmp_path / "local")
    assert [file["path"] for file in manifest.provenance["inputs"]] == [
        f"{web.endpoint}/raw x/a%20{number}.parquet" for number in (1, 2)
    ]
    assert b"SECRET" not in b"".join(path.read_bytes() for path in (tmp_path / "remote").iterdir())


def test_a_plan_is_the_same_with_another_signature(web):
    write_table(web.folder / "a.parquet", media(50, 500), 10)
    plans = [planned(f"{web.endpoint}/a.parquet?token={token}", ConvertOptions()) for token in ("A", "B")]
    assert plans[0].hash == plans[1].hash and plans[0].modified == plans[1].modified
    assert "token" not in repr(plans[0])


def test_inputs_come_from_any_file_system(memory, tmp_path):
    write_table(tmp_path / "a.parquet", media(50, 500), 10)
    memory.put(str(tmp_path / "a.parquet"), "/raw/a.parquet")
    converted("memory://raw/*.parquet", tmp_path / "remote")
    converted(str(tmp_path / "a.parquet"), tmp_path / "local")
    assert hashes(tmp_path / "remote") == hashes(tmp_path / "local")


# Finding


TREE = ("b.parquet", "a.parquet", "10.parquet", "sub/c.parquet", "sub/deep/d.parquet", "x[1].parquet", ".h.parquet")


@pytest.fixture
def tree(raw):
    """Return a folder of tables, and the URL of the same in a store."""
    return raw(TREE)


@pytest.fixture(params=["s3", "web", "memory"])
def raw(request, tmp_path):
    """Return a function that writes tables into a folder and a store, and returns the folder and its URL there."""
    return lambda names: _stored(request, tmp_path, names)


def _stored(request, tmp_path, names):
    for name in names:
        write_table(tmp_path / "raw" / name, {"a": [1]})
    (tmp_path / "raw" / "notes.txt").write_text("no table")
    if request.param == "s3":
        bucket = request.getfixturevalue("bucket")
        shutil.copytree(tmp_path / "raw", bucket.folder / "raw")
        return tmp_path / "raw", f"{bucket.url}/raw"
    if request.param == "web":
        web = request.getfixturevalue("web")
        shutil.rmtree(web.folder / "raw", ignore_errors=True)
        shutil.copytree(tmp_path / "raw", web.folder / "raw")
        return tmp_path / "raw", f"{web.endpoint}/raw"
    memory = request.getfixturevalue("memory")
    memory.put(str(tmp_path / "raw"), "/raw", recursive=True)
    return tmp_path / "raw", "memory://raw"


@pytest.mark.parametrize(
    "pattern",
    ["/", "/*.parquet", "/[ab].parquet", "/**/*.parquet", "/sub/", "/su*", "/*/*.parquet", "/{b,a}.parquet",
     "/{10,sub/c}.parquet", "/x[[]1].parquet", "/sub/deep/d.parquet"],
)  # fmt: skip
def test_globs_braces_and_folders_name_what_they_name_on_the_disk(tree, pattern):
    folder, url = tree
    expected = [os.path.relpath(path, folder) for path in find_inputs([f"{folder}{pattern}"])]
    found = find_inputs([f"{url}{pattern}"])
    assert sorted(path.removeprefix(f"{url}/").replace("%5B", "[").replace("%5D", "]") for path in found) == sorted(
        expected
    )
    assert open_inputs(found).num_rows == len(expected)


def test_a_folder_without_a_slash_is_one_where_the_store_tells(bucket, memory, tmp_path):
    write_table(bucket.folder / "raw" / "a.parquet", {"a": [1]})
    memory.put(str(bucket.folder / "raw"), "/raw", recursive=True)
    assert find_inputs([f"{bucket.url}/raw"]) == [f"{bucket.url}/raw/a.parquet"]
    assert find_inputs([bucket.url]) == [f"{bucket.url}/raw/a.parquet"]
    assert find_inputs(["memory://raw"]) == ["memory://raw/a.parquet"]


@pytest.mark.parametrize(
    "pattern", ["/none.parquet", "/none/", "/none*.parquet", "/none/*.parquet", "/x{1..2}.parquet"]
)
def test_what_is_not_there_is_told(tree, pattern):
    with pytest.raises(InputError, match="input not found") as caught:
        find_inputs([f"{tree[1]}{pattern}"])
    assert caught.value.place.startswith(f"{tree[1]}/")


def test_an_input_that_is_named_twice_is_refused(tree):
    with pytest.raises(InputError, match="duplicate input"):
        find_inputs([f"{tree[1]}/a.parquet", f"{tree[1]}/*.parquet"])


def test_a_dataset_of_ours_in_a_bucket_is_found_by_its_tars(bucket, tmp_path):
    write_table(tmp_path / "a.parquet", {"a": [1, 2, 3]})
    converted(str(tmp_path / "a.parquet"), bucket.folder / "set")
    found = find_inputs([f"{bucket.url}/set"])
    assert found == [f"{bucket.url}/set/00000{number}.tar" for number in range(3)]


def test_partitions_are_those_of_the_disk(raw):
    names = [f"y={year}/l={lang}/a.parquet" for year in (2024, 2025) for lang in ("en", "de%20fr")]
    for place in raw(names):
        table = open_inputs(find_inputs([f"{place}/"]))
        assert {file.constants for file in table.files} == {
            (("y", year), ("l", lang)) for year in (2024, 2025) for lang in ("en", "de fr")
        }
        assert planned([f"{place}/"], ConvertOptions(where="y == 2024 and l == 'de fr'")).num_rows == 1


# What changes, and faults


@pytest.mark.parametrize("name", ["a.parquet", *MAKERS])
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


def parquet_bytes(table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "a.orc", "a.jsonl", "a.tar"])
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


def test_a_store_that_never_answers_is_told_by_the_input(bucket, fault_proxy):
    write_table(bucket.folder / "a.parquet", {"a": [1]})
    fault_proxy.plan = lambda request: internal_error()
    with pytest.raises(StorageError, match="does not answer") as caught:
        open_inputs([f"{bucket.url}/a.parquet"], FAST | {"deadline_s": 0.3})
    assert caught.value.url == f"{bucket.url}/a.parquet"


# Adopting


def test_tars_in_a_bucket_are_adopted_where_they_lie(bucket, tmp_path):
    for folder in (bucket.folder / "old", tmp_path / "old"):
        folder.mkdir()
        for number in range(3):
            members = [(f"{number}-{i}.cls", b"%d" % i) for i in range(20)]
            (folder / f"{number}.tar").write_bytes(by_tarfile(members))
    local = index_tars(tmp_path / "old")
    remote = index_tars(f"{bucket.url}/old", IndexOptions(jobs=2), storage_options=FAST)
    assert list(remote.shards) == list(local.shards)
    assert sorted(os.listdir(bucket.folder / "old")) == sorted(os.listdir(tmp_path / "old"))
    samples = [list(wdsplit.Dataset(at, shuffle=False)) for at in (f"{bucket.url}/old", tmp_path / "old")]
    assert [sample["__key__"] for sample in samples[0]] == [sample["__key__"] for sample in samples[1]]
    assert len(samples[0]) == 60
    with pytest.raises(OutputExistsError):
        index_tars(f"{bucket.url}/old")


def test_tars_of_any_file_system_that_can_be_written_to_are_adopted(memory):
    memory.pipe("/old/a.tar", tar_bytes(numbered_table(5)))
    assert index_tars("memory://old").num_samples == 5
    assert memory.exists("/old/a.tar.places")
    with pytest.raises(InputError, match="only be read"):
        index_tars("https://host/old")


# Requests


def asked(proxy):
    """Return the ranges that were asked for."""
    return [exchange.request.range for exchange in proxy.exchanges if exchange.request.range]


def test_a_row_group_is_few_requests_for_the_columns_that_are_wanted(bucket, fault_proxy):
    table = media(400, 10_000)
    path = write_table(bucket.folder / "a.parquet", table, 100)
    opened = open_inputs([f"{bucket.url}/a.parquet"])
    assert len(fault_proxy.exchanges) == 2
    assert len(asked(fault_proxy)) == 1
    before = len(fault_proxy.exchanges)
    rows = list(read_rows(opened, 0, 100, ["image", "label"]))
    assert sum(map(len, rows)) == 100
    assert len(fault_proxy.exchanges) - before <= 4
    sent = sum(exchange.bytes_sent for exchange in fault_proxy.exchanges[before:])
    assert sent < 1.2 * 100 * 10_000 + 70_000 < os.path.getsize(path) / 4
    before = len(fault_proxy.exchanges)
    assert sum(map(len, read_rows(opened, 0, 400, ["label"]))) == 400
    assert len(fault_proxy.exchanges) - before <= 6


def test_many_row_groups_and_columns_are_opened_by_few_requests(bucket, fault_proxy):
    write_table(bucket.folder / "a.parquet", {f"c{i}": list(range(500)) for i in range(30)}, 10)
    opened = open_inputs([f"{bucket.url}/a.parquet"])
    assert len(fault_proxy.exchanges) <= 3
    list(read_rows(opened, 0, 500, ["c3", "c7"]))
    assert len(fault_proxy.exchanges) <= 8


def test_a_row_group_that_is_too_large_to_be_held_is_read_in_pieces(bucket, fault_proxy, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BUFFER_BYTES", 100_000)
    monkeypatch.setattr(parquet, "AHEAD_BYTES", 200_000)
    pq.write_table(media(100, 10_000), bucket.folder / "a.parquet", use_dictionary=False, **PAGES)
    opened = open_inputs([f"{bucket.url}/a.parquet"])
    list(read_rows(opened, 0, 100, ["image"]))
    sizes = [last - first + 1 for first, last in asked(fault_proxy)]
    assert max(sizes) <= 210_000
    assert len(sizes) < 20


def test_of_arrow_batches_only_headers_are_read_to_plan(bucket, fault_proxy):
    data = arrow_bytes(media(500, 20_000), ipc.new_file, rows=100)
    (bucket.folder / "a.arrow").write_bytes(data)
    opened = open_inputs([f"{bucket.url}/a.arrow"])
    sent = sum(exchange.bytes_sent for exchange in fault_proxy.exchanges)
    assert opened.num_rows == 500
    assert sent < len(data) / 2
    before = len(fault_proxy.exchanges)
    list(read_rows(opened, 100, 200, ["image"]))
    assert len(fault_proxy.exchanges) - before < 8


def test_files_of_text_are_read_in_large_ranges(bucket, fault_proxy):
    (bucket.folder / "a.jsonl").write_bytes(b'{"a": "%s"}\n' % (b"x" * 90) * 30_000)
    opened = open_inputs([f"{bucket.url}/a.jsonl"])
    assert sum(map(len, read_rows(opened, 0, 30_000, ["a"]))) == 30_000
    assert len(asked(fault_proxy)) <= 3
