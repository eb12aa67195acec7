"""What a folder of media files is as a table: which files, in which order, of which classes, with which metadata."""

import json
import os

import pyarrow as pa
import pytest

from media_files import listed, names_of, write_files
from tables import options, planned, write_table
from wdsplit.errors import InputError
from wdsplit.fields.infer import MEDIA_SUFFIXES, class_names
from wdsplit.tables.media import class_counts
from wdsplit.tables.read import read_rows


def rows_of(table, *names):
    parts = [pa.table(dict(rows.columns)) for rows in read_rows(table, 0, table.num_rows, names)]
    return [tuple(row.values()) for part in parts for row in part.to_pylist()]


def test_classes_and_rows_are_in_the_order_of_torchvision(tmp_path):
    """Its ImageFolder sorts the folders by name, and the files of each."""
    names = "b c/2.JPG", "b c/10.jpg", "b/1.Png", "b/sub/0.jpg", "Z/1.jpeg", "é/1.jpg", "b-c/deep/er/1.JPEG"
    root = write_files(tmp_path, *names)
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    files = [
        (os.path.relpath(os.path.join(folder, name), root), number)
        for number, one in enumerate(classes)
        for folder, _, names in sorted(os.walk(os.path.join(root, one)))
        for name in sorted(names)
    ]
    table = listed(root)
    assert list(class_names(table.schema)["label"]) == classes
    assert rows_of(table, "file_name", "label", "stem") == [(*file, file[0].rpartition(".")[0]) for file in files]
    assert class_counts(table) == {name: 2 if name in ("b", "b c") else 1 for name in classes}


def test_every_kind_goes_to_its_column_and_field(tmp_path):
    for suffix, (kind, field) in MEDIA_SUFFIXES.items():
        plan = planned([write_files(tmp_path / suffix, f"a/1{suffix.upper()}", f"b/2{suffix}")], options())
        assert [(one.name, one.column) for one in plan.fields] == [(field, kind), ("cls", "label")]


@pytest.mark.parametrize("names", [["1.jpg", "2.jpg"], ["images/1.jpg", "images/2.jpg"], ["1.jpg", "more/2.jpg"]])
def test_a_folder_without_class_folders_has_no_classes(names, tmp_path):
    table = listed(write_files(tmp_path, *names))
    assert names_of(table) == names
    assert "label" not in table.schema.names and class_counts(table) == {}


def test_folders_with_other_files_only_are_no_classes_but_empty_ones_are(tmp_path):
    root = write_files(tmp_path, "cat/1.jpg", "dog/1.jpg", "labels/1.xml", "cat/sub/x.txt")
    (tmp_path / "bird").mkdir()
    table = listed(root)
    assert class_names(table.schema) == {"label": ("bird", "cat", "dog")}
    assert class_counts(table) == {"bird": 0, "cat": 1, "dog": 1}
    assert f"{root}: classes without files, which keep their numbers: bird" in table.notes


@pytest.mark.parametrize(
    ("names", "inputs", "cause", "found"),
    [
        ("cat/1.jpg dog/1.jpg stray.jpg", "", "not in a class folder", "1 files beside 2 folders"),
        ("train/dog/1.jpg val/dog/1.jpg", "", "splits, not classes", "train, val"),
        ("1.jpg 2.wav 3.png", "", "several kinds of media", "2 image files, such as 1.jpg; 1 audio file"),
        ("1.jpg 2.wav", "*", "several kinds of media", "1 audio file, such as 2.wav"),
        ("a/1.jpg a/2.jpg z.parquet", "", "tables and media files", "1 table, such as z.parquet; 2 image files"),
        ("a/1.jpg z.parquet", "z.parquet a", "mix tables and media files", "1 table, such as"),
        ("x/b/1.jpg x/c/1.jpg y/1.jpg", "x y", "differ in their contents", "without classes"),
        ("a/1.jpg b/2.jpg", "/ a", "inside another", ""),
        ("a/1.jpg b/2.jpg", "a/1.jpg /", "inside another", ""),
        (os.fsdecode(b"\xff.jpg"), "", "not UTF-8", ""),
    ],
)
def test_what_is_ambiguous_or_has_no_text_as_a_name_is_refused(names, inputs, cause, found, tmp_path):
    root = str(tmp_path)
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match=cause) as caught:
        listed(*(f"{root}/{each}" for each in inputs.split(" ")))
    assert found in caught.value.found


def test_classes_that_are_deeper_are_hinted_at(tmp_path):
    root = write_files(tmp_path, "animals/cat/1.jpg", "animals/dog/old/2.jpg")
    assert listed(root).notes == (
        f"{root}: no classes, as all files are below one folder: did you mean {root}/animals?",
    )
    assert listed(write_files(tmp_path / "one", "cat/1.jpg", "cat/2.jpg")).notes == ()


