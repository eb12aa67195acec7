import pyarrow as pa
import pytest

from wdsplit.annotating.columns import check_key, chosen_columns, joined_schema, refuse_clashes
from wdsplit.annotating.options import AnnotateOptions
from wdsplit.errors import InputError
from wdsplit.fields.infer import with_class_names
from wdsplit.shards.annotations import Annotation
from wdsplit.shards.sample_tables import names_of

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "score": pa.float16(),
        "kind": pa.dictionary(pa.int8(), pa.large_string()),
        "day": pa.date32(),
        "at": pa.timestamp("s", "UTC"),
        "box": pa.list_(pa.float32()),
        "raw": pa.binary(),
    }
)


def test_all_columns_but_the_key_are_joined_unless_some_are_named():
    assert list(chosen_columns(SCHEMA, "id", {}, ())) == ["score", "kind", "day", "at", "box", "raw"]
    assert chosen_columns(SCHEMA, "id", {"quality": "score"}, ()) == {"quality": "score"}
    assert chosen_columns(SCHEMA, "id", {"quality": "score"}, ("day",)) == {"quality": "score", "day": "day"}
    assert chosen_columns(SCHEMA, "id", {"score": "score"}, ("score",)) == {"score": "score"}


def test_row_numbers_of_pandas_are_joined_only_if_they_are_asked_for():
    schema = pa.schema([("id", pa.string()), ("score", pa.float64()), ("__index_level_0__", pa.int64())])
    assert list(chosen_columns(schema, "id", {}, ())) == ["score"]
    assert list(chosen_columns(schema, "id", {}, ("__index_level_0__",))) == ["__index_level_0__"]


def test_types_are_those_of_sample_tables_and_categories_become_texts():
    joined = joined_schema(SCHEMA, chosen_columns(SCHEMA, "id", {"quality": "score"}, ("kind", "day", "at")))
    assert dict(zip(joined.names, map(str, joined.types), strict=True)) == {
        "quality": "float",
        "kind": "string",
        "day": "date32[day]",
        "at": "timestamp[ms, tz=UTC]",
    }


def test_numbers_of_classes_keep_their_names():
    schema = with_class_names(pa.schema({"id": pa.int64(), "cls": pa.int64()}), {"cls": ["cat", "dog"]})
    assert names_of(joined_schema(schema, {"label": "cls"})) == {"label": ("cat", "dog")}


@pytest.mark.parametrize(
    ("columns", "mapping", "message"),
    [
        (("scor",), {}, "did you mean 'score'"),
        ((), {"a": "scor"}, "did you mean 'score'"),
        (("score",), {"score": "day"}, "two columns are called 'score'"),
    ],
)
def test_columns_that_do_not_exist_or_clash_are_refused(columns, mapping, message):
    with pytest.raises(InputError, match=message):
        chosen_columns(SCHEMA, "id", mapping, columns)


def test_a_table_of_keys_alone_is_refused():
    with pytest.raises(InputError, match="no column to join"):
        chosen_columns(pa.schema({"id": pa.int64()}), "id", {}, ())


def test_all_columns_that_cannot_be_compared_are_named():
    with pytest.raises(InputError, match=r"box \(list<item: float>\), raw \(binary\)"):
        joined_schema(SCHEMA, chosen_columns(SCHEMA, "id", {}, ()))


@pytest.mark.parametrize(("key", "message"), [("score", "cannot be the key"), ("i", "did you mean 'id'")])
def test_a_column_that_cannot_be_the_key_is_refused(key, message):
    with pytest.raises(InputError, match=message):
        check_key(SCHEMA, key)


def test_a_table_with_two_columns_of_one_name_is_refused():
    with pytest.raises(InputError, match=r"duplicate column 'a' \(2 times\)(.|\n)*rename them"):
        check_key(pa.schema([("a", pa.int64()), ("b", pa.int64()), ("a", pa.int64())]), "b")


def test_a_name_that_the_dataset_has_is_refused_with_its_owner():
    samples = pa.schema({"__key__": pa.string(), "num_bytes": pa.int64()})
    other = Annotation("quality", "", pa.schema({"score": pa.float64()}), "", 0, 0, 0, 0, 0)
    refuse_clashes(["new"], samples, [other])
    with pytest.raises(InputError, match=r"annotation 'quality'(.|\n)*--map NEW=score"):
        refuse_clashes(["new", "score"], samples, [other])
    with pytest.raises(InputError, match="the sample tables"):
        refuse_clashes(["num_bytes"], samples, [other])


@pytest.mark.parametrize(
    "options",
    [
        {"jobs": 0},
        {"memory": 0},
        {"allow_duplicates": "any"},
        {"columns": "score"},
        {"overwrite": True, "resume": True},
    ],
)
def test_options_that_cannot_be_used_are_refused(options):
    with pytest.raises(InputError, match=rf"invalid options(.|\n)*{next(iter(options))}"):
        AnnotateOptions(**options)
