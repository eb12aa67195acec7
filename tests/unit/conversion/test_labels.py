import json

import pandas
import pyarrow as pa
import pytest

from tables import all_samples, converted, labels, options, planned, write_files, write_table
from wdsplit import Dataset
from wdsplit.conversion.convert import convert_splits
from wdsplit.errors import InputError
from written_formats import write_as

CLASSES = ("bird", "cat", "dog")
KINDS = [CLASSES[row * 7 % 3] for row in range(60)]


def table_of(labels=KINDS, name="label", **more):
    return pa.table({name: labels, "height": range(400, 400 + len(labels)), **more})


def label_of(table, path, **changes):
    """Return the label of a table in a parquet file, and the class names of the fields."""
    plan = planned([write_table(path / "in.parquet", table)], options(**changes))
    return plan.label, {field.name: field.names for field in plan.fields if field.names}


SOURCES = {
    "parquet": lambda folder: write_table(folder / "in.parquet", table_of()),
    "csv": lambda folder: write_as(folder, "é a.csv", table_of()),
    "frame": lambda folder: table_of().to_pandas(),
    "categories": lambda folder: table_of().to_pandas().astype({"label": pandas.CategoricalDtype(CLASSES)}),
    "rows": lambda folder: table_of().to_pylist(),
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in SOURCES), ("csv", {"mapping": {"cls": "label"}}), ("rows", {"classes": "label"})],
    ids=str,
)
def test_texts_of_the_label_are_numbers_with_names_from_every_input(name, changes, tmp_path):
    manifest = converted(SOURCES[name](tmp_path), tmp_path / "out", shards=2, **changes)
    assert [CLASSES[number] for number in labels(tmp_path / "out")] == KINDS
    assert Dataset(str(tmp_path / "out")).classes == CLASSES
    assert manifest.provenance["label"] == "label"
    written = {field.name: field.column for field in manifest.fields}
    assert written == {"cls": "label"} | ({} if "mapping" in changes else {"height.json": "height"})


@pytest.mark.parametrize("name", ["label", "Labels", "CLASS", "target", "category", "cls"])
def test_a_column_with_a_usual_name_is_the_label(name, tmp_path):
    more = {"source": ["a", "b"] * 30}
    label, names = label_of(table_of(name=name, **more), tmp_path)
    assert (label, names) == (name, {"cls": CLASSES})
    numbers, names = label_of(table_of(range(60), name, **more), tmp_path)
    assert (numbers, names) == (name, {})


def test_a_class_label_is_the_label_unless_an_option_names_another(tmp_path):
    features = {"info": {"features": {"kind": {"_type": "ClassLabel", "names": ["no", "yes"]}}}}
    table = table_of([0, 1] * 30, "kind", source=["a", "b"] * 30)
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    assert label_of(table, tmp_path) == ("kind", {"cls": ("no", "yes")})
    label, names = label_of(table, tmp_path, classes="source")
    assert (label, names) == ("source", {"kind.cls": ("no", "yes"), "cls": ("a", "b")})
    manifest = converted(table, tmp_path / "out", shards=1, classes="source")
    assert (len(manifest.class_names), Dataset(str(tmp_path / "out")).classes) == (2, ("a", "b"))


def test_several_candidates_are_refused_and_an_option_chooses(tmp_path):
    table = table_of(category=["x", "y"] * 30)
    with pytest.raises(InputError, match="several columns could be the label") as caught:
        label_of(table, tmp_path)
    assert caught.value.found == "'label' (string), 'category' (string)"
    assert "--classes label or --classes category" in caught.value.remedy
    assert label_of(table, tmp_path, classes="category") == ("category", {"cls": ("x", "y")})
    assert label_of(table, tmp_path, columns=("label", "height")) == ("label", {"cls": CLASSES})


