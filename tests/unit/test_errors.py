import copy
import pickle

import pytest

from wdsplit import errors
from wdsplit.errors import StorageError, WdsplitError, did_you_mean

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
BUILTINS = {
    "ConvertError": RuntimeError,
    "CorruptDataError": ValueError,
    "DatasetNotFoundError": FileNotFoundError,
    "InputError": ValueError,
    "MissingDependencyError": ImportError,
    "OutputExistsError": FileExistsError,
    "PipelineError": RuntimeError,
    "SampleNotFoundError": LookupError,
    "StateError": ValueError,
    "StorageError": OSError,
    "TopologyError": ValueError,
    "UnansweredError": OSError,
    "UnsizedError": TypeError,
    "WdsplitError": Exception,
}

every_error = pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])


def test_each_error_has_its_builtin_in_the_table_of_this_test():
    assert set(errors.__all__) == set(BUILTINS)


@every_error
def test_an_error_is_also_the_builtin_that_a_caller_would_expect(kind):
    assert issubclass(kind, WdsplitError)
    assert issubclass(kind, BUILTINS[kind.__name__])


@every_error
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_pickling_and_copying_with_all_attributes(kind, duplicate):
    twin = duplicate(kind(**ATTRIBUTES))
    assert type(twin) is kind
    assert {name: getattr(twin, name) for name in ATTRIBUTES} == ATTRIBUTES
    assert str(twin) == str(kind(**ATTRIBUTES))


@every_error
def test_an_error_says_cause_place_expected_found_and_remedy_in_this_order(kind):
    assert str(kind(**ATTRIBUTES)).splitlines() == [
        "a shard is short",
        "  place: row 3",
        "  expected: 10 bytes",
        "  found: 9 bytes",
        "  remedy: copy it again",
    ]


@every_error
def test_an_error_can_be_rebuilt_from_its_text_alone_as_torch_does(kind):
    text = f"Caught {kind.__name__} in DataLoader worker process 0.\n  Traceback: ..."
    assert str(kind(text)) == text


def test_an_error_says_nothing_of_what_it_does_not_know():
    assert str(WdsplitError("a cause", found="9 bytes")) == "a cause\n  found: 9 bytes"


@every_error
def test_at_puts_a_place_before_the_place_and_keeps_the_rest(kind):
    moved = kind(**ATTRIBUTES).at("train.parquet").at("job 2")
    assert type(moved) is kind
    assert {name: getattr(moved, name) for name in ATTRIBUTES} == {
        **ATTRIBUTES,
        "place": "job 2, train.parquet, row 3",
    }


def test_at_gives_a_place_to_an_error_that_has_none():
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
