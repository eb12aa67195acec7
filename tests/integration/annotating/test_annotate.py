import os
import re
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import wdsplit
from commands import refused, run
from stops import die_at, killed, stopped_at
from tables import files_below, files_of, with_class_names, write_files, write_table
from wdsplit import AnnotateOptions, ConvertOptions
from wdsplit.errors import CorruptDataError, InputError, OutputExistsError, StorageError
from wdsplit.shards.annotations import ANNOTATIONS, read_annotation
from wdsplit.shards.files import read_manifest
from wdsplit.shards.sample_tables import read_samples
from wdsplit.shards.views import VIEWS
from wdsplit.storage.opening import open_storage

NUM_ROWS, SHARDS, ENOUGH = 300, 7, 2**24
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


@pytest.fixture(params=["spilled", "loaded"])
def way(request, monkeypatch, little_memory):
    """Have rows in another order than the samples spilled, or loaded into memory."""
    if request.param == "loaded":
        monkeypatch.setattr("wdsplit.annotating.passes.loadable_bytes", lambda *_: ENOUGH)
    return request.param


def scores(order=None):
    """Return a table of all keys in some order, and what belongs to each."""
    order = np.arange(NUM_ROWS) if order is None else order
    words = pa.array([f"wörd {number % 5}" for number in order]).dictionary_encode()
    flags = [None if number % 4 == 0 else bool(number % 2) for number in order]
    return pa.table({"key": [KEYS[number] for number in order], "score": order / 7, "word": words, "flag": flags})


def with_payloads(table):
    """Return a table with payloads of different sizes too, some of them null."""
    latents = [None if number % 9 == 0 else list(range(number % 40)) for number in range(len(table))]
    return table.append_column("latent", pa.array(latents, pa.list_(pa.int16())))


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


def expected(table=None):
    rows = (scores() if table is None else table).to_pylist()
    return {row.pop("key"): row for row in rows}


def sample_keys(data):
    storage = open_storage(str(data))
    shards = read_manifest(storage).shards
    return [key for n in range(len(shards)) for key in read_samples(storage, shards[n], ["__key__"])[0].to_pylist()]


# What is joined


@pytest.mark.parametrize("order", ["random", "of the samples"])
def test_each_sample_has_its_row_whatever_the_order_of_the_table(data, tmp_path, order, way):
    before, numbers, seen = files_of(data), np.arange(NUM_ROWS), set()
    numbers = np.random.default_rng(0).permutation(numbers)
    if order != "random":
        numbers = np.array([KEYS.index(wdsplit.unescape_key(key)) for key in sample_keys(data)])
    write_files(tmp_path / "scores", scores(numbers), [100, 1, 57, 0], 20)
    options = AnnotateOptions(memory=1)
    made = wdsplit.annotate(
        data, tmp_path / "scores", "key", "quality", options, lambda progress: seen.add(progress.name)
    )
    read = set() if order == "of the samples" else {"load"}
    assert seen == {"rows", "keys", "write"} | ({"join"} if way == "spilled" else read)
    assert joined(data) == expected()
    assert (made.num_samples, made.num_missing, made.num_extra, made.num_duplicates) == (NUM_ROWS, 0, 0, 0)
    after = files_of(data)
    assert before.items() <= after.items()
    tables = [name for name in after if name.startswith(f"{made.folder}/")]
    assert len(tables) == SHARDS and made.num_bytes == sum(len(after[name]) for name in tables)
    (file,) = after.keys() - before.keys() - {*tables}
    assert file == ANNOTATIONS.path("quality", made.fingerprint)


def test_jobs_and_memory_do_not_change_a_byte(data, tmp_path, monkeypatch):
    source = write_table(tmp_path / "scores.parquet", with_payloads(scores()), 20)
    found, spilled, enough, large = [], 0, ENOUGH, 1
    for jobs, threads, least, loadable, large_run in (
        (1, 4, 4096, spilled, large),
        (2, 4, 20_000, spilled, large),
        (1, 4, 2**30, spilled, large),
        (1, 4, 4096, enough, large),
        (2, 1, 4096, enough, 2**20),
    ):
        monkeypatch.setattr("wdsplit.engines.local._MAX_THREADS", threads)  # else two jobs are threads
        monkeypatch.setattr("wdsplit.engines.local._PROCESS_BYTES", 1)
        monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", least)
        monkeypatch.setattr("wdsplit.annotating.passes.loadable_bytes", lambda *_, loadable=loadable: loadable)
        monkeypatch.setattr("wdsplit.conversion.shuffle.in_memory._LARGE_RUN_BYTES", large_run)
        annotate(data, source, jobs=jobs, overwrite=bool(found))
        found.append(files_of(data / "fields"))
    assert found[1:] == found[:1] * 4


