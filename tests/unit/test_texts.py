import shlex

import pytest

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
