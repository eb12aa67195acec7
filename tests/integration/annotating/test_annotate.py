import json
import os
import re
import signal
import tarfile

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner

import wdsplit
from tables import files_below, files_of, start_script, write_files, write_table
from wdsplit import AnnotateOptions, ConvertOptions
from wdsplit.cli.main import cli
from wdsplit.errors import CorruptDataError, InputError, OutputExistsError, StorageError
from wdsplit.fields.infer import with_class_names
from wdsplit.shards.annotations import read_annotation
from wdsplit.shards.files import read_manifest
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.opening import open_storage

NUM_ROWS, SHARDS = 300, 7
KEYS = [f"é.{number}/part {number % 7}" if number % 3 else f"plain{number}" for number in range(NUM_ROWS)]
"""Half of them are escaped in tars; one folder has 43 of them."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a dataset whose shards end in pads."""
    folder = tmp_path_factory.mktemp("made")
    source = write_table(folder / "in.parquet", {"id": KEYS, "cls": np.arange(NUM_ROWS)})
    wdsplit.convert(source, folder / "data", ConvertOptions(shards=SHARDS, key="id"))
    return folder / "data"


@pytest.fixture
def data(made, tmp_path):
    """Return a copy of the dataset, of links."""
    for name in files_below(made):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(made / name, tmp_path / "data" / name)
    return tmp_path / "data"


@pytest.fixture
def little_memory(monkeypatch):
    """Let a task hold 4 kB, so that even a small table has many tasks and partitions."""
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)


def scores(order=None):
    """Return a table of all keys in some order, and what belongs to each."""
    order = np.arange(NUM_ROWS) if order is None else order
    return pa.table(
        {
            "key": [KEYS[number] for number in order],
            "score": order / 7,
            "word": pa.array([f"wörd {number % 5}" for number in order]).dictionary_encode(),
            "flag": [None if number % 4 == 0 else bool(number % 2) for number in order],
        }
    )


def annotate(data, source, key="key", name="quality", **options):
    return wdsplit.annotate(data, source, key, name, AnnotateOptions(memory=1, **options))


def joined(data, name="quality"):
    """Return what the dataset has for each sample, by its key as it was before it was escaped."""
    storage = open_storage(str(data))
    manifest = read_manifest(storage)
    annotation = wdsplit.list_annotations(data)[name]
    rows = {}
    for number in range(len(manifest.shards)):
        keys = read_samples(storage, manifest.shards[number], ["__key__"]).column(0).to_pylist()
        values = read_annotation(storage, annotation, manifest.shards[number]).to_pylist()
        assert len(keys) == len(values)
        rows |= dict(zip(map(wdsplit.unescape_key, keys), values, strict=True))
    return rows


def expected(table=None, key="key"):
    rows = (scores() if table is None else table).to_pylist()
    return {row[key]: {name: value for name, value in row.items() if name != key} for row in rows}


def run(*arguments):
    return CliRunner().invoke(cli, ["annotate", *map(str, arguments)])


def sample_keys(data):
    storage = open_storage(str(data))
    shards = read_manifest(storage).shards
    return [key for n in range(len(shards)) for key in read_samples(storage, shards[n], ["__key__"])[0].to_pylist()]


# What is joined


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("order", ["sorted", "reversed", "random"])
def test_each_sample_has_its_row_whatever_the_order_of_the_table(data, tmp_path, jobs, order, little_memory):
    before = files_of(data)
    numbers = np.arange(NUM_ROWS)
    numbers = {"sorted": numbers, "reversed": numbers[::-1], "random": np.random.default_rng(0).permutation(numbers)}
    write_files(tmp_path / "scores", scores(numbers[order]), [100, 1, 57, 0], 20)
    made = annotate(data, tmp_path / "scores", jobs=jobs)
    assert joined(data) == expected()
    assert (made.num_samples, made.num_missing, made.num_extra, made.num_duplicates) == (NUM_ROWS, 0, 0, 0)
    after = files_of(data)
    assert {name: after[name] for name in before} == before
    tables = [name for name in after if name.startswith(f"{made.folder}/")]
    assert made.num_bytes == sum(len(after[name]) for name in tables)
    assert sorted(set(after) - set(before)) == sorted(["annotations/quality.json", *tables])
    assert len(tables) == SHARDS


