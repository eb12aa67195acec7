import pyarrow as pa
import pytest

from wdsplit.annotating.columns import joined_columns, refuse_clashes
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
PLAIN = SCHEMA.remove(6).remove(5)


def joined(schema, key="id", mapping=None, columns=()):
    return joined_columns(schema, key, AnnotateOptions(mapping=mapping or {}, columns=columns))


def test_all_columns_but_the_key_are_joined_unless_some_are_named():
    assert list(joined(PLAIN)[0]) == ["score", "kind", "day", "at"]
    assert joined(SCHEMA, mapping={"quality": "score"})[0] == {"quality": "score"}
    assert joined(SCHEMA, mapping={"quality": "score"}, columns=("day",))[0] == {"quality": "score", "day": "day"}
    assert joined(SCHEMA, mapping={"score": "score"}, columns=("score",))[0] == {"score": "score"}
    numbered = pa.schema([("id", pa.string()), ("score", pa.float64()), ("__index_level_0__", pa.int64())])
    assert list(joined(numbered)[0]) == ["score"], "row numbers of pandas are joined only if they are asked for"
    assert list(joined(numbered, columns=("__index_level_0__",))[0]) == ["__index_level_0__"]


def test_types_are_those_of_sample_tables_and_categories_become_texts_unless_they_are_numbers():
    kinds = {"score": "float", "kind": "string", "day": "date32[day]", "at": "timestamp[ms, tz=UTC]"}
    assert {field.name: str(field.type) for field in joined(PLAIN)[1]} == kinds
    schema = with_class_names(pa.schema({"id": pa.int64(), "cls": pa.int64()}), {"cls": ["cat", "dog"]})
    assert names_of(joined(schema, mapping={"label": "cls"})[1]) == {"label": ("cat", "dog")}


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [
        (SCHEMA, {"columns": ("scor",)}, "did you mean 'score'"),
        (SCHEMA, {"mapping": {"a": "scor"}}, "did you mean 'score'"),
        (SCHEMA, {"columns": ("score",), "mapping": {"score": "day"}}, "two columns are called 'score'"),
        (SCHEMA, {"key": "score"}, "cannot be the key"),
        (SCHEMA, {"key": "i"}, "did you mean 'id'"),
        (SCHEMA, {}, r"box \(list<item: float>\), raw \(binary\)"),
        (pa.schema({"id": pa.int64()}), {}, "no column to join"),
        (
            pa.schema([("id", pa.int64()), ("a", pa.int64()), ("a", pa.int64())]),
            {},
            r"duplicate column 'a' \(2 times\)",
        ),
    ],
)
def test_columns_that_cannot_be_joined_are_refused(schema, arguments, message):
    with pytest.raises(InputError, match=message):
        joined(schema, **arguments)


def test_a_name_that_the_dataset_has_is_refused_with_its_owner():
    samples = pa.schema({"__key__": pa.string(), "num_bytes": pa.int64()})
    other = Annotation("quality", "", pa.schema({"score": pa.float64()}), "", 0, 0, 0, 0, 0)
    refuse_clashes(["new"], samples, [other])
    with pytest.raises(InputError, match=r"annotation 'quality'(.|\n)*--map NEW=score"):
        refuse_clashes(["new", "score"], samples, [other])
    with pytest.raises(InputError, match="the sample tables"):
        refuse_clashes(["num_bytes"], samples, [other])


@pytest.mark.parametrize(
    ("name", "value"), [("jobs", 0), ("memory", 0), ("allow_duplicates", "any"), ("columns", "score"), ("resume", True)]
)
def test_options_that_cannot_be_used_are_refused(name, value):
    with pytest.raises(InputError, match=rf"invalid options(.|\n)*{name}"):
        AnnotateOptions(**{"overwrite": True, name: value})
