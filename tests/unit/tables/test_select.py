"""Which rows are kept: splits, hashes, and the counting of rows by condition, limit and split."""

import datetime
import json
import math
import os
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format_inputs import damage
from tables import input_file, table_of, write_files, write_table
from wdsplit.conversion.counting import select_rows
from wdsplit.errors import InputError
from wdsplit.tables.formats import parquet
from wdsplit.tables.read import open_inputs, read_rows
from wdsplit.tables.select import Picker, check_split_type, cut_splits, hash_values, in_split
from wdsplit.tables.table import InputFile, Selection, Split, Table

MAX = 2**64
SPLITS = {"train": 0.8, "val": 0.15, "test": 0.05}
PLACES = table_of(input_file(4, path="a.parquet"), input_file(0), input_file(6, path="b.parquet"))


def hashes_of(values, kind=None):
    column = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return hash_values(column, np.arange(len(column)), PLACES, "g").tolist()


def split_hashes(column, values):
    """Return what decides the split of rows: of those with these numbers, or with these values."""
    schema = pa.schema([("g", pa.string())])
    picker = Picker(Table(PLACES.files, schema, Selection(split=Split(column, 0, MAX))))
    numbers = np.asarray(values) if column is None else np.arange(len(values))
    return picker.hashes({} if column is None else {column: pa.array(values)}, numbers)


# Splits

weights = st.lists(st.integers(1, 10**6), min_size=1, max_size=8)


def fractions(weights):
    return {f"s{number}": weight / sum(weights) for number, weight in enumerate(weights)}


@given(weights, st.lists(st.integers(0, MAX - 1)))
def test_splits_are_cut_in_their_order_from_the_lowest_hash_to_the_highest_and_share_out_all(weights, more):
    sizes = fractions(weights)
    splits = cut_splits(sizes, "g")
    assert list(splits) == list(sizes)
    assert {split.column for split in splits.values()} == {"g"}
    cuts = [split.low for split in splits.values()] + [list(splits.values())[-1].high]
    assert (cuts[0], cuts[-1]) == (0, MAX)
    assert all(one.high == other.low for one, other in pairwise(splits.values()))
    more += [edge for cut in cuts for edge in (cut - 1, cut) if 0 <= edge < MAX]
    for name, split in splits.items():
        assert (split.high - split.low) / MAX == pytest.approx(sizes[name], abs=1e-13)
        assert in_split(np.array(more, np.uint64), split).tolist() == [split.low <= each < split.high for each in more]


NAN = math.nan


@pytest.mark.parametrize("sizes", [{}, {"a": 0.5}, {"a": 0.5, "b": 0.6}, {"a": 1.0, "b": 0.0}, {"a": NAN}, {"a": 90}])
def test_fractions_that_do_not_add_up_to_1_are_refused(sizes):
    with pytest.raises(InputError, match="do not add up to 1") as caught:
        cut_splits(sizes, None)
    assert all(f"{name}={fraction:g}" in caught.value.found for name, fraction in sizes.items())


# Hashes: these figures must never change, or every split of every table does

GOLDEN = [
    (["", "a", "train/cat_01"], [2658058279309295395, 3036275856436592993, 15162555052228908926]),
    (["é日本🙂", "x" * 200], [11549450024617412115, 16006505340201737878]),
    ([0, 1, -1, 2**63 - 1], [14231349906194883165, 9720751775664044264, 13174467651355714658, 10406525293261036023]),
    ([True, False], [6482068185712811288, 11201874585080387605]),
    ([datetime.date(2024, 2, 29)], [7186833925430862456]),
]


@pytest.mark.parametrize(("values", "expected"), GOLDEN)
def test_the_hashes_of_values_never_change(values, expected):
    assert hashes_of(values) == expected


