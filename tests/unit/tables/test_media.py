"""What a folder of media files is as a table: which files, in which order, of which classes."""

import os

import pytest

from media_files import listed, names_of, write_files
from tables import options, planned, write_table
from wdsplit.errors import InputError
from wdsplit.fields.infer import MEDIA_SUFFIXES, class_names
from wdsplit.tables.find import find_inputs
from wdsplit.tables.media import class_counts, open_media
from wdsplit.tables.read import read_rows


def column(table, name):
    return [value for rows in read_rows(table, 0, table.num_rows, [name]) for value in rows.columns[name].to_pylist()]


def test_files_are_found_in_any_case_and_sorted_with_their_classes(tmp_path):
    root = write_files(tmp_path, "dog/b.JPG", "dog/a.jpeg", "cat/x.Png", "ant/deep/er/y.JPEG")
    table = listed(root)
    assert names_of(table) == ["ant/deep/er/y.JPEG", "cat/x.Png", "dog/a.jpeg", "dog/b.JPG"]
    assert class_names(table.schema) == {"label": ("ant", "cat", "dog")}
    assert column(table, "label") == [0, 1, 2, 2]
    assert column(table, "stem") == ["ant/deep/er/y", "cat/x", "dog/a", "dog/b"]
    assert class_counts(table) == {"ant": 1, "cat": 1, "dog": 2}


def test_classes_and_rows_are_in_the_order_of_torchvision(tmp_path):
    """Its ImageFolder sorts the folders by name, and the files of each."""
    root = write_files(tmp_path, "b c/2.jpg", "b c/10.jpg", "b/1.jpg", "b/sub/0.jpg", "Z/1.jpg", "é/1.jpg", "b-c/1.jpg")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    files = [
        (os.path.join(folder, name), number)
        for number, one in enumerate(classes)
        for folder, _, names in sorted(os.walk(os.path.join(root, one)))
        for name in sorted(names)
    ]
    table = listed(root)
    assert list(class_names(table.schema)["label"]) == classes
    assert list(zip([f"{root}/{name}" for name in names_of(table)], column(table, "label"), strict=True)) == files


@pytest.mark.parametrize("suffix", MEDIA_SUFFIXES)
def test_every_kind_goes_to_its_column_and_field(suffix, tmp_path):
    kind, field = MEDIA_SUFFIXES[suffix]
    plan = planned([write_files(tmp_path, f"a/1{suffix.upper()}", f"b/2{suffix}")], options())
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
    ],
)
def test_what_is_ambiguous_is_refused(names, inputs, cause, found, tmp_path):
    root = write_files(tmp_path, *names.split())
    with pytest.raises(InputError, match=cause) as caught:
        listed(*(f"{root}/{each}" for each in inputs.split(" ")))
    assert found in caught.value.found


def test_classes_one_folder_deeper_are_hinted_at(tmp_path):
    root = write_files(tmp_path, "images/dog/1.jpg", "images/cat/1.jpg")
    table = listed(root)
    assert "label" not in table.schema.names
    assert f"did you mean {root}/images, or --class-depth 2?" in table.notes[0]
    assert class_names(open_media([root], class_depth=2).schema) == {"label": ("cat", "dog")}


def test_classes_may_be_at_any_depth(tmp_path):
    names = ["animals/cat/1.jpg", "animals/dog/old/2.jpg", "vehicles/car/3.jpg", "vehicles/cat/4.jpg"]
    root = write_files(tmp_path, *names)
    (tmp_path / "animals" / "bird").mkdir()
    table = open_media([root], class_depth=2)
    assert class_names(table.schema) == {"label": ("bird", "car", "cat", "dog")}
    assert column(table, "label") == [2, 3, 1, 2]
    assert class_names(listed(root).schema) == {"label": ("animals", "vehicles")}
    assert listed(root).files[0].footer != table.files[0].footer
    assert "label" not in open_media([root], class_depth=0).schema.names
    with pytest.raises(InputError, match="not in a class folder") as caught:
        open_media([root], class_depth=3)
    assert "3 files beside 1 folders, such as animals/cat/1.jpg" in caught.value.found
    with pytest.raises(InputError, match="class_depth is for folders"):
        planned([write_table(tmp_path / "a.parquet", {"a": [1]})], options(class_depth=2))


@pytest.mark.parametrize("pattern", ["*/*", "*/", "*/{cat,car}"])
def test_a_pattern_of_folders_loses_no_classes(pattern, tmp_path):
    """The folders that it matches may be the classes: their names must not be lost without a word."""
    names = ["cat/1.jpg", "car/2.jpg"] if pattern == "*/" else ["animals/cat/1.jpg", "vehicles/car/2.jpg"]
    root = write_files(tmp_path, *names)
    with pytest.raises(InputError, match="none of which has folders of classes") as caught:
        listed(f"{root}/{pattern}")
    assert "--class-depth" in caught.value.remedy
    depth = 1 if pattern == "*/" else 2
    assert class_names(open_media([root], class_depth=depth).schema) == {"label": ("car", "cat")}
    assert "label" not in open_media(find_inputs([f"{root}/{pattern}"]), class_depth=0).schema.names


