import shlex

import pytest

from wdsplit.checks.inspect import Assignment, ReaderShare
from wdsplit.erasing.gc import Collected
from wdsplit.errors import InputError
from wdsplit.shards.views import StoredView
from wdsplit.sizes import parse_size
from wdsplit.texts import class_name, percent, quoted


def test_a_text_becomes_a_word_of_a_command_line():
    for text, word in (
        ("row", "row"),
        ("label != 'cat'", "\"label != 'cat'\""),
        ('a == "b"', "'a == \"b\"'"),
        ("!x", "'!x'"),
        ("a $HOME", "'a $HOME'"),
        ("a\\b", "'a\\b'"),
        ("", '""'),
    ):
        assert quoted(text) == word
        assert shlex.split(word) == [text]


def test_only_all_is_100_percent():
    parts = {(0, 0): "0 %", (0, 9): "0 %", (9, 9): "100 %", (1, 10**6): "0.1 %", (10**6 - 1, 10**6): "99.9 %"}
    assert {part: percent(*part) for part in parts} == parts


def test_only_a_number_of_a_class_gets_its_name():
    assert class_name("1", ("cat", "dog")) == "dog"
    for text in ("2", "-1", "1.0", "٣", "bird", "", "9" * 5000):
        assert class_name(text, ("cat", "dog")) == text


def test_sizes_are_bytes_or_texts():
    sizes = {1: 1, "200GB": 200 * 10**9, " 1.5 TiB ": 3 * 2**39, "10k": 10_000, "512": 512, "7 b": 7, "2MiB": 2**21}
    assert {size: parse_size(size) for size in sizes} == sizes
    for size in (0, -1, "", "0GB", "-1GB", "many", "1XB", 1.5, True, "0.1b", "9" * 400, "1 GB 2"):
        with pytest.raises(InputError, match="size"):
            parse_size(size)


def test_results_with_long_texts_and_lists_print_as_one_short_line():
    readers = [ReaderShare(rank, 0, 5, list(range(500))) for rank in range(64)]
    found = repr(Assignment(8, 1, False, 1.0, 0, "a sentence " * 50, readers))
    assert found.startswith("Assignment(lanes=8, readers_per_lane=1, recut=False, read_amplification=1.0, pads=0, ")
    assert len(found) < 400
    recipe = {"units": "A" * 10_000, "where": "score > 0.5"}
    found = repr(StoredView("easy", "d" * 500, "f", 10, 5, 5, 1, "repeat", {"values": list("abc") * 99}, [4], recipe))
    assert found == "<StoredView 'easy': 5 of 10 samples, in 5 groups>"
    assert (
        repr(Collected((9,), tuple(range(1, 9)), 3))
        == "Collected(kept=(9,), removed=(1, 2, 3, 4, 5, 6, ...), num_files=3)"
    )