def test_the_splits_of_rows_never_change():
    assert [split.low for split in cut_splits(SPLITS, None).values()] == [0, 14757395258967642112, 17524406870024075264]
    numbers = split_hashes(None, [0, 1, 2, 10**9, 2**40]).tolist()
    assert numbers[:2] == [3578905555971234089, 6302574970026089870]
    assert numbers[2:] == [585562439282886440, 11927812377096559795, 2132194087439088511]
    values = split_hashes("g", ["", "a", "cat"]).tolist()
    assert values == [12689648888230236319, 17741323478575428335, 17142464134073287122]
    for hashes, val, test in (
        (split_hashes(None, range(60)), [5, 6, 34, 47, 52, 54], []),
        (split_hashes("g", [f"user {n}" for n in range(40)]), [1, 3, 6, 8, 11, 15, 17, 21, 31, 33], [20, 23]),
    ):
        splits = cut_splits(SPLITS, None)
        assert [np.flatnonzero(in_split(hashes, splits[name])).tolist() for name in ("val", "test")] == [val, test]


TEXTS = st.lists(st.text(max_size=150), max_size=20), [pa.large_string(), pa.string_view(), pa.string()]
NUMBERS = st.lists(st.integers(0, 127), max_size=20), [pa.int8(), pa.uint64(), pa.string()]


@pytest.mark.parametrize(("lists", "kinds"), [TEXTS, NUMBERS], ids=["texts", "numbers"])
@given(st.data(), st.integers(0, 20))
def test_the_hash_of_a_value_depends_on_the_value_alone(lists, kinds, data, cut):
    values = data.draw(lists)
    column = pa.array(values, kinds[-1] if kinds is TEXTS[1] else pa.int64())
    by_value = dict(zip(values, hashes_of(column), strict=True))
    assert len(set(by_value.values())) == len(by_value)
    expected = [by_value[value] for value in values[cut:]]
    dictionary = column.dictionary_encode()
    for same in (*map(column.cast, kinds), dictionary, dictionary.cast(pa.dictionary(pa.int8(), column.type))):
        assert hashes_of(same.slice(cut)) == expected


@pytest.mark.parametrize("column", [None, "g"])
def test_splits_are_as_large_as_their_fractions_say(column):
    """Five standard deviations of a binomial are allowed."""
    num_rows = 100_000
    values = range(num_rows) if column is None else [f"sample-{number:06d}" for number in range(num_rows)]
    hashes = split_hashes(column, values)
    for name, split in cut_splits(SPLITS, column).items():
        expected = num_rows * SPLITS[name]
        assert abs(in_split(hashes, split).sum() - expected) < 5 * math.sqrt(expected * (1 - SPLITS[name])), name
    half = in_split(hashes, cut_splits({"a": 0.5, "b": 0.5}, column)["a"])
    assert abs((half[:-1] & half[1:]).mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / num_rows)  # neighbours


def test_a_null_belongs_to_no_split_and_is_named_by_file_row_and_column():
    texts = pa.array(["a", "b", None, "c"])
    inside = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0]), pa.array(["a", None]))
    for column in (texts, pa.array([1, 2, None, 3]), texts.dictionary_encode(), inside):
        with pytest.raises(InputError, match="is null") as caught:
            hash_values(column, np.array([1, 3, 7, 9]), PLACES, "g")
        assert caught.value.place == "b.parquet, row 3, column 'g'"


MAY = [pa.string(), pa.string_view(), pa.uint64(), pa.bool_(), pa.date64(), pa.dictionary(pa.int8(), pa.string())]
MAY_NOT = [pa.float32(), pa.binary(), pa.list_(pa.int8()), pa.null(), pa.timestamp("s"), pa.decimal128(5, 2)]


def test_columns_of_texts_whole_numbers_truths_and_dates_may_assign_rows_to_splits():
    for kind in MAY:
        check_split_type(pa.schema([("g", kind)]), "g")
    for kind in MAY_NOT:
        with pytest.raises(InputError, match="column 'g' cannot assign rows"):
            check_split_type(pa.schema([("g", kind)]), "g")
    with pytest.raises(InputError, match="column 'h' is not in the table"):
        check_split_type(pa.schema([("g", pa.string())]), "h")


# Counting