def test_jobs_and_memory_do_not_change_a_byte(data, tmp_path, monkeypatch):
    source = write_table(tmp_path / "scores.parquet", scores(), 20)
    found = []
    for jobs, threads, least in ((1, 4, 4096), (2, 4, 4096), (2, 1, 20_000), (1, 4, 2**30)):
        monkeypatch.setattr("wdsplit.engines.local._MAX_THREADS", threads)  # else two jobs are threads
        monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", least)
        annotate(data, source, jobs=jobs, overwrite=bool(found))
        found.append(files_of(data / "annotations"))
    assert found[1:] == found[:1] * 3


def test_classes_are_named_in_conditions(data):
    numbers = np.arange(NUM_ROWS) % 2
    table = pa.table({"key": KEYS, "kind": numbers})
    annotate(data, table.replace_schema_metadata(with_class_names(table.schema, {"kind": ["cat", "dog"]}).metadata))
    assert wdsplit.list_annotations(data)["quality"].class_names == {"kind": ("cat", "dog")}
    view = wdsplit.make_view(str(data), "dogs", where="kind == 'dog'")
    assert view.stored.num_selected == NUM_ROWS // 2


@pytest.mark.parametrize("suffix", ["csv", "arrow"])
def test_a_table_may_have_any_format(data, tmp_path, suffix):
    table = scores().select(["key", "score"])
    path = tmp_path / f"quality.{suffix}"
    if suffix == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    assert wdsplit.annotate(data, path, "key").name == "quality"
    assert joined(data) == expected(table)


@pytest.mark.parametrize("kind", ["arrow", "generator"])
def test_rows_may_come_from_python(data, kind):
    table = scores().select(["key", "score"])
    annotate(data, table if kind == "arrow" else (row for row in table.to_pylist()))
    assert joined(data) == expected(table)
    assert {name.split("/")[0] for name in files_below(data / "annotations")} == {
        "quality.json",
        wdsplit.list_annotations(data)["quality"].folder.split("/")[1],
    }


def test_keys_may_be_those_that_samples_have(data):
    annotate(data, pa.table({"key": sample_keys(data), "place": np.arange(NUM_ROWS)}))
    assert [joined(data)[wdsplit.unescape_key(key)]["place"] for key in sample_keys(data)] == [*range(NUM_ROWS)]


def test_tars_of_other_programs_have_the_keys_that_they_have(tmp_path):
    keys = [f"é {number // 5}/_x2E {number}" for number in range(15)]
    for shard in range(3):
        (tmp_path / "tars" / str(shard)).mkdir(parents=True)
        with tarfile.open(tmp_path / f"tars/{shard}/a.tar", "w") as tar:
            for key in keys[5 * shard : 5 * shard + 5]:
                tar.addfile(tarfile.TarInfo(f"{key}.txt"))
    wdsplit.index_tars(tmp_path / "tars", wdsplit.IndexOptions(sample_tables=True))
    made = annotate(tmp_path / "tars", pa.table({"key": keys[::-1], "number": np.arange(15)[::-1]}))
    storage = open_storage(str(tmp_path / "tars"))
    shards = read_manifest(storage).shards
    found = [read_annotation(storage, made, shards[number])["number"].to_pylist() for number in range(3)]
    assert found == np.arange(15).reshape(3, 5).tolist()
    assert wdsplit.verify(str(tmp_path / "tars")).problems == ()


@pytest.mark.parametrize("key", [None, "number"])
@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64()])
def test_integers_are_written_as_convert_writes_them_row_numbers_too(tmp_path, key, kind):
    numbers = np.arange(40)[::-1]
    source = write_table(tmp_path / "in.parquet", {"number": numbers, "cls": numbers})
    options = ConvertOptions(shards=3, key=key, columns=("cls",))
    wdsplit.convert(source, tmp_path / "data", options)
    annotate(tmp_path / "data", pa.table({"key": pa.array(np.arange(40), kind), "twice": 2 * np.arange(40)}))
    assert {int(name): row["twice"] for name, row in joined(tmp_path / "data").items()} == {n: 2 * n for n in range(40)}


