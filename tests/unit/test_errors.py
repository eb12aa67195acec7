import copy
import pickle

import pytest

from wdsplit import errors
from wdsplit.errors import StorageError, WdsplitError, did_you_mean, first_line

ATTRIBUTES = {
    "cause": "a shard is short",
    "place": "row 3",
    "expected": "10 bytes",
    "found": "9 bytes",
    "remedy": "copy it again",
    "url": "s3://bucket/000000.tar",
    "key": "img_01",
    "offset": 1536,
}
KINDS = {
    Exception: "WdsplitError",
    FileExistsError: "OutputExistsError",
    FileNotFoundError: "DatasetNotFoundError",
    ImportError: "MissingDependencyError",
    LookupError: "SampleNotFoundError",
    OSError: "StorageError UnansweredError",
    RuntimeError: "ConvertError PipelineError",
    TypeError: "UnsizedError",
    ValueError: "CorruptDataError InputError StateError TopologyError",
}
BUILTINS = {name: builtin for builtin, names in KINDS.items() for name in names.split()}


def test_each_error_has_its_builtin_in_the_table_of_this_test():
    assert set(errors.__all__) == set(BUILTINS)


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_an_error_is_a_builtin_too_keeps_all_attributes_and_says_them_in_order(kind):
    assert issubclass(kind, WdsplitError) and issubclass(kind, BUILTINS[kind.__name__])
    error = kind(**ATTRIBUTES)
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert {name: getattr(twin, name) for name in ATTRIBUTES} == ATTRIBUTES
    assert str(error).splitlines() == [
        "a shard is short",
        "  place: row 3",
        "  expected: 10 bytes",
        "  found: 9 bytes",
        "  remedy: copy it again",
    ]
    moved = error.at("train.parquet").at("job 2")
    assert type(moved) is kind
    places = {"place": "job 2, train.parquet, row 3"}
    assert {name: getattr(moved, name) for name in ATTRIBUTES} == ATTRIBUTES | places
    text = f"Caught {kind.__name__} in DataLoader worker process 0.\n  Traceback: ..."
    assert str(kind(text)) == text, "torch builds it again from its text"


def test_an_error_says_nothing_of_what_it_does_not_know():
    assert str(WdsplitError("a cause", found="9 bytes")) == "a cause\n  found: 9 bytes"
    assert StorageError("refused").at("000000.tar").place == "000000.tar"


def test_a_message_does_not_show_all_of_a_long_value():
    shown = str(WdsplitError("a number has too many digits", found="7" * 2_000_000, remedy="write it as a string"))
    assert len(shown) < 2_500 and "777... (2,000,000 characters)\n  remedy: write it as a string" in shown


@pytest.mark.parametrize(
    ("unknown", "remedy"),
    [
        (["lable"], "did you mean 'Label'?"),
        (["LABEL"], "did you mean 'Label'?"),
        (["lable", "imgae"], "did you mean 'Label' and 'image'?"),
        (["lable", "labels"], "did you mean 'Label'?"),
        (["lable", "something else"], "did you mean 'Label'?"),
        (["something else"], ""),
    ],
)
def test_a_name_that_is_nearly_one_of_the_known_is_suggested(unknown, remedy):
    assert did_you_mean(unknown, ["image", "Label", "caption"]) == remedy


@pytest.mark.parametrize(
    ("text", "line"),
    [("", "ValueError"), (" \n", "ValueError"), ("one", "one"), ("\n  one \r\n two", "one"), ("one\ntwo", "one")],
)
def test_the_first_line_of_an_error_is_not_blank(text, line):
    assert first_line(ValueError(text)) == line