def rows_table():
    """Return 90 rows, sorted by `n` and in runs of `x`, so that statistics rule row groups out; with nulls and NaN."""
    numbers = range(90)
    xs = [None if n % 11 == 5 else math.nan if n % 13 == 6 else float(n // 8) for n in numbers]
    return pa.table(
        {
            "n": numbers,
            "x": pa.array(xs, pa.float64()),
            "text": pa.array([None if n % 17 == 3 else f"t{n % 7}" for n in numbers]),
            "kind": pa.array([f"k{n * n % 5}" for n in numbers]).dictionary_encode(),
            "a b.c": [n % 3 for n in numbers],
        }
    )


TABLE = rows_table()
ROWS = TABLE.to_pylist()

CONDITIONS = {
    "": lambda row: True,
    "20 <= n < 47": lambda row: 20 <= row["n"] < 47,
    "x > 5": lambda row: row["x"] is not None and row["x"] > 5,
    "not x < 8": lambda row: row["x"] is not None and not row["x"] < 8,
    'text == "t4" or n < 9': lambda row: row["text"] == "t4" or row["n"] < 9,
    'kind == "k4"': lambda row: row["kind"] == "k4",
    'column("a b.c") == 1 and n > 10': lambda row: row["a b.c"] == 1 and row["n"] > 10,
}
CUTS = {
    "one": ([90], None),
    "groups": ([90], 7),
    "files": ([13, 1, 40], 6),
    "empty": ([0, 9, 0, 0, 30, 0], 4),
    "rows": ([1], None),
}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    """Return the same table in files and row groups of many kinds, empty ones among them."""
    folder = tmp_path_factory.mktemp("layouts")
    return {name: open_inputs(write_files(folder / name, TABLE, *cut)) for name, cut in CUTS.items()}


def numbers_in(numbers, split):
    """Return those of some rows that are in a split."""
    if split is None or not numbers:
        return numbers
    values = numbers if split.column is None else [str(ROWS[number][split.column]) for number in numbers]
    return np.array(numbers)[in_split(split_hashes(split.column and "g", values), split)].tolist()


def counts_in(table, numbers):
    """Count numbers by the row groups they are in."""
    ends = np.cumsum([rows for file in table.files for rows in file.row_groups])
    counts = np.bincount(np.searchsorted(ends, numbers, side="right"), minlength=len(ends)).tolist() if numbers else []
    flat = iter(counts or [0] * len(ends))
    return [tuple(next(flat) for _ in file.row_groups) for file in table.files]


@given(
    st.sampled_from(sorted(CUTS)),
    st.sampled_from(sorted(CONDITIONS)),
    st.none() | st.integers(1, 100),
    st.sampled_from([None, (None, {"a": 0.5, "b": 0.3, "c": 0.2}), ("kind", {"a": 0.4, "b": 0.6}), ("n", {"a": 1.0})]),
    st.sampled_from([200, 16 * 1024**2]),
    st.tuples(st.integers(0, 90), st.integers(0, 90)),
)
def test_counts_and_rows_of_any_selection_of_any_layout_are_those_of_the_whole_table(
    layouts, layout, where, limit, drawn, batch_bytes, places
):
    table = layouts[layout]
    splits = [None] if drawn is None else list(cut_splits(drawn[1], drawn[0]).values())
    meeting = [number for number, row in enumerate(ROWS) if CONDITIONS[where](row)][:limit]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "BATCH_BYTES", batch_bytes)
        results = select_rows(table, where, limit, splits)
        for split, selected in zip(splits, results, strict=True):
            expected = numbers_in(meeting, split)
            assert [file.counts for file in selected.files] == counts_in(table, expected)
            assert (selected.num_rows, selected.total_rows) == (len(expected), 90)
            assert selected.selection == Selection(where, limit, split)
            first, stop = sorted(min(place, len(expected)) for place in places)
            read = list(read_rows(selected, first, stop, ["text", "n"]))
            numbers = [number for rows in read for number in rows.numbers.tolist()]
            assert numbers == [number for rows in read for number in rows.columns["n"].to_pylist()]
            assert numbers == expected[first:stop]
            texts = [text for rows in read for text in rows.columns["text"].to_pylist()]
            assert texts == [ROWS[number]["text"] for number in numbers]
            names = [f"{file.path}, row {row}" for file in table.files for row in range(file.num_rows)]
            assert [rows.where(row) for rows in read for row in range(len(rows))] == [names[n] for n in numbers]


# What is not read


@pytest.fixture
def sorted_file(tmp_path):
    return write_table(tmp_path / "a.parquet", TABLE.select(["n", "kind"]), 15)


@pytest.mark.parametrize(
    ("where", "unread", "counts"),
    [
        ("17 <= n < 40", [0, 3, 4, 5], (0, 13, 10, 0, 0, 0)),
        ("n * n == 400", [], (0, 1, 0, 0, 0, 0)),  # of which the statistics say nothing, so all groups are counted
    ],
)
def test_row_groups_that_the_statistics_rule_out_or_without_a_selected_row_are_not_read(
    sorted_file, where, unread, counts
):
    table = open_inputs([sorted_file])
    damage(sorted_file, unread)
    (selected,) = select_rows(table, where, None, [None])
    assert selected.files[0].counts == counts
    damage(sorted_file, [group for group in range(6) if not counts[group]])
    read = [number for rows in read_rows(selected, 0, 23, ["n", "kind"]) for number in rows.numbers.tolist()]
    assert read == (list(range(17, 40)) if unread else [20])
    with pytest.raises(InputError, match="cannot be read as parquet") as caught:
        select_rows(table, "17 <= n < 50", None, [None])
    assert caught.value.place == sorted_file


def test_nothing_is_read_after_the_limit(sorted_file, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_BYTES", 1)
    gone = write_table(tmp_path / "b.parquet", TABLE.select(["n", "kind"]))
    table = open_inputs([sorted_file, gone])
    os.remove(gone)
    damage(sorted_file, [2, 3, 4, 5])
    (selected,) = select_rows(table, "n != 3", 25, [None])
    assert [file.counts for file in selected.files] == [(14, 11, 0, 0, 0, 0), (0,)]


def test_only_the_columns_that_decide_are_read(sorted_file):
    table = open_inputs([sorted_file])
    damage(sorted_file, range(6), columns=[1])
    results = select_rows(table, "n >= 10", None, list(cut_splits(SPLITS, "n").values()))
    assert sum(selected.num_rows for selected in results) == 80
    os.remove(sorted_file)
    results = select_rows(table, "", 77, list(cut_splits({"a": 0.5, "b": 0.5}, None).values()))
    assert sum(selected.num_rows for selected in results) == 77


def test_a_condition_names_the_classes_of_numbers(tmp_path):
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    schema = pa.schema([("label", pa.int64())], {"huggingface": json.dumps({"info": {"features": features}})})
    table = open_inputs(write_files(tmp_path, pa.table({"label": [0, 1, 1]}, schema), [3], 3))
    for where, count in {"label == 'dog'": 2, "label == 1": 2, "label not in ['dog']": 1}.items():
        (selected,) = select_rows(table, where, None, [None])
        assert selected.num_rows == count
    with pytest.raises(InputError, match="no class 'dgo'"):
        select_rows(table, "label == 'dgo'", None, [None])


# Places


def test_ranges_read_only_the_row_groups_of_their_places():
    selected = (1, 0, 2, 2)
    table = Table((InputFile("a.parquet", 1, 12, (3,) * 4, 120, "00", selected=selected),) * 2, pa.schema([]))
    assert (table.num_rows, table.total_rows, table.data_bytes) == (10, 24, 100)
    found = [(part.groups, part.skip, part.count) for part in table.ranges(2, 8)]
    assert found == [((2, 3), 1, 3), ((0, 2), 0, 3)]
    assert [part.row_numbers(0, 6).tolist() for part in table.ranges(2, 8)][1] == [12, 13, 14, 18, 19, 20]


def test_the_numbers_of_large_tables_do_not_overflow():
    files = tuple(InputFile(f"{n}.parquet", 1, 2**40, (2**39, 2**39), 2**50, "00") for n in range(3))
    table = Table(files, pa.schema([]))
    assert table.total_rows == 3 * 2**40
    (part,) = table.ranges(3 * 2**40 - 1, 3 * 2**40)
    assert (part.groups, part.skip, part.count) == ((1,), 2**39 - 1, 1)
    assert part.row_numbers(2**39 - 1, 2**39).tolist() == [3 * 2**40 - 1]
    assert table.where(2**41 + 5) == "2.parquet, row 5"
    assert np.asarray(part.numbers).dtype == np.int64