def test_keys_may_be_those_that_samples_have_and_columns_the_names_of_folders(data, tmp_path):
    keys = sample_keys(data)
    numbers = np.arange(NUM_ROWS)
    table = with_class_names(pa.table({"key": keys, "place": numbers, "kind": numbers % 2}), "kind", ["cat", "dog"])
    for number, half in enumerate((table.slice(0, 100), table.slice(100))):
        write_table(tmp_path / f"scores/part={number}/a.parquet", half)
    made = annotate(data, tmp_path / "scores")
    found = joined(data)
    assert [found[wdsplit.unescape_key(key)]["place"] for key in keys] == [*range(NUM_ROWS)]
    assert [found[wdsplit.unescape_key(key)]["part"] for key in keys] == [0] * 100 + [1] * 200
    assert made.class_names == {"kind": ("cat", "dog")}
    assert wdsplit.make_view(str(data), "dogs", where="kind == 'dog'").stored.num_selected == NUM_ROWS // 2


def test_integers_are_written_as_convert_writes_them_row_numbers_too(tmp_path):
    source = write_table(tmp_path / "in.parquet", {"number": np.arange(40)[::-1], "cls": np.arange(40)})
    wdsplit.convert(source, tmp_path / "data", ConvertOptions(shards=3, columns=("cls",)))
    annotate(tmp_path / "data", pa.table({"key": pa.array(np.arange(40), pa.int16()), "twice": 2 * np.arange(40)}))
    assert {int(name): row["twice"] for name, row in joined(tmp_path / "data").items()} == {n: 2 * n for n in range(40)}


# Keys that match nothing, or too much


def test_keys_that_do_not_match_are_counted_and_refused_or_allowed(data, tmp_path, way):
    table, before = scores(), files_of(data)
    again = table.slice(0, 5).set_column(1, "score", pa.array([-1.0] * 5))
    extra = table.slice(0, 2).set_column(0, "key", pa.array(["x y", "z"]))
    write_files(tmp_path / "s", pa.concat_tables([table.slice(4), again.slice(4), extra]), [150])
    with pytest.raises(InputError) as caught:
        annotate(data, tmp_path / "s")
    for text in (
        r"4 samples without a row: .*\(00000\d.tar\).*, \.\.\.",
        r"2 rows without a sample: 'x y' \(.*, row \d+\), 'z' \(.*, row \d+\)",
        r"1 row with the key of another row: .* and ",
        "--allow-missing --allow-extra --allow-duplicates first",
    ):
        assert re.search(text, str(caught.value))
    assert files_of(data) == before
    nothing = {**expected(table), **dict.fromkeys(KEYS[:4], dict.fromkeys(("score", "word", "flag")))}
    for use, of_last in (("first", {}), ("last", expected(again.slice(4)))):
        allowed = {"allow_missing": True, "allow_extra": True, "allow_duplicates": use, "overwrite": bool(of_last)}
        made = annotate(data, tmp_path / "s", **allowed)
        assert (made.num_missing, made.num_extra, made.num_duplicates) == (4, 2, 1)
        assert joined(data) == {**nothing, **of_last}
    assert wdsplit.make_view(str(data), "low", where="score < 1").stored.num_selected == 3
    before, empty = files_of(data / "fields"), write_table(tmp_path / "empty.parquet", table.slice(0, 0))
    with pytest.raises(InputError, match=r"300 samples without a row(.|\n)*--overwrite replaces old rows too"):
        annotate(data, empty, overwrite=True)
    assert files_of(data / "fields") == before, "one that failed to be replaced stays"
    annotate(data, empty, allow_missing=True, overwrite=True)
    assert {tuple(row.values()) for row in joined(data).values()} == {(None, None, None)}


def test_what_cannot_be_joined_is_refused_before_anything_is_written(data, tmp_path):
    with pytest.raises(InputError, match=r"no key matches: check --key; the dataset's keys look like '"):
        annotate(data, scores(), key="word", columns=("score",), allow_duplicates="first")
    with pytest.raises(InputError, match="if a Dataset gave the rows, leave out samples with __pad__"):
        annotate(data, pa.concat_tables([scores(), scores().slice(0, 1)]))
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(InputError, match="images and audio cannot be joined"):
        annotate(data, tmp_path / "images")
    wdsplit.convert(tmp_path / "images", tmp_path / "numbered")
    with pytest.raises(InputError, match="look like '00000000'; to join by file names, convert with --key file_name"):
        annotate(tmp_path / "numbered", pa.table({"key": ["a.jpg"], "caption": ["a cat"]}))
    assert not (data / "fields").exists()