def test_partitions_of_folders_are_columns(data, tmp_path):
    halves = scores().slice(0, 100), scores().slice(100)
    for number, half in enumerate(halves):
        write_table(tmp_path / f"scores/part={number}/a.parquet", half.select(["key"]))
    annotate(data, tmp_path / "scores")
    assert {row["part"] for row in joined(data).values()} == {0, 1}


# Keys that match nothing, or too much


def test_samples_without_a_row_are_counted_and_refused_or_null(data, little_memory):
    table, before = scores().slice(4), files_of(data)
    with pytest.raises(InputError, match=r"4 samples without a row: .*\(00000\d.tar\).*, \.\.\.(.|\n)*--allow-missing"):
        annotate(data, table)
    assert files_of(data) == before
    assert annotate(data, table, allow_missing=True).num_missing == 4
    nothing = dict.fromkeys(("score", "word", "flag"))
    assert joined(data) == {**expected(table), **dict.fromkeys(KEYS[:4], nothing)}
    view = wdsplit.make_view(str(data), "low", where="score < 1")
    assert view.stored.num_selected == 3


def test_rows_without_a_sample_are_counted_and_refused_or_left_out(data, tmp_path, little_memory):
    extra = pa.concat_tables([scores(), scores().slice(0, 2).set_column(0, "key", pa.array(["x y", "z"]))])
    source = write_table(tmp_path / "s.parquet", extra)
    with pytest.raises(InputError, match=r"2 rows without a sample: 'x y' \(.*, row 300\), 'z' \(.*, row 301\)"):
        annotate(data, source)
    assert annotate(data, source, allow_extra=True).num_extra == 2
    assert joined(data) == expected()


def test_duplicate_keys_are_counted_and_refused_or_the_first_or_last_is_used(data, tmp_path, little_memory):
    again = scores().slice(0, 5)
    changed = again.set_column(1, "score", pa.array([-1.0] * 5))
    source = write_files(tmp_path / "s", pa.concat_tables([scores(), changed]), [150])
    with pytest.raises(
        InputError, match=r"5 rows with the key of another row: .* and .*(.|\n)*--allow-duplicates first"
    ):
        annotate(data, tmp_path / "s")
    assert len(source) == 3
    assert annotate(data, tmp_path / "s", allow_duplicates="first").num_duplicates == 5
    assert joined(data) == expected()
    annotate(data, tmp_path / "s", allow_duplicates="last", overwrite=True)
    assert joined(data) == {**expected(), **expected(changed)}


def test_a_wrong_key_column_is_said_to_be_one(data):
    with pytest.raises(InputError, match=r"no key matches: check --key; the dataset's keys look like '"):
        annotate(data, scores(), key="word", columns=("score",), allow_duplicates="first")


def test_an_empty_table_is_one_in_which_all_is_missing(data, tmp_path):
    source = write_table(tmp_path / "s.parquet", scores().slice(0, 0))
    with pytest.raises(InputError, match="300 samples without a row"):
        annotate(data, source)
    annotate(data, source, allow_missing=True)
    assert {tuple(row.values()) for row in joined(data).values()} == {(None, None, None)}


@pytest.mark.parametrize(("key", "message"), [(None, "is null"), ("", "is empty"), ("k" * 2000, "is too long")])
def test_a_key_that_no_sample_can_have_is_refused_with_its_place(data, tmp_path, key, message):
    table = scores().set_column(0, "key", pa.array([*KEYS[:-1], key]))
    source = write_table(tmp_path / "s.parquet", table)
    with pytest.raises(InputError, match=rf"{message}(.|\n)*s\.parquet, row 299, column 'key'(.|\n)*such rows"):
        annotate(data, source)
    assert not (data / "annotations").exists()


# What is refused before anything is written


def test_a_dataset_without_sample_tables_is_refused_with_the_remedy(data):
    header = orjson.loads((data / "wdsplit.json").read_bytes())
    del header["samples"]
    (data / "wdsplit.json").unlink()
    (data / "wdsplit.json").write_bytes(orjson.dumps(header))
    with pytest.raises(InputError, match=r"no sample tables(.|\n)*wdsplit index .*data --sample-tables"):
        annotate(data, scores())


