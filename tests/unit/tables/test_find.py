import glob
import os

import pyarrow as pa
import pytest

from privileges import as_another_user, public_folder
from tables import write_table
from wdsplit.errors import InputError
from wdsplit.storage import patterns
from wdsplit.tables.find import find_inputs
from wdsplit.tables.read import open_inputs


def names(folder, paths):
    return [os.path.relpath(path, folder) for path in paths]


@pytest.fixture
def tree(tmp_path):
    for name in ("b.parquet", "a.parquet", "10.parquet", "9.parquet", "sub/c.parquet", "sub/deep/d.parquet"):
        write_table(tmp_path / name, {"a": [1]})
    (tmp_path / "notes.txt").write_text("no table")
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["b.parquet", "a.parquet"], "b a"),
        (["/"], "10 9 a b sub/c sub/deep/d"),
        (["sub/"], "sub/c sub/deep/d"),
        (["[ab].parquet"], "a b"),
        (["sub/**/*.parquet"], "sub/c sub/deep/d"),
        (["{b,a}.parquet"], "b a"),
        (["{9..10}.parquet"], "9 10"),
    ],
)
def test_folders_globs_and_braces_stand_for_files_in_order(tree, patterns, expected):
    for scheme in ("", "file://"):
        found = names(tree, find_inputs([f"{scheme}{tree}/{pattern}" for pattern in patterns]))
        assert found == [f"{name}.parquet" for name in expected.split()]


def test_a_folder_that_is_named_as_a_table_is_looked_into(tree):
    write_table(tree / "spark.parquet" / "part-0.parquet", {"a": [1]})
    assert names(tree, find_inputs([str(tree / "spark.parquet")])) == ["spark.parquet/part-0.parquet"]
    found = names(tree, find_inputs([str(tree)]))
    assert "spark.parquet/part-0.parquet" in found and "spark.parquet" not in found


def test_links_that_lead_back_are_followed_once_each(tree, caplog):
    expected = names(tree, find_inputs([str(tree)]))
    for folder, name in ((tree, "0"), (tree, "z"), (tree / "sub", "up"), (tree / "sub" / "deep", "top")):
        (folder / name).symlink_to(tree)
    assert names(tree, find_inputs([str(tree)])) == expected
    assert len(caplog.records) == 4
    assert f"{tree}/sub/up: skipping a link to a folder that is already included" in caplog.text
    assert names(tree, find_inputs([f"{tree}/**/[cd].parquet"])) == ["sub/c.parquet", "sub/deep/d.parquet"]
    assert names(tree, find_inputs([f"{tree}/**/deep/*.parquet"])) == ["sub/deep/d.parquet"]


def test_two_stars_stand_for_what_they_do_in_pythons_glob(tree, monkeypatch):
    monkeypatch.chdir(tree)
    write_table(tree / ".hidden" / "x.parquet", {"a": [1]})
    given_patterns = ["**/*.parquet", "sub/**/*.parquet", "**/**/*.parquet", "s*/**/d*"]
    for given in (*given_patterns, *(os.path.join(tree, pattern) for pattern in given_patterns)):
        expected = {path for path in glob.glob(given, recursive=True) if os.path.isfile(path)}
        matched = [path for path, is_folder in patterns.Files(given).matched(given) if not is_folder]
        assert sorted(matched) == sorted(expected)


BRACES = ["a{b.parquet", "a}b.parquet", "a{1,2}.parquet", "a{b}.parquet"]


def test_files_with_odd_names_are_found_by_their_names_and_in_their_folder(tmp_path):
    names = ["é 日本.parquet", "a*b.parquet", "[x].parquet", "a?.parquet", "a'b\".parquet", "plain", *BRACES]
    paths = [write_table(tmp_path / name, {"a": [1, 2]}) for name in names]
    assert [find_inputs([path]) for path in paths] == [[path] for path in paths]
    assert find_inputs([str(tmp_path)]) == sorted(path for path in paths if not path.endswith("plain"))
    assert [open_inputs([path]).num_rows for path in paths] == [2] * len(paths)


@pytest.mark.parametrize("again", ["a.parquet", "./a.parquet", "link.parquet", "linked/a.parquet", "", "a*"])
def test_a_file_that_is_named_twice_is_refused_by_any_of_its_names(tmp_path, again):
    write_table(tmp_path / "a.parquet", {"a": [1]})
    (tmp_path / "link.parquet").symlink_to(tmp_path / "a.parquet")
    (tmp_path / "linked").symlink_to(tmp_path)
    with pytest.raises(InputError, match="duplicate input") as caught:
        find_inputs([f"{tmp_path}/a.parquet", f"{tmp_path}/{again}"])
    assert caught.value.place == caught.value.url
    assert str(tmp_path) in caught.value.place


@pytest.mark.parametrize(
    ("argument", "cause"),
    [
        *((name, "input not found") for name in ("missing.parquet", "*.parquet", "empty", "none/*.parquet")),
        *((name, "input not found") for name in ("{x,y}.parquet", "no\nsuch")),
        ("a{1,2.parquet", "unbalanced braces"),
        *((f"{braces}.parquet", "names too many files") for braces in ("{0..999999999}", "{0..-99999999..2}")),
        ("gopher://host/a.parquet", "unknown file system"),
        ("compressed", "compressed"),
    ],
)
def test_an_argument_that_names_no_files_that_can_be_read_is_refused_by_name(tmp_path, argument, cause):
    for name in ("empty/notes.txt", "compressed/a.csv", "compressed/b.csv.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    given = argument if "://" in argument else f"{tmp_path}/{argument}"
    with pytest.raises(InputError, match=cause) as caught:
        find_inputs([given])
    assert caught.value.place.startswith(given if "://" in given else str(tmp_path))


def test_tables_of_several_splits_in_a_folder_are_warned_of(tmp_path, caplog):
    table = pa.table({"n": [1]})
    for name in ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet", "evaluation.parquet"):
        write_table(tmp_path / name, table)
    assert len(find_inputs([str(tmp_path)])) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: tables of several splits become one dataset: test, train; select one split, as in "
        f"'{tmp_path}/train*'"
    ]
    caplog.clear()
    find_inputs([f"{tmp_path}/train*"])
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    find_inputs([str(tmp_path)])
    assert not caplog.records


@pytest.mark.parametrize("named", ["", "raw", "raw/a.parquet", "raw/*.parquet", "raw/**/*.parquet", "raw/**"])
def test_a_folder_that_may_not_be_read_is_named_and_not_left_out(named):
    with public_folder() as folder:
        for name in ("b.parquet", "raw/a.parquet"):
            write_table(folder / name, {"a": [1]})
        (folder / "raw").chmod(0)
        with as_another_user(), pytest.raises(InputError, match="Permission denied") as caught:
            find_inputs([str(folder / named)])
    assert caught.value.place.startswith(str(folder / "raw"))


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("raw/*", "raw/out/0.tar", True),
        ("raw/*.tar", "raw/out/0.tar", False),
        ("raw/*/*/*", "raw/out/0.tar", False),
        ("**/*.tar", "raw/out/0.tar", True),
        ("raw/**/x/*.tar", "raw/a/b/x/0.tar", True),
        ("raw/*", "raw/.out/0.tar", False),
        ("raw/.*", "raw/.out/0.tar", True),
        ("rew/*", "raw/out/0.tar", False),
    ],
)
def test_what_a_glob_would_find(pattern, path, found):
    assert patterns.finds(pattern.split("/"), path.split("/")) is found
