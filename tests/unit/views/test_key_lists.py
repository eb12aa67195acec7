import csv
import pathlib
from functools import partial
from types import SimpleNamespace

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.shards.manifest import Manifest, Shards
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.names import escape_key
from wdsplit.views import keys as lists
from wdsplit.views.columns import SampleColumns
from wdsplit.views.keys import KeyList

KEYS = ["00000012", "img.1", "a b", "é/ü"]
read_keys = partial(
    lists.read_keys, columns=SampleColumns(LocalStorage("none"), Manifest(Shards.of([]), (), 1, 1, "none", {}))
)


def write_file(folder, name, keys=KEYS):
    path = folder / name
    kind = path.suffix
    if kind == ".parquet":
        pq.write_table(pa.table({"score": [0.5] * len(keys), "key": keys}), path)
    elif kind in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, delimiter="\t" if kind == ".tsv" else ",")
            rows.writerows([["error", "__key__"], *(["it, broke", key] for key in keys)])
    elif kind == ".jsonl":
        path.write_bytes(b"\n".join(orjson.dumps({"error": "x", "key": key}) for key in keys) + b"\n\n")
    else:
        path.write_text("\r\n".join([*keys, "", ""]), encoding="utf-8-sig")
    return str(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.TXT"])
def test_a_file_of_keys_is_read_by_its_name(tmp_path, monkeypatch, name):
    read = read_keys(write_file(tmp_path, name), "keys")
    assert read.keys.to_pylist() == KEYS
    assert (read.num_duplicates, read.origin) == (0, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    assert read_keys(name, "keys").keys == read_keys(pathlib.Path(name), "keys").keys == read.keys
    with pytest.raises(DatasetNotFoundError):
        read_keys(f"/{name}", "keys")  # of the root folder, not of this one


def test_a_signed_url_is_opened_with_its_signature_and_shown_without(monkeypatch):
    opened = []
    monkeypatch.setattr(
        lists, "open_object", lambda url, _: opened.append(url) or SimpleNamespace(read_whole=lambda: b"b\na\n")
    )
    url = "https://host/keys.txt?signature=SECRET"
    read = read_keys(url, "keys")
    assert (read.keys.to_pylist(), read.origin, opened) == (["b", "a"], "https://host/keys.txt", [url])
    with pytest.raises(InputError, match="not a supported file of keys") as caught:
        read_keys("https://host/keys.zip?signature=SECRET", "keys")
    assert caught.value.found == "a file or folder 'keys.zip'"


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        *((each, KEYS) for each in (KEYS, np.array(KEYS), pa.chunked_array([KEYS[:1], KEYS[1:]]), pd.Series(KEYS))),
        (set(KEYS), sorted(KEYS)),
        *((make({"score": [1] * 4, "key": KEYS}), KEYS) for make in (pd.DataFrame, pa.table)),
        *((make({"__key__": KEYS}), KEYS) for make in (pd.DataFrame, pa.table)),
        (np.array([3, 12]), ["3", "12"]),
        (["b", "a", "b", "b"], ["b", "a"]),
        *((each, []) for each in ([], np.array([]))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_lists_arrays_and_frames_are_taken_as_they_are(values, keys):
    read = read_keys(values, "keys")
    assert read.keys.to_pylist() == keys
    assert read.num_duplicates == (2 if keys == ["b", "a"] else 0)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (3, "int"),
        (b"a", "bytes"),
        ({"a": 1}, "dict"),
        ((key for key in KEYS), "generator"),
        ([0.5], "values of type double"),
        (np.array([True]), "values of type bool"),
        (["a", None], "null, 1 times"),
        ([["a"]], "values of type list"),
        (["a", 1], "int"),
        (pa.table({"id": KEYS, "b": KEYS}), "id, b"),
        ("00000001", "a file or folder '00000001'"),
        ("a.json", "'a.json'"),
        ("a.txt.gz", "'a.txt.gz'"),
        (".", "a file or folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_list_of_keys_is_refused(values, found):
    with pytest.raises(InputError) as caught:
        read_keys(values, "exclude")
    assert found in caught.value.found
    assert "exclude" in caught.value.cause + caught.value.place
    if isinstance(values, str):
        assert f"exclude=['{values}']" in caught.value.remedy
        assert all(kind in caught.value.expected for kind in (".txt", ".jsonl", ".csv", ".tsv", ".parquet"))


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.txt", b"\xff\xfe\x00", "utf-8"),
        ("a.jsonl", b'{"key": "a"}\n\n{', "a.jsonl, line 3"),
        ("a.jsonl", b'{"key": "a"}\n{"name": 1}', "a line has no key"),
        ("a.jsonl", b'["a"]', "a line has no key"),
        ("a.jsonl", b'{"key": null}', "a line has no key"),
        ("a.csv", b"a,b\n1,2\n", "which column"),
        ("a.csv", b"", "empty"),
        ("a.parquet", b"PAR1", "parquet"),
    ],
    ids=str,
)
def test_a_file_that_is_no_list_of_keys_is_refused_with_its_name(tmp_path, name, data, text):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_keys(str(tmp_path / name), "keys")
    assert text.lower() in str(caught.value).lower()
    assert name in caught.value.place


def test_zeros_of_a_table_of_text_stay_and_an_empty_file_is_an_empty_list(tmp_path):
    (tmp_path / "a.csv").write_text("key\n00000012\n7\n")
    assert read_keys(str(tmp_path / "a.csv"), "keys").keys.to_pylist() == ["00000012", "7"]
    (tmp_path / "a.txt").write_text("")
    assert not len(read_keys(str(tmp_path / "a.txt"), "keys").keys)


# Looking keys up


def found_in(listed, keys):
    """Return which keys are in a list, and which of the list were found."""
    rows, numbers = KeyList.of(pa.array(listed, pa.string())).look_up(pa.chunked_array([pa.array(keys, pa.string())]))
    return sorted(set(rows.tolist())), sorted(set(numbers.tolist()))


some_keys = st.lists(st.text(st.sampled_from("ab._/x2E 0é"), min_size=1, max_size=6), max_size=8, unique=True)


@given(some_keys, some_keys, st.booleans())
def test_a_sample_is_in_a_list_by_its_key_as_it_is_or_as_it_was(listed, raw, is_escaped):
    keys = [escape_key(key) for key in raw] if is_escaped else raw
    rows = [row for row, key in enumerate(keys) if key in listed or key in map(escape_key, listed)]
    numbers = [n for n, key in enumerate(listed) if key in keys or escape_key(key) in keys]
    assert found_in(listed, keys) == (rows, numbers)


def test_keys_that_share_a_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(lists, "hash_keys", lambda keys: np.full(len(keys), 7, np.uint64))
    assert found_in(["a", "b.c", "d"], ["x", "d", "b_x2Ec", "d"]) == ([1, 2, 3], [1, 2])


def test_an_empty_key_is_no_samples():
    assert found_in(["", "a"], ["a"]) == ([0], [1])
