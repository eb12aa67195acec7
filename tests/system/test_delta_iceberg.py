"""Delta and Iceberg tables as inputs, written by their own libraries; these also say which rows a version has."""

import base64
import datetime
import json
import string
import struct
import subprocess
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg import catalog as pyiceberg_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import FileFormat
from pyiceberg.table import DataScan
from pyiceberg.types import LongType
from pyroaring import BitMap

import wdsplit
from commands import done
from stops import stopped_at
from tables import all_samples, files_of

NUM_ROWS = 40


def rows(first=0, days=("a b", "c/d", "é=1")):
    numbers = range(first, first + NUM_ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [f"text {number}" for number in numbers],
            "day": [days[number % len(days)] if number % 10 else None for number in numbers],
        }
    )


def write_delta(folder, first=0, **options):
    write_deltalake(folder, rows(first), **options)
    return f"delta+{folder}"


def converted(table, output, **options):
    """Convert, and return the rows of the dataset in the order of their numbers."""
    wdsplit.convert(table, output, key="id", mapping={"txt": "text", "day": "day"}, null="omit", **options)
    return rows_of(output)


def rows_of(output):
    return sorted(
        (int(key), found["txt"].decode(), found.get("day", b"").decode() or None)
        for key, found in all_samples(output)
        if not key.startswith("_pad_")
    )


def expected(table):
    return sorted((row["id"], row["text"], row["day"]) for row in pa.table(table).to_pylist())


# Delta


def test_a_delta_table_is_read_as_of_a_version_without_the_rows_that_were_deleted(tmp_path):
    table = write_delta(tmp_path / "table", partition_by=["day"])
    write_delta(tmp_path / "table", NUM_ROWS, mode="append")
    DeltaTable(tmp_path / "table").delete("id < 10")
    assert converted(table, tmp_path / "latest") == expected(DeltaTable(tmp_path / "table").scan())
    assert wdsplit.Dataset(tmp_path / "latest").manifest.provenance["snapshot"] == f"{table}@2"
    assert converted(f"{table}@0", tmp_path / "first") == expected(rows())


def test_conditions_prune_files_and_row_groups_of_a_delta_table(tmp_path, monkeypatch):
    from wdsplit.tables.formats import parquet

    table = write_delta(tmp_path / "table", partition_by=["day"])
    write_delta(tmp_path / "table", NUM_ROWS, mode="append")
    read, read_batches = [], parquet.read_batches
    monkeypatch.setattr(
        parquet,
        "read_batches",
        lambda file, groups, columns, schema: (
            read.append((file.path, tuple(columns))) or read_batches(file, groups, columns, schema)
        ),
    )
    where = f"id >= {NUM_ROWS} and day == 'c/d'"
    wdsplit.convert(table, tmp_path / "out", columns=["id"], where=where, jobs=1)
    assert {columns for _, columns in read} == {("id",)}
    assert len({path for path, _ in read}) == 1


def test_a_resumed_conversion_reads_the_version_with_which_it_began(tmp_path):
    table = write_delta(tmp_path / "table")
    options = {"shards": 4, "jobs": 1, "shuffle": False}
    with stopped_at() as stop:
        converted(table, tmp_path / "out", progress=stop, **options)
    write_delta(tmp_path / "table", NUM_ROWS, mode="append")
    assert converted(table, tmp_path / "out", resume=True, **options) == expected(rows())
    assert converted(table, tmp_path / "out", resume=True, **options) == expected(rows())  # of a finished dataset
    with pytest.raises(wdsplit.OutputExistsError, match="another plan"):
        converted(f"{table}@1", tmp_path / "out", resume=True, **options)
    converted(f"{table}@0", tmp_path / "again", **options)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "again")


def test_shares_read_the_version_of_their_plan(tmp_path):
    table = write_delta(tmp_path / "table")
    plan, output = str(tmp_path / "x.plan"), str(tmp_path / "out")
    options = ("--key", "id", "--map", "txt=text", "--no-shuffle")
    assert f"reading {table}@0" in done("plan", table, "-o", plan, "--into", output, *options).out
    write_delta(tmp_path / "table", NUM_ROWS, mode="append")
    wdsplit.convert_share(plan, 0, 1)
    wdsplit.commit_shares(plan)
    assert [number for number, *_ in rows_of(output)] == list(range(NUM_ROWS))