def test_a_pattern_of_folders_loses_no_classes(tmp_path):
    """The folders that it matches may be the classes: their names must not be lost without a word."""
    root = write_files(tmp_path, "animals/cat/1.jpg", "animals/dog/2.jpg", "vehicles/car/2.jpg", "vehicles/cat/3.jpg")
    for pattern in ("*/*", "*/{cat,car}"):
        with pytest.raises(InputError, match="none of which has folders of classes"):
            listed(f"{root}/{pattern}")
    assert class_names(listed(f"{root}/*").schema) == {"label": ("car", "cat", "dog")}
    plan = planned([f"{root}/*/*/*.jpg"], options(columns=("image",)))  # what the error says to write
    assert [one.name for one in plan.fields] == ["jpg"]


def test_what_is_left_out_is_counted_and_named_in_the_plan(tmp_path, caplog):
    root = write_files(tmp_path, "a/1.jpg", "b/2.jpg", "notes.txt", "a/Thumbs.db", "a/._1.jpg", ".git/x.jpg")
    (tmp_path / "b" / "empty.jpg").touch()
    (tmp_path / "b" / "gone.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "b" / "link.jpg").symlink_to("2.jpg")
    (tmp_path / "a" / "cycle").symlink_to(root)
    os.mkfifo(tmp_path / "b" / "pipe.jpg")
    plan = planned([root], options())
    assert names_of(plan.table) == ["a/1.jpg", "b/2.jpg", "b/link.jpg"]
    assert "skipping a link to a folder that is already included" in caplog.text
    assert plan.summary()["notes"] == [
        f"{root}: left out: 1 empty, such as b/empty.jpg; 2 hidden, such as .git; "
        "2 not files, or broken links, such as b/gone.jpg; 2 of other kinds, such as notes.txt"
    ]


def test_most_files_decide_the_field_and_the_others_are_counted(tmp_path):
    root = write_files(tmp_path / "1", "1.png", "2.jpg", "3.JPEG")
    for name in ("a.png", "b.png", "c.png", "d.wav"):
        (tmp_path / "1" / name).touch()
    plan = planned([root], options())
    assert [one.name for one in plan.fields] == ["jpg"]
    assert plan.table.notes[-1] == "files of other formats are written to the field 'jpg', too: 1 png"
    write_files(tmp_path / "2", "4.png", "5.gif")
    more = planned([f"{tmp_path}/?/*.*"], options())
    assert more.fields[0].name == "jpg"
    assert more.table.notes[-1] == "files of other formats are written to the field 'jpg', too: 2 png, 1 gif"


@pytest.mark.parametrize("pattern", ["*/*.jpg", "**/*.jpg", "{a,b}/*.jpg", "a/1.jpg {root}/b/*.jpg"])
def test_files_of_a_pattern_have_the_classes_below_their_common_folder(pattern, tmp_path):
    root = write_files(tmp_path / "photos", "a/1.jpg", "b/2.jpg", "b/3.png", "b/4.JPG")
    inputs = [f"{root}/{part}".replace(f"{root}/{{root}}", root) for part in pattern.split(" ")]
    table = listed(*inputs)
    assert rows_of(table, "file_name", "label") == [("a/1.jpg", 0), ("b/2.jpg", 1)]
    assert table.files[0].path == root


@pytest.mark.parametrize(("function", "place"), [("stat", "b/2.jpg"), ("scandir", "b")])
def test_what_cannot_be_read_is_an_error(tmp_path, monkeypatch, function, place):
    root, asked = write_files(tmp_path, "a/1.jpg", "b/2.jpg"), getattr(os, function)

    def refusing(path=".", **keywords):
        if str(path).endswith(place):
            raise PermissionError(13, "Permission denied", path)
        return asked(path, **keywords)

    with monkeypatch.context() as patched, pytest.raises(InputError, match="cannot be read") as caught:
        patched.setattr(os, function, refusing)
        listed(root)
    assert (caught.value.place, caught.value.found) == (f"{root}/{place}", "Permission denied")


def test_files_of_the_working_folder_and_several_folders_are_inputs(tmp_path, monkeypatch):
    root = write_files(tmp_path / "x", "1.jpg", "2.jpg")
    assert names_of(listed(f"{root}/1.jpg")) == ["1.jpg"]
    monkeypatch.chdir(root)
    assert names_of(listed("1.jpg", "2.jpg")) == names_of(listed(".")) == ["1.jpg", "2.jpg"]
    table = listed(write_files(tmp_path / "y", "b/1.jpg", "c/1.jpg"), write_files(tmp_path / "z", "a/1.jpg", "c/2.jpg"))
    assert class_names(table.schema) == {"label": ("a", "b", "c")}
    assert rows_of(table, "label") == [(1,), (2,), (0,), (2,)]


def test_a_plan_knows_a_folder_again_by_its_names_sizes_and_classes(tmp_path):
    def hash_of(folder):
        return planned([str(folder)], options()).hash

    first = hash_of(write_files(tmp_path / "1" / "set", "a/1.jpg", "b/2.jpg"))
    assert hash_of(write_files(tmp_path / "2" / "set", "b/2.jpg", "a/1.jpg")) == first
    assert hash_of(write_files(tmp_path / "3" / "set", "a/1.jpg", "b/3.jpg")) != first
    (tmp_path / "2" / "set" / "c").mkdir()
    assert hash_of(tmp_path / "2" / "set") != first
    with open(tmp_path / "1" / "set" / "a" / "1.jpg", "ab") as file:
        file.write(b"more")
    assert hash_of(tmp_path / "1" / "set") != first


# What metadata.csv and its like add to the rows of media files

ROWS = [{"file_name": "b/2.jpg", "text": "two", "score": 2}, {"file_name": "./a/1.jpg", "text": "one, é", "score": 1}]


def write_metadata(folder, name, rows):
    if name.endswith(".csv"):
        lines = [",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    elif name.endswith(".jsonl"):
        (folder / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        write_table(folder / name, pa.Table.from_pylist(rows))


@pytest.fixture
def root(tmp_path):
    return write_files(tmp_path / "photos", "a/1.jpg", "b/2.jpg")


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_its_columns_are_columns_of_the_files_that_it_names(name, root, tmp_path):
    write_metadata(tmp_path / "photos", name, ROWS)
    found = rows_of(listed(root), "file_name", "text", "score", "label")
    assert found == [("a/1.jpg", "one, é", 1, 0), ("b/2.jpg", "two", 2, 1)]
    plan = planned([root], options())
    fields = {one.name: one.column for one in plan.fields}
    assert fields == {"jpg": "image", "cls": "label", "txt": "text", "score.json": "score"}
    write_metadata(tmp_path / "photos", name, [row | {"score": 7} for row in ROWS])
    assert planned([root], options()).hash != plan.hash
    (tmp_path / "photos" / "a" / "1.jpg").write_bytes(b"")  # empty files are left out with their rows
    assert rows_of(listed(root), "text") == [("two",)]


def test_metadata_may_be_in_several_folders_and_replace_their_classes(root, tmp_path):
    write_metadata(tmp_path / "photos" / "a", "metadata.csv", [{"file_name": "1.jpg", "text": "one"}])
    write_metadata(tmp_path / "photos" / "b", "metadata.jsonl", [{"file_name": "2.jpg", "text": "two"}])
    assert rows_of(listed(root), "text") == [("one",), ("two",)]
    for name in ("a/metadata.csv", "b/metadata.jsonl"):
        (tmp_path / "photos" / name).unlink()
    write_metadata(tmp_path / "photos", "metadata.jsonl", [row | {"label": "x"} for row in ROWS])
    table = listed(root)
    assert rows_of(table, "label") == [("x",), ("x",)]
    assert list(table.notes) == [f"{root}: the column 'label' of the metadata replaces the classes of 2 folders"]
    write_files(root, "3.jpg")  # which may be beside the folders then
    write_metadata(tmp_path / "photos", "metadata.jsonl", [*ROWS, {"file_name": "3.jpg", "text": "three", "score": 3}])
    assert names_of(listed(root)) == ["3.jpg", "a/1.jpg", "b/2.jpg"]
    assert "label" not in listed(root).schema.names


@pytest.mark.parametrize(
    ("rows", "cause", "found"),
    [
        ([{"filename": "a/1.jpg", "text": "one"}], "no column 'file_name'", "filename"),
        ([row | {"image": 1} for row in ROWS], "reserved or duplicate name: 'image'", ""),
        (
            [ROWS[0], ROWS[0], {**ROWS[1], "file_name": "a/9.jpg"}],
            "do not match",
            "1 files in no row: a/1.jpg; 1 rows of no file: a/9.jpg; 1 files in several rows: b/2.jpg",
        ),
    ],
)
def test_metadata_that_does_not_belong_to_the_files_is_refused(root, tmp_path, rows, cause, found):
    write_metadata(tmp_path / "photos", "metadata.csv", rows)
    with pytest.raises(InputError, match=cause) as caught:
        listed(root)
    assert found in str(caught.value)