def test_a_column_of_the_sample_tables_or_of_another_annotation_is_refused(data):
    with pytest.raises(InputError, match="sample tables"):
        annotate(data, scores().rename_columns(["key", "num_bytes", "word", "flag"]))
    annotate(data, scores(), columns=("score",))
    with pytest.raises(InputError, match=r"annotation 'quality'(.|\n)*--map NEW=score"):
        annotate(data, scores(), name="other")
    annotate(data, scores(), name="other", mapping={"score2": "score"})
    assert sorted(wdsplit.list_annotations(data)) == ["other", "quality"]
    assert not list(data.glob("annotations/*.run"))


def test_a_name_is_that_of_the_file_or_given(data, tmp_path):
    with pytest.raises(InputError, match="has no name"):
        wdsplit.annotate(data, scores(), "key")
    with pytest.raises(InputError, match="invalid annotation name"):
        wdsplit.annotate(data, write_table(tmp_path / "my scores.parquet", scores()), "key")
    with pytest.raises(InputError, match="invalid annotation name"):
        wdsplit.annotate(data, scores(), "key", "../up")
    annotate(data, scores())
    with pytest.raises(OutputExistsError, match="except for case"):
        annotate(data, scores(), name="Quality")


def test_images_are_no_table(data, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(InputError, match="images and audio cannot be joined"):
        annotate(data, tmp_path / "images")


# Replaced, dropped, continued


def test_one_that_is_there_is_replaced_only_if_that_is_asked_for(data):
    annotate(data, scores())
    with pytest.raises(OutputExistsError, match=r"already has an annotation 'quality'(.|\n)*--overwrite"):
        annotate(data, scores())
    changed = scores().set_column(1, "score", pa.array(np.zeros(NUM_ROWS)))
    annotate(data, changed, overwrite=True)
    assert joined(data) == expected(changed)
    assert len(list(data.glob("annotations/*"))) == 2


def test_one_that_is_replaced_by_the_same_is_written_anew(data):
    folder = annotate(data, scores()).folder
    expected_files = files_of(data)
    (data / folder / "000003.tar.parquet").write_bytes(b"damaged")
    annotate(data, scores(), overwrite=True)
    assert files_of(data) == expected_files


def test_one_that_failed_to_be_replaced_stays(data):
    annotate(data, scores())
    before = files_of(data)
    with pytest.raises(InputError, match="without a row"):
        annotate(data, scores().slice(1), overwrite=True)
    assert files_of(data) == before


def test_dropping_one_leaves_the_dataset_as_it_was(data):
    before = files_of(data)
    annotate(data, scores())
    annotate(data, scores(), name="other", mapping={"score2": "score"})
    wdsplit.drop_annotation(data, "quality")
    assert list(wdsplit.list_annotations(data)) == ["other"]
    with pytest.raises(InputError, match="there is no annotation 'quality'"):
        wdsplit.drop_annotation(data, "quality")
    wdsplit.drop_annotation(data, "other")
    assert files_of(data) == before


KILLED = """
import os, signal, sys
import wdsplit
import wdsplit.conversion.shuffle.needs

wdsplit.conversion.shuffle.needs._LEAST_BYTES = 4096

def report(progress):
    name, at_least, full = sys.argv[3:]
    if progress.name == name and progress.done >= (progress.total if full else 1):
        os.kill(os.getpid(), signal.SIGKILL)

source = sys.argv[2]
wdsplit.annotate(sys.argv[1], source, "key", "quality", wdsplit.AnnotateOptions(memory=1), report)
"""


def killed(data, source, name, full=""):
    process = start_script(KILLED, str(data), source, name, "1", full)
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


def stopped(data, source, name):
    """Stop a run in one of its passes, as Ctrl-C does."""

    def stop(progress):
        if progress.name == name and progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wdsplit.annotate(data, source, "key", "quality", AnnotateOptions(memory=1), stop)


@pytest.mark.parametrize("full", ["", "full"])
@pytest.mark.parametrize("name", ["rows", "keys", "join", "write"])
def test_a_run_that_is_killed_leaves_the_dataset_as_it_was_and_is_continued(data, tmp_path, name, full, little_memory):
    source = write_table(tmp_path / "s.parquet", scores(), 20)
    annotate(data, source, name="whole", mapping={f"{name}2": name for name in ("score", "word", "flag")})
    killed(data, source, name, full)
    assert list(wdsplit.list_annotations(data)) == ["whole"]
    assert wdsplit.verify(str(data)).problems == ()
    with pytest.raises(OutputExistsError, match=r"unfinished(.|\n)*--resume(.|\n)*--overwrite"):
        annotate(data, source)
    seen = []
    options = AnnotateOptions(memory=1, jobs=2, resume=True)
    wdsplit.annotate(data, source, "key", "quality", options, seen.append)
    assert any(progress.skipped for progress in seen)
    assert joined(data) == expected()
    assert len(list(data.glob("annotations/*"))) == 4
    assert not [name for name in files_below(data) if "tmp" in name]


def test_a_run_that_was_stopped_is_replaced_by_another(data, tmp_path, little_memory):
    source = write_table(tmp_path / "s.parquet", scores(), 20)
    stopped(data, source, "write")
    other = write_table(tmp_path / "t.parquet", scores().set_column(1, "score", pa.array(np.ones(NUM_ROWS))))
    for options in ({"resume": True}, {"resume": True, "columns": ("score",)}):
        with pytest.raises(OutputExistsError, match="made by another plan"):
            annotate(data, other, **options)
    annotate(data, other, overwrite=True)
    assert {row["score"] for row in joined(data).values()} == {1.0}
    assert len(list(data.glob("annotations/*"))) == 2


def test_a_run_that_was_stopped_can_be_dropped(data, tmp_path, little_memory):
    before = files_of(data)
    stopped(data, write_table(tmp_path / "s.parquet", scores(), 20), "write")
    wdsplit.drop_annotation(data, "quality")
    assert files_of(data) == before


def test_an_input_that_was_written_anew_is_not_continued_with(data, tmp_path, little_memory):
    source = write_table(tmp_path / "s.parquet", scores(), 20)
    stopped(data, source, "join")
    os.utime(source, (1, 1))
    with pytest.raises(OutputExistsError, match="an input has changed"):
        annotate(data, source, resume=True)


def test_what_is_finished_is_left_as_it_is_by_a_resume_of_the_same_alone(data, tmp_path):
    with pytest.raises(OutputExistsError, match="no unfinished run"):
        annotate(data, scores(), resume=True)
    made = annotate(data, scores())
    before = files_of(data)
    assert annotate(data, scores(), resume=True) == made
    assert files_of(data) == before
    with pytest.raises(OutputExistsError, match="made by another plan"):
        annotate(data, scores(), resume=True, columns=("score",))


def test_rows_from_python_are_continued_with_if_they_are_the_same(data, tmp_path, monkeypatch, little_memory):
    monkeypatch.setattr("wdsplit.conversion.spool._MIN_ROWS", 20)

    stopped(data, scores(), "write")
    with pytest.raises(OutputExistsError, match="made by another plan"):
        annotate(data, scores().slice(1), resume=True)
    annotate(data, scores(), resume=True)
    assert joined(data) == expected()


def test_two_runs_of_one_annotation_exclude_each_other(data):
    def at_once(progress):
        with pytest.raises(StorageError, match="another process"):
            annotate(data, scores(), overwrite=True)
        with pytest.raises(StorageError, match="another process"):
            wdsplit.drop_annotation(data, "quality")

    wdsplit.annotate(data, write_table(data.parent / "s.parquet", scores()), "key", "quality", progress=at_once)
    assert joined(data) == expected()


def test_a_dataset_that_is_replaced_meanwhile_is_not_annotated(data, tmp_path):
    def replace(progress):
        if progress.name == "write" and progress.done:
            source = write_table(tmp_path / "in.parquet", {"id": KEYS, "cls": np.arange(NUM_ROWS) + 1})
            options = ConvertOptions(shards=SHARDS, key="id", overwrite=True)
            wdsplit.convert(source, data, options)

    with pytest.raises(InputError, match="replaced while"):
        wdsplit.annotate(data, scores(), "key", "quality", progress=replace)
    assert wdsplit.list_annotations(data) == {}


def test_annotations_outlive_a_conversion_to_the_same_shards_and_are_refused_for_others(data, tmp_path):
    source = write_table(tmp_path / "in.parquet", {"id": KEYS, "cls": np.arange(NUM_ROWS)})
    annotate(data, scores())
    wdsplit.convert(source, data, ConvertOptions(shards=SHARDS, key="id", overwrite=True))
    assert joined(data) == expected()
    wdsplit.convert(source, data, ConvertOptions(shards=SHARDS, seed=1, key="id", overwrite=True))
    assert wdsplit.list_annotations(data)["quality"].fingerprint != wdsplit.inspect(str(data), 0).fingerprint
    with pytest.raises(InputError, match=r"made for other shards(.|\n)*data --drop quality"):
        wdsplit.Dataset(data, where="score > 3")
    annotate(data, scores(), overwrite=True)
    assert joined(data) == expected()


@pytest.fixture
def stale(data, tmp_path):
    """Return the dataset with two annotations of earlier shards."""
    annotate(data, scores(), columns=["score", "word"])
    kinds = pa.table({"key": KEYS, "kind": np.arange(NUM_ROWS) % 2})
    kinds = kinds.replace_schema_metadata(with_class_names(kinds.schema, {"kind": ["cat", "dog"]}).metadata)
    annotate(data, kinds, name="kinds")
    source = write_table(tmp_path / "in.parquet", {"id": KEYS, "cls": np.arange(NUM_ROWS)})
    wdsplit.convert(source, data, ConvertOptions(shards=SHARDS, seed=1, key="id", overwrite=True))
    return data


def test_a_stale_annotation_is_refused_only_where_a_condition_names_its_columns(stale):
    assert wdsplit.make_view(str(stale), "v", where="cls < 3").stored.num_selected == 3
    assert wdsplit.Dataset(stale, exclude=[KEYS[0]]).source.num_samples_at(0) == NUM_ROWS - 1
    for name, where in (("quality", "cls < 3 and score > 3"), ("kinds", "kind == 'dog'"), ("quality", "score > 'a'")):
        with pytest.raises(InputError, match=rf"annotation '{name}' was made for other shards(.|\n)*--drop {name}"):
            wdsplit.Dataset(stale, where=where)
    with pytest.raises(InputError, match=r"no column 'scora'(.|\n)*expected: one of __key__, num_bytes, cls"):
        wdsplit.Dataset(stale, where="scora > 3")


def test_converting_anew_says_what_is_stale(stale, tmp_path):
    wdsplit.make_view(str(stale), "good", where="cls < 30")
    source = tmp_path / "in.parquet"
    arguments = ["convert", source, stale, "--key", "id", "--shards", SHARDS, "--overwrite", "--seed"]
    done = CliRunner().invoke(cli, [*map(str, arguments), "2"])
    names = "view good, annotation kinds, annotation quality"
    note = f"note: {stale}: made for the shards that were replaced: {names}; make them again, or drop them"
    assert done.exit_code == 0, done.output
    assert note in done.stderr.splitlines()
    for name in ("kinds", "quality"):
        wdsplit.drop_annotation(stale, name)
    done = CliRunner().invoke(cli, [*map(str, arguments), "1"])
    assert "note:" not in done.stderr


def test_the_columns_of_a_stale_annotation_may_be_joined_anew(stale):
    annotate(stale, scores(), name="scores")
    assert wdsplit.Dataset(stale, where="score >= 0").source.num_samples_at(0) == NUM_ROWS
    annotate(stale, pa.table({"key": KEYS, "kind": np.arange(NUM_ROWS)}), name="kinds", overwrite=True)
    assert wdsplit.Dataset(stale, where="kind == 7").source.num_samples_at(0) == 1


def test_a_damaged_annotation_blocks_no_other_column(data):
    annotate(data, scores(), columns=["score"])
    annotate(data, scores(), columns=["word"], name="words")
    (data / "annotations/words.json").unlink()
    (data / "annotations/words.json").write_bytes(b"{")
    assert wdsplit.Dataset(data, where="score > 3 and cls < 100").source.num_samples_at(0) == 78
    with pytest.raises(CorruptDataError, match=r"words.json(.|\n)*--drop words"):
        wdsplit.Dataset(data, where="word == 'a'")
    assert len(wdsplit.verify(str(data)).problems) == 1


def test_lists_show_what_is_stale_or_damaged(stale):
    annotate(stale, scores(), name="scores")
    wdsplit.make_view(str(stale), "good", where="cls < 30")
    (stale / "views/x.view").write_bytes(b"")
    (stale / "annotations/broken.json").write_bytes(b"{")
    listed = run(stale, "--list")
    assert listed.exit_code == 0, listed.output
    assert re.search(
        r"^kinds +300 +0 +kind \(int64\); made for an earlier version of the dataset$", listed.output, re.M
    )
    assert re.search(r"^broken +damaged: annotation 'broken' cannot be read$", listed.output, re.M)
    assert re.search(r"flag \(bool\)$", listed.output, re.M)
    shown = {each["name"]: each for each in json.loads(run(stale, "--list", "--json").output)}
    assert (shown["kinds"]["stale"], shown["scores"]["stale"]) == (True, False)
    assert shown["broken"]["damaged"] == "annotation 'broken' cannot be read"
    views = CliRunner().invoke(cli, ["view", str(stale), "--list"])
    assert views.exit_code == 0
    assert re.search(r"^good .*\nx +damaged: view 'x' cannot be read", views.output, re.M)
    inspected = CliRunner().invoke(cli, ["inspect", str(stale)])
    assert inspected.exit_code == 0
    assert "\nview x: damaged: view 'x' cannot be read\n" in inspected.output
    assert "\nannotation broken: damaged: annotation 'broken' cannot be read\n" in inspected.output
    assert len(wdsplit.verify(str(stale)).problems) == 4


# Checks and the command


@pytest.mark.parametrize("damage", ["changed", "lost", "commit"])
def test_verify_finds_tables_that_are_damaged_or_lost(data, damage):
    folder = annotate(data, scores()).folder
    path = data / folder / "000002.tar.parquet" if damage != "commit" else data / "annotations/quality.json"
    if damage == "lost":
        path.unlink()
    else:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    (problem,) = wdsplit.verify(str(data)).problems
    assert isinstance(problem, CorruptDataError)
    assert str(path) in problem.place
    wdsplit.drop_annotation(data, "quality")
    assert wdsplit.verify(str(data)).problems == ()


def test_the_command_annotates_lists_and_drops(data, tmp_path):
    source = write_table(tmp_path / "quality.parquet", scores().slice(2))
    done = run(data, source, "--key", "key", "--allow-missing", "--map", "größe=score", "--columns", "word, flag")
    assert done.exit_code == 0, done.output
    assert "annotation 'quality': größe (double), word (string), flag (bool)" in done.output
    assert "rows for 298 of 300 samples" in done.output
    assert "missing: 2 samples without a row" in done.output
    done = run(data, "--list")
    assert re.search(r"^quality +298 +2 +größe \(double\)", done.output, re.M)
    (listed,) = json.loads(run(data, "--list", "--json").output)
    assert (listed["name"], listed["missing"], listed["columns"][0]) == (
        "quality",
        2,
        {"name": "größe", "type": "double"},
    )
    done = run(data, source, "--key", "key", "--allow-missing", "--overwrite", "--json")
    assert json.loads(done.output)["missing"] == 2
    assert "removed annotation 'quality'" in run(data, "--drop", "quality").output
    assert "no annotations" in run(data, "--list").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected TABLE"),
        (["a.parquet"], "expected TABLE"),
        (["--key", "a"], "expected TABLE"),
        (["--list", "--drop", "a"], "--drop: not allowed with --list"),
        (["--drop", "a", "a.parquet"], "[TABLE...]: not allowed with --drop"),
        (["--drop", "a", "--key", "a"], "--key: not allowed with --drop"),
        (["a.parquet", "--key", "a", "--map", "x"], "NAME=COLUMN"),
        (["a.parquet", "--key", "a", "--columns", ""], "empty value"),
    ],
)
def test_a_command_line_that_contradicts_itself_is_refused(data, arguments, message):
    done = run(data, *arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_the_command_says_how_to_continue_when_it_is_interrupted(data, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("wdsplit.annotating.passes.write_groups", interrupt)
    source = write_table(tmp_path / "quality.parquet", scores())
    done = CliRunner().invoke(cli, ["annotate", str(data), source, "--key", "key", "--jobs", "1"])
    assert "continue with the same command and --resume" in done.output
