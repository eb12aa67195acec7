"""What metadata.csv and its like add to the rows of media files."""

import json

import pyarrow as pa
import pytest

from media_files import listed, names_of, write_files
from tables import options, planned, write_table
from wdsplit.errors import InputError
from wdsplit.tables.read import read_rows

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


def rows_of(table, *names):
    return [tuple(row.values()) for rows in read_rows(table, 0, table.num_rows, names) for row in _dicts(rows)]


def _dicts(rows):
    return pa.table(dict(rows.columns)).to_pylist()


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_its_columns_are_columns_of_the_files_that_it_names(name, root, tmp_path):
    write_metadata(tmp_path / "photos", name, ROWS)
    table = listed(root)
    assert rows_of(table, "file_name", "text", "score", "label") == [
        ("a/1.jpg", "one, é", 1, 0),
        ("b/2.jpg", "two", 2, 1),
    ]
    fields = {one.name: one.column for one in planned([root], options()).fields}
    assert fields == {"jpg": "image", "cls": "label", "txt": "text", "score.json": "score"}


def test_metadata_in_several_folders_is_put_together(root, tmp_path):
    write_metadata(tmp_path / "photos" / "a", "metadata.csv", [{"file_name": "1.jpg", "text": "one"}])
    write_metadata(tmp_path / "photos" / "b", "metadata.jsonl", [{"file_name": "2.jpg", "text": "two"}])
    assert rows_of(listed(root), "text") == [("one",), ("two",)]


def test_its_labels_are_used_instead_of_folders(root, tmp_path):
    write_metadata(tmp_path / "photos", "metadata.jsonl", [row | {"label": "x"} for row in ROWS])
    table = listed(root)
    assert rows_of(table, "label") == [("x",), ("x",)]
    assert list(table.notes) == [f"{root}: the column 'label' of the metadata replaces the classes of 2 folders"]


def test_files_beside_folders_are_allowed_with_it(root, tmp_path):
    write_files(root, "3.jpg")
    write_metadata(tmp_path / "photos", "metadata.jsonl", [*ROWS, {"file_name": "3.jpg", "text": "three", "score": 3}])
    assert names_of(listed(root)) == ["3.jpg", "a/1.jpg", "b/2.jpg"]
    assert "label" not in listed(root).schema.names


def test_files_and_rows_that_do_not_match_are_counted_and_named(root, tmp_path):
    write_metadata(tmp_path / "photos", "metadata.csv", [ROWS[0], ROWS[0], {**ROWS[1], "file_name": "a/9.jpg"}])
    with pytest.raises(InputError, match="do not match") as caught:
        listed(root)
    assert (
        caught.value.found == "1 files in no row: a/1.jpg; 1 rows of no file: a/9.jpg; 1 files in several rows: b/2.jpg"
    )


def test_rows_of_empty_files_are_left_out_with_the_files(root, tmp_path):
    (tmp_path / "photos" / "a" / "1.jpg").write_bytes(b"")
    write_metadata(tmp_path / "photos", "metadata.csv", ROWS)
    assert rows_of(listed(root), "text") == [("two",)]


def test_a_metadata_file_without_file_names_is_refused(root, tmp_path):
    write_metadata(tmp_path / "photos", "metadata.csv", [{"filename": "a/1.jpg", "text": "one"}])
    with pytest.raises(InputError, match="no column 'file_name'") as caught:
        listed(root)
    assert "filename" in caught.value.found


def test_a_column_that_is_named_as_the_media_is_refused(root, tmp_path):
    write_metadata(tmp_path / "photos", "metadata.jsonl", [row | {"image": 1} for row in ROWS])
    with pytest.raises(InputError, match="reserved or duplicate name: 'image'"):
        listed(root)


def test_another_metadata_makes_another_plan(root, tmp_path):
    write_metadata(tmp_path / "photos", "metadata.jsonl", ROWS)
    first = planned([root], options()).hash
    write_metadata(tmp_path / "photos", "metadata.jsonl", [row | {"score": 7} for row in ROWS])
    assert planned([root], options()).hash != first