def test_what_is_left_out_is_counted_and_named_in_the_plan(tmp_path):
    root = write_files(tmp_path, "a/1.jpg", "b/2.jpg", "notes.txt", "a/Thumbs.db", "a/._1.jpg", ".git/x.jpg")
    (tmp_path / "b" / "empty.jpg").touch()
    (tmp_path / "b" / "gone.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(tmp_path / "b" / "pipe.jpg")
    plan = planned([root], options())
    assert names_of(plan.table) == ["a/1.jpg", "b/2.jpg"]
    assert plan.summary()["notes"] == [
        f"{root}: left out: 1 empty, such as b/empty.jpg; 2 hidden, such as .git; "
        "2 not files, or broken links, such as b/gone.jpg; 2 of other kinds, such as notes.txt"
    ]


def test_links_are_followed_and_those_that_lead_back_end(tmp_path, caplog):
    root = write_files(tmp_path / "root", "a/1.jpg", "b/2.jpg")
    write_files(tmp_path / "other", "3.jpg")
    (tmp_path / "root" / "ab").symlink_to(tmp_path / "other")
    (tmp_path / "root" / "b" / "4.jpg").symlink_to("2.jpg")
    for name in ("x", "y"):
        (tmp_path / "root" / "a" / name).symlink_to(tmp_path / "root")
    assert names_of(listed(root)) == ["a/1.jpg", "ab/3.jpg", "b/2.jpg", "b/4.jpg"]
    assert "skipping a link to a folder that is already included" in caplog.text


def test_most_files_decide_the_field_and_the_others_are_counted(tmp_path):
    plan = planned([write_files(tmp_path, "1.png", "2.jpg", "3.JPEG")], options())
    assert [one.name for one in plan.fields] == ["jpg"]
    assert plan.table.notes == ("files of other kinds are written to the field 'jpg', too: 1 png",)
    more = planned([f"{tmp_path}", write_files(tmp_path.with_name("more"), "4.png", "5.gif")], options(class_depth=0))
    assert [one.name for one in more.fields] == ["jpg"]
    assert more.table.notes == ("files of other kinds are written to the field 'jpg', too: 2 png, 1 gif",)


def test_files_that_are_left_out_decide_neither_kind_nor_field(tmp_path):
    for name in ("a.png", "b.png", "c.png", "d.wav"):
        (tmp_path / name).touch()
    (tmp_path / "e.gif").symlink_to("nowhere.gif")
    plan = planned([write_files(tmp_path, "1.jpg")], options())
    assert [one.name for one in plan.fields] == ["jpg"]
    assert [note.partition(": ")[2] for note in plan.table.notes] == [
        "left out: 4 empty, such as a.png; 1 not files, or broken links, such as e.gif"
    ]


@pytest.mark.parametrize("pattern", ["*/*.jpg", "**/*.jpg", "{a,b}/*.jpg", "a/1.jpg {root}/b/*.jpg"])
def test_files_of_a_pattern_have_the_classes_below_their_common_folder(pattern, tmp_path):
    root = write_files(tmp_path / "photos", "a/1.jpg", "b/2.jpg", "b/3.png", "b/4.JPG")
    inputs = [f"{root}/{part}".replace(f"{root}/{{root}}", root) for part in pattern.split(" ")]
    table = listed(*inputs)
    assert names_of(table) == ["a/1.jpg", "b/2.jpg"] and column(table, "label") == [0, 1]
    assert table.files[0].path == root


def test_a_link_to_itself_is_left_out_and_a_folder_that_may_not_be_entered_is_an_error(tmp_path, monkeypatch):
    root = write_files(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a" / "2.jpg").symlink_to("2.jpg")
    assert names_of(listed(root)) == ["a/1.jpg", "b/2.jpg"]
    asked = os.stat

    def refusing(path, **keywords):
        if str(path).endswith("b/2.jpg"):
            raise PermissionError(13, "Permission denied", path)
        return asked(path, **keywords)

    with monkeypatch.context() as patched, pytest.raises(InputError, match="cannot be read") as caught:
        patched.setattr(os, "stat", refusing)
        open_media([root])
    assert caught.value.place == f"{root}/b/2.jpg"


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    root, opened = write_files(tmp_path, "a/1.jpg", "b/2.jpg"), os.scandir

    def refusing(path="."):
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path)

    with monkeypatch.context() as patched, pytest.raises(InputError, match="a folder cannot be read") as caught:
        patched.setattr(os, "scandir", refusing)
        listed(root)
    assert (caught.value.place, caught.value.found) == (f"{root}/b", "Permission denied")


def test_one_file_and_files_of_the_working_folder_are_inputs(tmp_path, monkeypatch):
    root = write_files(tmp_path, "1.jpg", "2.jpg")
    assert names_of(listed(f"{root}/1.jpg")) == ["1.jpg"]
    monkeypatch.chdir(tmp_path)
    assert names_of(listed("1.jpg", "2.jpg")) == names_of(listed(".")) == ["1.jpg", "2.jpg"]


def test_several_folders_have_the_classes_of_all(tmp_path):
    one, other = write_files(tmp_path / "x", "b/1.jpg", "c/1.jpg"), write_files(tmp_path / "y", "a/1.jpg", "c/2.jpg")
    table = listed(one, other)
    assert class_names(table.schema) == {"label": ("a", "b", "c")}
    assert column(table, "label") == [1, 2, 0, 2]


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


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"x")
    with pytest.raises(InputError, match="not UTF-8"):
        listed(str(tmp_path))