def test_a_key_that_no_sample_can_have_is_refused_with_its_place(data, tmp_path):
    for key, message in ((None, "is null"), ("", "is empty"), ("k" * 2000, "is too long")):
        source = write_table(tmp_path / "s.parquet", scores().set_column(0, "key", pa.array([*KEYS[:-1], key])))
        with pytest.raises(InputError, match=rf"{message}(.|\n)*s\.parquet, row 299, column 'key'(.|\n)*such rows"):
            annotate(data, source)
    assert not (data / "fields").exists()


# Replaced, dropped, continued


def test_no_other_run_of_one_annotation_and_no_other_dataset_may_be_there(data, tmp_path):
    source = write_table(tmp_path / "s.parquet", scores())

    def at_once(progress):
        with pytest.raises(StorageError, match="another process"):
            annotate(data, scores(), overwrite=True)
        with pytest.raises(StorageError, match="another process"):
            wdsplit.drop_annotation(data, "quality")
        if progress.name == "write" and progress.done:
            convert_anew(data, tmp_path, first=1)

    with pytest.raises(InputError, match="replaced while"):
        wdsplit.annotate(data, source, "key", "quality", progress=at_once)
    assert wdsplit.list_annotations(data) == {}


def test_one_that_is_there_is_kept_replaced_or_dropped_as_one_says(data, tmp_path):
    before = files_of(data)
    for source, name, message in (
        (scores(), "", "has no name"),
        (write_table(tmp_path / "my scores.parquet", scores()), "", "invalid annotation name"),
        (scores(), "../up", "invalid annotation name"),
    ):
        with pytest.raises(InputError, match=message):
            wdsplit.annotate(data, source, "key", name)
    with pytest.raises(OutputExistsError, match="no unfinished run"):
        annotate(data, scores(), resume=True)
    made = annotate(data, (row for row in scores().to_pylist()))  # from Python
    assert joined(data) == expected()
    files = files_of(data)
    assert {re.split("[@/]", name)[0] for name in files_below(data / "fields")} == {"quality", made.folder[7:]}
    for kept, message in (({}, "already has an annotation 'quality'"), ({"name": "Quality"}, "except for case")):
        with pytest.raises(OutputExistsError, match=message):
            annotate(data, scores(), **kept)
    source = write_table(tmp_path / "s.parquet", scores())
    made = annotate(data, source, overwrite=True)
    files = files_of(data)
    assert annotate(data, source, resume=True) == made and files_of(data) == files
    with pytest.raises(OutputExistsError, match="made by another plan"):
        annotate(data, source, resume=True, columns=("score",))
    (data / made.folder / "000003.tar.parquet").write_bytes(b"damaged")
    annotate(data, source, overwrite=True)
    assert files_of(data) == files, "one that is replaced by the same is written anew"
    table = pa.table({"key": KEYS, "score": np.zeros(NUM_ROWS)})
    annotate(data, pyarrow.csv.write_csv(table, tmp_path / "s.csv") or tmp_path / "s.csv", overwrite=True)
    assert {row["score"] for row in joined(data).values()} == {0} and len(list(data.glob("fields/*"))) == 2
    annotate(data, scores(), name="other", mapping={"score2": "score"})
    wdsplit.drop_annotation(data, "quality")
    assert list(wdsplit.list_annotations(data)) == ["other"]
    with pytest.raises(InputError, match="there is no annotation 'quality'"):
        wdsplit.drop_annotation(data, "quality")
    wdsplit.drop_annotation(data, "other")
    assert files_of(data) == before


def stopped(data, source, name):
    """Stop a run in one of its passes."""
    with stopped_at(name) as stop:
        wdsplit.annotate(data, source, "key", "quality", AnnotateOptions(memory=1), stop)


