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


def names(schema, **arguments):
    """Return the columns by their names in the dataset."""
    found = joined(schema, **arguments)
    return dict(zip(found.schema.names, found.columns, strict=True))


def test_all_columns_but_the_key_are_joined_unless_some_are_named():
    assert list(names(PLAIN)) == ["score", "kind", "day", "at"]
    assert names(SCHEMA, mapping={"quality": "score"}) == {"quality": "score"}
    assert names(SCHEMA, mapping={"quality": "score"}, columns=("day",)) == {"quality": "score", "day": "day"}
    assert names(SCHEMA, mapping={"score": "score"}, columns=("score",)) == {"score": "score"}
    numbered = pa.schema([("id", pa.string()), ("score", pa.float64()), ("__index_level_0__", pa.int64())])
    assert list(names(numbered)) == ["score"], "row numbers of pandas are joined only if they are asked for"
    assert list(names(numbered, columns=("__index_level_0__",))) == ["__index_level_0__"]


def test_types_are_those_of_sample_tables_and_categories_become_texts_unless_they_are_numbers():
    kinds = {"score": "float", "kind": "string", "day": "date32[day]", "at": "timestamp[ms, tz=UTC]"}
    assert {field.name: str(field.type) for field in joined(PLAIN).schema} == kinds
    schema = with_class_names(pa.schema({"id": pa.int64(), "cls": pa.int64()}), {"cls": ["cat", "dog"]})
    assert names_of(joined(schema, mapping={"label": "cls"}).schema) == {"label": ("cat", "dog")}


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [
        (SCHEMA, {"columns": ("scor",)}, "did you mean 'score'"),
        (SCHEMA, {"columns": ("score",), "mapping": {"score": "day"}}, "two columns are called 'score'"),
        (SCHEMA, {"key": "score"}, "cannot be the key"),
        (SCHEMA, {"key": "i"}, "did you mean 'id'"),
        (SCHEMA.append(pa.field("empty", pa.null())), {}, r"column 'empty' has the type null"),
        (SCHEMA, {"mapping": {"jpg": "score"}}, "column 'score' of type halffloat cannot be written"),
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


def test_payloads_become_fields_by_the_rules_of_a_conversion_and_a_mapping_says_what_else_does():
    schema = pa.schema(
        {
            **dict(zip(SCHEMA.names, SCHEMA.types, strict=True)),
            "A b": pa.string(),
            "meta": pa.struct({"x": pa.int64()}),
            "latent": pa.fixed_shape_tensor(pa.float32(), [2, 3]),
            "tokens": pa.list_(pa.int32(), 4),
        }
    )
    found = joined_columns(schema, "id", AnnotateOptions(), {"raw": b"\x89PNG\r\n\x1a\n"})
    written = {each.name: (each.column, each.encoding) for each in found.fields}
    assert written == {
        "box.npy": ("box", "npy"),
        "raw.png": ("raw", "bytes"),
        "a_b.txt": ("A b", "text"),
        "meta.json": ("meta", "json"),
        "latent.npy": ("latent", "npy"),
        "tokens.npy": ("tokens", "npy"),
    }
    assert found.schema.names == ["score", "kind", "day", "at", "A b"], "a text is a column too, a category only that"
    mapped = joined(schema, mapping={"caption.txt": "A b", "quality": "score", "word": "A b", "latent": "raw"})
    assert [each.name for each in mapped.fields] == ["caption.txt", "latent"]
    assert mapped.schema.names == ["quality", "word"]


def test_a_name_that_the_dataset_has_is_refused_with_its_owner():
    samples = pa.schema({"__key__": pa.string(), "num_bytes": pa.int64()})
    other = Annotation("quality", "", pa.schema({"score": pa.float64()}), "", 0, 0, 0, 0, 0)
    schema = pa.schema(
        {"id": pa.int64(), **dict.fromkeys(("new", "score", "num_bytes"), pa.float64()), "raw": pa.binary()}
    )

    def refused(**mapping):
        refuse_clashes(joined(schema, mapping=mapping), samples, ["jpg", "raw.bin"], [other])

    refused(new="new", raw="raw")
    with pytest.raises(InputError, match=r"annotation 'quality'(.|\n)*--map NEW=score"):
        refused(new="new", score="score")
    with pytest.raises(InputError, match="the sample tables"):
        refused(num_bytes="num_bytes")
    with pytest.raises(InputError, match=r"a field 'raw.bin' already(.|\n)*--map"):
        refuse_clashes(joined(schema, columns=("raw",)), samples, ["jpg", "raw.bin"], [other])
    with pytest.raises(InputError, match="'missing' is reserved"):
        refused(missing="raw")


@pytest.mark.parametrize(
    ("name", "value"), [("jobs", 0), ("memory", 0), ("allow_duplicates", "any"), ("columns", "score"), ("resume", True)]
)
def test_options_that_cannot_be_used_are_refused(name, value):
    with pytest.raises(InputError, match=rf"invalid options(.|\n)*{name}"):
        AnnotateOptions(**{"overwrite": True, name: value})