def test_a_delta_table_in_a_bucket_is_read_with_the_credentials_of_the_environment(tmp_path, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    write_delta(tmp_path / "table", partition_by=["day"])
    url = bucket.put(tmp_path / "table", "table")
    wdsplit.convert(f"delta+{url}", f"{bucket.url}/out", key="id", mapping={"txt": "text"})
    assert [number for number, *_ in rows_of(bucket.folder / "out")] == list(range(NUM_ROWS))


def test_rows_of_another_version_are_appended(tmp_path):
    table = write_delta(tmp_path / "table")
    converted(table, tmp_path / "out")
    write_delta(tmp_path / "table", NUM_ROWS, mode="append")
    added = wdsplit.convert(f"{table}@1", tmp_path / "out", where=f"id >= {NUM_ROWS}", null="omit", append=True)
    assert added.num_samples == 2 * NUM_ROWS
    assert added.history[-1].inputs == f"{table}@1"


def noted(folder, name, change):
    """Change an action in the first commit of a table."""
    path = next((folder / "_delta_log").glob("*0.json"))
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if name in action:
            change(action[name])
    path.write_text("\n".join(map(json.dumps, actions)))


def of_version_3(folder, *features):
    def change(protocol):
        protocol.update(minReaderVersion=3, minWriterVersion=7, readerFeatures=[*features], writerFeatures=[*features])

    noted(folder, "protocol", change)


def with_deletion_vectors(folder):
    """Delete three rows as Spark does: one bitmap of the first 2**32 rows, in base85 in the log."""
    write_delta(folder)
    of_version_3(folder, "deletionVectors")
    bits = struct.pack("<iqi", 1681511377, 1, 0) + BitMap([1, 2, 3]).serialize()
    bits += b"\0" * (-len(bits) % 4)
    letters = string.digits + string.ascii_lowercase + string.ascii_uppercase
    text = base64.b85encode(bits).translate(
        bytes.maketrans(base64._b85alphabet, f"{letters}.-:+=^!/*?&<>()[]{{}}@%$#".encode())
    )
    vector = {"storageType": "i", "pathOrInlineDv": text.decode(), "sizeInBytes": len(bits), "cardinality": 3}
    noted(folder, "add", lambda add: add.update(deletionVector=vector))


def map_columns(data):
    schema = json.loads(data["schemaString"])
    for number, field in enumerate(schema["fields"]):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    data.update(schemaString=json.dumps(schema), configuration={"delta.columnMapping.mode": "name"})


def with_mapped_columns(folder):
    write_delta(folder)
    of_version_3(folder, "columnMapping")
    noted(folder, "metaData", map_columns)


def with_mapped_columns_of_version_2(folder):
    write_delta(folder)
    noted(folder, "protocol", lambda protocol: protocol.update(minReaderVersion=2, minWriterVersion=5))
    noted(folder, "metaData", map_columns)


def with_texts_of_digits(folder):
    write_deltalake(folder, rows(days=("01", "02")), partition_by=["day"])


def with_other_folders(folder):
    write_delta(folder, partition_by=["day"])
    noted(folder, "add", lambda add: add["partitionValues"].update(day="z"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (with_deletion_vectors, "deletion vectors"),
        (with_mapped_columns, "columnMapping"),
        (with_mapped_columns_of_version_2, "columnMapping"),
        (with_texts_of_digits, "'day': '0"),
        (with_other_folders, "'day': 'z'"),
    ],
)
def test_a_delta_table_whose_files_do_not_have_its_rows_is_refused(make, said, tmp_path):
    make(tmp_path / "table")
    with pytest.raises(wdsplit.InputError) as caught:
        converted(f"delta+{tmp_path / 'table'}", tmp_path / "out")
    assert said in str(caught.value)
    assert "scan()" in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_a_feature_of_a_delta_table_that_no_file_uses_is_no_obstacle(tmp_path):
    table = write_delta(tmp_path / "table")
    of_version_3(tmp_path / "table", "deletionVectors")
    assert converted(table, tmp_path / "out") == expected(rows())


def test_dates_and_numbers_of_partitions_are_columns(tmp_path):
    days = [datetime.date(2024, 1, number % 3 + 1) for number in range(NUM_ROWS)]
    table = rows().drop_columns("day").append_column("day", pa.array(days))
    table = table.append_column("part", pa.array([number % 2 for number in range(NUM_ROWS)], pa.int32()))
    write_deltalake(tmp_path / "table", table, partition_by=["day", "part"])
    found = converted(f"delta+{tmp_path / 'table'}", tmp_path / "out", where="part == 1")
    assert found == [(row["id"], row["text"], str(row["day"])) for row in table.to_pylist() if row["part"] == 1]


# Both


@pytest.mark.parametrize(
    ("inputs", "cause"),
    [
        (["{table}"], "a folder is that of a Delta or Iceberg table"),
        (["{other}"], "a folder is that of a Delta or Iceberg table"),
        (["delta+{table}@7"], "a table cannot be opened"),
        (["delta+{table}x"], "a table cannot be opened"),
        (["delta+{table}", "{table}/part.parquet"], "a Delta or Iceberg table is not the only input"),
        (["iceberg+local/db.none"], "a table cannot be opened"),
    ],
)
def test_what_is_no_table_or_not_named_as_one_is_refused(inputs, cause, iceberg, tmp_path):
    write_delta(tmp_path / "table")
    names = {"table": tmp_path / "table", "other": tmp_path / "warehouse" / "db" / "rows"}
    with pytest.raises(wdsplit.InputError) as caught:
        wdsplit.convert([each.format(**names) for each in inputs], tmp_path / "out")
    assert caught.value.cause.startswith(cause)
    assert not (tmp_path / "out").exists()


def test_an_output_inside_a_delta_table_is_refused(tmp_path):
    table = write_delta(tmp_path / "table")
    with pytest.raises(wdsplit.InputError, match="inside an input folder"):
        converted(table, tmp_path / "table" / "out")


# Iceberg


@pytest.fixture
def iceberg(tmp_path, monkeypatch):
    """Return a table of the catalogue `local`."""
    (tmp_path / "warehouse").mkdir()
    settings = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LOCAL__{name.upper()}", value)
    catalog = SqlCatalog("local", **settings)
    monkeypatch.setattr(pyiceberg_catalog, "load_catalog", {"local": catalog}.__getitem__)  # read once a process
    catalog.create_namespace("db")
    table = catalog.create_table("db.rows", schema=rows().schema)
    table.append(rows())
    yield table
    catalog.engine.dispose()


NAME = "iceberg+local/db.rows"


def test_an_iceberg_table_is_read_as_of_a_snapshot_without_the_rows_that_were_deleted(iceberg, tmp_path):
    with iceberg.update_spec() as update:
        update.add_identity("day")
    first = iceberg.current_snapshot().snapshot_id
    iceberg.append(rows(NUM_ROWS))
    iceberg.delete("id < 10")
    assert converted(NAME, tmp_path / "latest") == expected(iceberg.scan().to_arrow())
    last = wdsplit.Dataset(tmp_path / "latest").manifest.provenance["snapshot"]
    assert last == f"{NAME}@{iceberg.current_snapshot().snapshot_id}"
    assert converted(f"{NAME}@{first}", tmp_path / "first") == expected(rows())
    assert converted(NAME, tmp_path / "some", where="day == 'c/d'") == expected(
        iceberg.scan(row_filter="day == 'c/d'").to_arrow()
    )


def test_a_command_finds_the_catalogue_in_the_environment(iceberg, tmp_path):
    command = [sys.executable, "-m", "wdsplit.cli", "convert", NAME, tmp_path / "out", "--key=id", "--map=txt=text"]
    subprocess.run(command, check=True)
    assert [number for number, *_ in rows_of(tmp_path / "out")] == list(range(NUM_ROWS))


def test_columns_that_were_added_are_null_in_older_files(iceberg, tmp_path):
    with iceberg.update_schema() as update:
        update.add_column("more", LongType())
    iceberg.append(rows(NUM_ROWS).append_column("more", pa.array([7] * NUM_ROWS)))
    wdsplit.convert(NAME, tmp_path / "out", key="id", mapping={"more": "more"}, null="omit", where="more == 7")
    assert len(wdsplit.Samples(tmp_path / "out")) == NUM_ROWS


def renamed(table, monkeypatch):
    with table.update_schema() as update:
        update.rename_column("text", "words")


def dropped(table, monkeypatch):
    with table.update_schema() as update:
        update.delete_column("text")


def tasks_with(monkeypatch, change):
    plan_files = DataScan.plan_files

    def changed(scan):
        for task in plan_files(scan):
            change(task)
            yield task

    monkeypatch.setattr(DataScan, "plan_files", changed)


def with_delete_files(table, monkeypatch):  # pyiceberg reads these, but writes none
    tasks_with(monkeypatch, lambda task: task.delete_files.add("deletes.parquet"))


def in_orc(table, monkeypatch):
    tasks_with(
        monkeypatch,
        lambda task: setattr(task.file, "_data", [*task.file._data[:2], FileFormat.ORC, *task.file._data[3:]]),
    )


def without_counts(table, monkeypatch):
    with table.update_spec() as update:
        update.add_identity("day")
    table.append(rows(NUM_ROWS))
    table.transaction().set_properties({"write.metadata.metrics.default": "none"}).commit_transaction()
    table.append(rows(2 * NUM_ROWS))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (renamed, "column 'text' was renamed"),
        (dropped, "column 'text' was renamed, dropped"),
        (with_delete_files, "1 of 1 files with delete files"),
        (in_orc, "files in orc"),
        (without_counts, "no counts of values of 'day'"),
    ],
)
def test_an_iceberg_table_whose_files_do_not_have_its_rows_is_refused(change, said, iceberg, tmp_path, monkeypatch):
    change(iceberg, monkeypatch)
    with pytest.raises(wdsplit.InputError) as caught:
        wdsplit.convert(NAME, tmp_path / "out")
    assert said in caught.value.found
    assert "to_arrow_batch_reader()" in caught.value.remedy
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_that_files_do_not_have_are_read_by_the_librarys_own_reader(kind, iceberg, tmp_path):
    with iceberg.update_schema() as update:
        update.rename_column("text", "words")
        update.rename_column("day", "text")
    with_deletion_vectors(tmp_path / "table")
    if kind == "delta":
        there = [row for row in expected(rows()) if row[0] not in (1, 2, 3)]
        assert converted(DeltaTable(tmp_path / "table").scan(), tmp_path / "out") == there
    else:
        reader = iceberg.scan(row_filter="id < 20", selected_fields=("id", "words")).to_arrow_batch_reader()
        wdsplit.convert(reader, tmp_path / "out", key="id", mapping={"txt": "words"})
        assert [row[:2] for row in rows_of(tmp_path / "out")] == [row[:2] for row in expected(rows())[:20]]