def convert_anew(data, folder, first=0, **changes):
    """Convert the table of the dataset again, into its place."""
    source = write_table(folder / "in.parquet", {"id": KEYS, "cls": np.arange(NUM_ROWS) + first})
    wdsplit.convert(source, data, ConvertOptions(shards=SHARDS, key="id", overwrite=True, **changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "done", "loads"),
    [("rows", 1, False), ("join", 1, False), ("write", None, False), ("load", 1, True), ("write", 1, True)],
)
def test_a_run_that_is_killed_leaves_the_dataset_as_it_was_and_is_continued(
    data, tmp_path, monkeypatch, name, done, loads, little_memory
):
    """One that had loaded all rows loads them again, or spills them where it has less memory."""
    source = write_table(tmp_path / "s.parquet", with_payloads(scores()), 20)
    renamed = {f"{name}2": name for name in ("score", "word", "flag")}
    whole = annotate(data, source, name="whole", mapping=renamed, columns=("latent",))
    given = data, source, "key", "quality", AnnotateOptions(memory=1), partial(die_at, name, done)
    little = {"wdsplit.conversion.shuffle.needs._LEAST_BYTES": 4096}
    enough = {"wdsplit.annotating.passes.loadable_bytes": partial(max, ENOUGH)} if loads else {}
    killed(partial(wdsplit.annotate, *given), little | enough)
    assert list(wdsplit.list_annotations(data)) == ["whole"]
    assert wdsplit.verify(str(data)).problems == ()
    with pytest.raises(OutputExistsError, match=r"unfinished(.|\n)*--resume(.|\n)*--overwrite"):
        annotate(data, source)
    seen, options = [], AnnotateOptions(memory=1, resume=True)
    if name == "load":
        monkeypatch.setattr("wdsplit.annotating.passes.loadable_bytes", lambda *_: ENOUGH)
    wdsplit.annotate(data, source, "key", "quality", options, seen.append)
    assert any(progress.skipped for progress in seen) == (name != "load")
    assert joined(data) == expected()
    made = wdsplit.list_annotations(data)["quality"]
    tars, others = (
        {name: content for name, content in files_of(data / each.folder).items() if name.endswith((".tar", ".places"))}
        for each in (made, whole)
    )
    assert tars == others and len(tars) == 2 * SHARDS
    assert len(list(data.glob("fields/*"))) == 4
    assert not [name for name in files_below(data) if "tmp" in name]


def test_a_run_that_was_stopped_is_continued_with_the_same_alone_replaced_or_dropped(data, tmp_path, little_memory):
    before = files_of(data)
    source = write_table(tmp_path / "s.parquet", scores(), 20)
    stopped(data, source, "write")
    wdsplit.drop_annotation(data, "quality")
    assert files_of(data) == before
    stopped(data, source, "join")
    os.utime(source, (1, 1))
    with pytest.raises(OutputExistsError, match="an input has changed"):
        annotate(data, source, resume=True)
    other = write_table(tmp_path / "t.parquet", scores().set_column(1, "score", pa.array(np.ones(NUM_ROWS))))
    for options in ({"resume": True}, {"resume": True, "columns": ("score",)}):
        with pytest.raises(OutputExistsError, match="made by another plan"):
            annotate(data, other, **options)
    annotate(data, other, overwrite=True)
    assert {row["score"] for row in joined(data).values()} == {1.0}
    assert len(list(data.glob("fields/*"))) == 2


@pytest.fixture
def stale(data, tmp_path):
    """Return the dataset with two annotations of earlier shards."""
    annotate(data, scores(), columns=["score", "word"])
    kinds = pa.table({"key": KEYS, "kind": np.arange(NUM_ROWS) % 2})
    annotate(data, with_class_names(kinds, "kind", ["cat", "dog"]), name="kinds")
    convert_anew(data, tmp_path, seed=1)
    return data


def num_samples(data, where):
    return wdsplit.Dataset(data, where=where).source.num_samples_at(0)


def test_a_stale_or_damaged_annotation_is_refused_only_where_a_condition_names_its_columns(stale):
    assert wdsplit.make_view(str(stale), "v", where="cls < 3").stored.num_selected == 3
    assert wdsplit.Dataset(stale, exclude=[KEYS[0]]).source.num_samples_at(0) == NUM_ROWS - 1
    for name, where in (("quality", "cls < 3 and score > 3"), ("kinds", "kind == 'dog'"), ("quality", "score > 'a'")):
        with pytest.raises(InputError, match=rf"annotation '{name}' was made for other shards(.|\n)*--drop {name}"):
            wdsplit.Dataset(stale, where=where)
    with pytest.raises(InputError, match=r"no column 'scora'(.|\n)*expected: one of __key__, num_bytes, cls"):
        wdsplit.Dataset(stale, where="scora > 3")
    annotate(stale, scores(), name="scores")  # columns of stale ones may be joined anew
    assert num_samples(stale, "score >= 0") == NUM_ROWS
    annotate(stale, pa.table({"key": KEYS, "kind": np.arange(NUM_ROWS)}), name="kinds", overwrite=True)
    assert num_samples(stale, "kind == 7") == 1
    fingerprint = wdsplit.list_annotations(stale)["kinds"].fingerprint
    (stale / ANNOTATIONS.path("kinds", fingerprint)).write_bytes(b"{")
    assert num_samples(stale, "score > 3 and cls < 100") == 78
    with pytest.raises(CorruptDataError, match=r"kinds@(.|\n)*--drop kinds"):
        wdsplit.Dataset(stale, where="kind == 7")