def test_only_the_label_is_cls_and_it_may_be_written_as_a_text_too(tmp_path):
    table = pa.table({"n": [1, 2], "clip": [0.5, 0.25], "ok": [True, False], "about": [{"a": 1}, {"a": 2}]})
    converted(write_table(tmp_path / "in.parquet", table), tmp_path / "out", shards=1)
    ((_, fields), _) = all_samples(tmp_path / "out")
    assert fields == {"n.json": b"1", "clip.json": b"0.5", "ok.json": b"true", "json": b'{"a":1}'}
    converted(table_of(["b", "a"]), tmp_path / "both", shards=1, classes="label", mapping={"kind.txt": "label"})
    found = [fields for _, fields in all_samples(tmp_path / "both")]
    assert found == [{"kind.txt": b"b", "cls": b"1"}, {"kind.txt": b"a", "cls": b"0"}]


def test_classes_are_those_of_all_files_whatever_the_jobs_and_the_split(tmp_path):
    write_files(tmp_path / "in", table_of(sorted(KINDS)), [20], rows_per_group=7)
    converted(str(tmp_path / "in"), tmp_path / "out", shards=4, jobs=2, shuffle=True)
    assert Dataset(str(tmp_path / "out")).classes == CLASSES
    splits = {"few": 0.05, "rest": 0.95}
    both = convert_splits(str(tmp_path / "in"), str(tmp_path / "splits"), options(shards=1, splits=splits))
    assert {split.class_names["cls"] for split in both.values()} == {CLASSES}
    where = converted(str(tmp_path / "in"), tmp_path / "two", shards=1, where="label != 'cat'")
    assert where.class_names == {"cls": ("bird", "dog")}


def test_one_dictionary_gives_the_order_and_several_are_sorted(tmp_path):
    kinds = pandas.Categorical(["m", "s"] * 10, categories=["s", "m", "xl"])
    pandas.DataFrame({"label": kinds}).to_parquet(tmp_path / "a.parquet", row_group_size=6)
    paths = [str(tmp_path / "a.parquet")]
    assert planned(paths, options()).fields[0].names == ("s", "m", "xl")
    paths.append(write_table(tmp_path / "b.parquet", {"label": pa.array(["a", "s"]).dictionary_encode()}))
    assert planned(paths, options()).fields[0].names == ("a", "m", "s")
    for texts, names in ((["10", "9", "2"], ("2", "9", "10")), (["10", "9", "x"], ("10", "9", "x"))):
        assert label_of(table_of(texts), tmp_path)[1] == {"cls": names}


def test_a_text_of_many_or_long_values_is_the_label_only_if_an_option_says_so(tmp_path, caplog, monkeypatch):
    many, long = (table_of(texts, "target") for texts in ([f"{row % 31}" for row in range(60)], ["a", "b" * 1025] * 30))
    for table in (many, long):
        caplog.clear()
        assert label_of(table, tmp_path) == (None, {})
        assert any("--classes target" in line for line in caplog.messages)
    assert label_of(many, tmp_path, classes="target")[0] == "target"
    for changes in ({"classes": "target"}, {"mapping": {"cls": "target"}}):
        with pytest.raises(InputError, match="column 'target' cannot be the label"):
            label_of(long, tmp_path, **changes)
    monkeypatch.setattr("wdsplit.conversion.labels.classes_of_texts.__defaults__", (2,))
    with pytest.raises(InputError, match="column 'target' cannot be the label"):
        label_of(many, tmp_path, classes="target")


def test_columns_that_cannot_be_the_label_are_refused(tmp_path):
    with pytest.raises(InputError, match="column 'x' cannot be the label") as caught:
        label_of(table_of(x=[0.5] * 60), tmp_path, classes="x")
    assert caught.value.found == "double"
    with pytest.raises(InputError) as caught:
        label_of(table_of(), tmp_path, classes="lable")
    assert caught.value.remedy == "did you mean 'label'?"
    with pytest.raises(InputError, match="invalid options"):
        options(classes="a", mapping={"cls": "b"})


def test_a_null_label_is_an_error_by_its_row_or_has_no_number(tmp_path):
    path = write_table(tmp_path / "in.parquet", table_of(["b", None, "a"]))
    with pytest.raises(InputError, match="a value is null") as caught:
        converted(path, tmp_path / "out", shards=1)
    assert caught.value.place.endswith("in.parquet, row 1, column 'label'")
    converted(path, tmp_path / "out", shards=1, null="omit")
    assert [fields.get("cls") for _, fields in all_samples(tmp_path / "out")] == [b"1", None, b"0"]
