import shlex

import pytest

from wdsplit.checks.inspect import Assignment, ReaderShare
from wdsplit.erasing.gc import Collected
from wdsplit.shards.views import StoredView
from wdsplit.texts import class_name, percent, quoted


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("row", "row"),
        ("label != 'cat'", "\"label != 'cat'\""),
        ('a == "b"', "'a == \"b\"'"),
        ("!x", "'!x'"),
        ("a $HOME", "'a $HOME'"),
        ("a\\b", "'a\\b'"),
        ("", '""'),
    ],
)
def test_a_text_becomes_a_word_of_a_command_line(text, word):
    assert quoted(text) == word
    assert shlex.split(word) == [text]


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0 %"),
        (0, 9, "0 %"),
        (9, 9, "100 %"),
        (1, 10**6, "0.1 %"),
        (10**6 - 1, 10**6, "99.9 %"),
        (1, 3, "33.3 %"),
    ],
)
def test_only_all_is_100_percent(part, whole, text):
    assert percent(part, whole) == text


@pytest.mark.parametrize("text", ["2", "-1", "1.0", "٣", "bird", "", "9" * 5000])
def test_only_a_number_of_a_class_gets_its_name(text):
    assert class_name("1", ("cat", "dog")) == "dog"
    assert class_name(text, ("cat", "dog")) == text


def test_results_with_long_texts_and_lists_print_as_one_short_line():
    readers = [ReaderShare(rank, 0, 5, list(range(500))) for rank in range(64)]
    found = repr(Assignment(8, 1, False, 1.0, 0, "a sentence " * 50, readers))
    assert found.startswith("Assignment(lanes=8, readers_per_lane=1, recut=False, read_amplification=1.0, pads=0, ")
    assert len(found) < 400
    recipe = {"units": "A" * 10_000, "where": "score > 0.5"}
    found = repr(StoredView("easy", "d" * 500, "f", 10, 5, 5, 1, "repeat", {"values": list("abc") * 99}, [4], recipe))
    assert "name='easy'" in found and "'where': 'score > 0.5'" in found and len(found) < 400
    assert (
        repr(Collected((9,), tuple(range(1, 9)), 3))
        == "Collected(kept=(9,), removed=(1, 2, 3, 4, 5, 6, ...), num_files=3)"
    )