def test_inspect_shows_what_is_stale_or_damaged_and_a_conversion_what_it_makes_stale(stale, tmp_path):
    annotate(stale, scores(), name="scores")
    wdsplit.make_view(str(stale), "good", where="cls < 30")
    (stale / VIEWS.path("x", "0" * 16)).write_bytes(b"")
    (stale / ANNOTATIONS.path("broken", "0" * 16)).write_bytes(b"{")
    broken = "damaged: annotation 'broken' cannot be read"
    shown = run("inspect", stale, "--samples", 0)
    assert shown.code == 0, shown.err
    for pattern in (
        r"^annotation kinds: kind \(int64\); made for an earlier version of the dataset$",
        r"^annotation scores: .*flag \(bool\)$",
        "^view good: .* of the samples: --where",
        "^view x: damaged: view 'x' cannot be read$",
        f"^annotation broken: {broken}$",
    ):
        assert re.search(pattern, shown.out, re.M), pattern
    assert len(wdsplit.verify(str(stale)).problems) == 4
    anew = ("--key", "id", "--shards", SHARDS, "--overwrite", "--seed", 2)
    names = "view good, annotation kinds, annotation quality, annotation scores"
    note = f"note: {stale}: made for the shards that were replaced: {names}; make them again, or drop them"
    assert note in run("convert", tmp_path / "in.parquet", stale, *anew).err.splitlines()


# Checks and the command


@pytest.mark.parametrize("damage", ["changed", "lost", "commit"])
def test_verify_finds_tables_that_are_damaged_or_lost(data, damage):
    made = annotate(data, scores())
    path = data / f"{made.folder}/000002.tar.parquet"
    if damage == "commit":
        path = data / ANNOTATIONS.path("quality", made.fingerprint)
    content = path.read_bytes()
    path.unlink()
    if damage != "lost":
        path.write_bytes(content[: len(content) // 2])
    (problem,) = wdsplit.verify(str(data)).problems
    assert isinstance(problem, CorruptDataError)
    assert str(path) in problem.place
    wdsplit.drop_annotation(data, "quality")
    assert wdsplit.verify(str(data)).problems == ()


def test_the_command_annotates_and_drops(data, tmp_path, monkeypatch):
    source = write_table(tmp_path / "quality.parquet", scores().slice(2))
    command = ("annotate", data, source, "--key", "key", "--allow-missing", "--map", "größe=score")
    ended = run(*command, "--columns", "word, flag")
    assert ended.code == 0, ended.err
    for text in (
        "annotation 'quality': größe (double), word (string), flag (bool)",
        "rows for 298 of 300 samples",
        "missing: 2 samples without a row",
    ):
        assert text in ended.out
    inspected = run("inspect", data, "--samples", 0).out
    assert re.search(r"^annotation quality: größe \(double\).*, 2 missing$", inspected, re.M)
    made = run(*command, "--overwrite", "--json").json
    assert (made["name"], made["missing"]) == ("quality", 2)
    assert made["columns"][0] == {"name": "größe", "type": "double"}
    assert "removed annotation 'quality'" in run("annotate", data, "--drop", "quality").out
    assert wdsplit.list_annotations(data) == {}
    for arguments, message in (
        (["a.parquet"], "expected TABLE"),
        (["--key", "a"], "expected TABLE"),
        (["--drop", "a", "a.parquet"], "[TABLE...]: not allowed with --drop"),
        (["a.parquet", "--key", "a", "--map", "x"], "NAME=COLUMN"),
        (["a.parquet", "--key", "a", "--columns", ""], "empty value"),
    ):
        assert message in refused(2, "annotate", data, *arguments)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("wdsplit.annotating.writing.write_groups", interrupt)
    assert "continue with the same command and --resume" in run(*command, "--jobs", 1).err
