import shlex

import pytest

from wdsplit.texts import percent, quoted


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
