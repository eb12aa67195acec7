import gzip
import io
import json
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import webdataset
from hypothesis import example, given
from hypothesis import strategies as st
from webdataset import autodecode, tenbin

from alike import alike
from wdsplit.errors import CorruptDataError, InputError, PipelineError, WdsplitError
from wdsplit.loading.stages.decoders import decode_sample_stage
from wdsplit.loading.transport.collate import collate


class Bomb:
    """What a stranger may pickle: it does something when it is read."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def npy_of(header, payload=b""):
    """Return an npy with a header that numpy would not write."""
    text = repr(header).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + payload


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def sample_of(**fields):
    return {"__key__": "a/17", "__url__": "/data/000003.tar", "__position__": 5, "__pad__": False, **fields}


def decoded(name, payload, *handlers, **options):
    [sample] = decode_sample_stage(*handlers, **options)(iter([sample_of(**{name: payload})]))
    return sample[name]


# Values: those of webdataset

VALUES = {
    "txt": "größer".encode(),
    "cls": b" -17\n",
    "id": b"1_000",
    "index": b"9" * 30,
    "json": b'{"a": [1, 2.5, null, "\\u00e9"], "a": 18446744073709551616}',
    "meta.json": b"[NaN, Infinity, 1e400, -0, -0.0, -9223372036854775809]",
    "bin": b"\x00\xff",
    "pt": b"not ours",
    "cls.gz": gzip.compress(b"12"),
    "txt.gz": gzip.compress(b"a") + gzip.compress(b"b"),
    "gz": gzip.compress(b"raw"),
    "npy": npy(np.arange(6, dtype=">i2").reshape(2, 3)),
    "f.npy": npy(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
    "scalar.npy": npy(np.float32(3.5)),
    "none.npy": npy(np.zeros((3, 0, 2))),
    "text.npy": npy(np.array(["a", "bcd"])),
    "time.npy": npy(np.array(["2020-01-01"], "M8[D]")),
    "rows.npy": npy(np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])),
    "two.npy": npy(np.arange(3), version=(2, 0)),
    "three.npy": npy(np.array([(1,)], [("ä", "i4")]), version=(3, 0)),
    "npz": npz(x=np.arange(3), y=np.ones((2, 2))),
    "ten": bytes(tenbin.encode_buffer([np.arange(3), np.ones((2, 2), np.float32)])),
}


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_that_of_webdataset(name):
    expected = webdataset.autodecode.Decoder([])(sample_of(**{name: VALUES[name]}))[name]
    assert alike(decoded(name, VALUES[name]), expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.booleans())
def test_json_is_read_as_json_loads_reads_it(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    expected = json.loads(text)
    assert alike(decoded("json", text), text if expected is None else expected)


# What is decoded, and by whom


def test_only_the_fields_that_are_asked_for_are_decoded():
    for only in ("cls txt", ["cls", "txt"]):
        sample = decode_sample_stage(only=only).sample(sample_of(cls=b"3", txt=b"a", json=b"{}"))
        assert (sample["cls"], sample["txt"], sample["json"]) == (3, "a", b"{}")


def test_a_value_that_is_not_bytes_is_refused_or_left_alone():
    with pytest.raises(PipelineError, match=r"(?s)'cls' of sample 'a/17', /data/000003.tar.*found: int.*partial=True"):
        decoded("cls", 3)
    assert decoded("cls", 3, partial=True) == 3


def test_handlers_come_in_turn_and_have_the_first_word():
    def upper(key, data):
        return data.upper() if key == ".txt" else None

    assert decoded("txt", b"a", upper) == b"A"
    assert decoded("cls", b"3", upper) == 3
    assert decoded("pkl", b"mine", lambda key, data: data.decode()) == "mine"
    assert decoded("txt.gz", gzip.compress(b"a"), upper) == b"A"


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        (["rgb9"], {}, "'rgb9'"),
        ([None], {}, "None"),
        ([], {"max_field_bytes": 0}, "max_field_bytes"),
        ([], {"max_field_bytes": True}, "max_field_bytes"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, options, named):
    with pytest.raises(InputError, match=named):
        decode_sample_stage(*arguments, **options)


# Strangers


@pytest.mark.parametrize("name", ["pkl", "pth", "meta.pkl", "pkl.gz"])
def test_a_pickle_is_refused_unless_it_is_asked_for(name):
    payload = pickle.dumps(Bomb())
    if name.endswith(".gz"):
        payload = gzip.compress(payload)
    with pytest.raises(InputError, match=r"(?s)pickle.*'a/17', /data/000003.tar.*allow_pickle=True") as caught:
        decoded(name, payload)
    assert (caught.value.key, caught.value.url) == ("a/17", "/data/000003.tar")
    assert repr(name) in caught.value.place


def test_pickles_are_read_if_that_is_asked_for(monkeypatch):
    monkeypatch.delitem(autodecode.decoders, "pkl", raising=False)  # as in webdataset before 1.0.2
    objects = npy(np.array([{"a": 1}, None], object))
    assert decoded("pkl", pickle.dumps({1, 2}), allow_pickle=True) == {1, 2}
    assert decoded("npy", objects, allow_pickle=True).tolist() == [{"a": 1}, None]
    with_objects = npz(x=np.array([None], object))
    assert decoded("npz", with_objects, allow_pickle=True)["x"].tolist() == [None]


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", "O")]])
def test_objects_in_arrays_are_refused(dtype):
    array = np.empty(2, dtype)
    for name, payload in (("npy", npy(array)), ("npz", npz(x=array))):
        with pytest.raises(InputError, match=r"(?s)objects.*allow_pickle=True"):
            decoded(name, payload)


LYING = {
    "claims much": npy_of({"descr": "<f8", "fortran_order": False, "shape": (2**40,)}, b"x" * 64),
    "claims much of nothing": npy_of({"descr": "|S0", "fortran_order": False, "shape": (2**40,)}),
    "claims less than nothing": npy_of({"descr": "<f8", "fortran_order": False, "shape": (-2, -4)}, b"x" * 64),
    "claims much in one item": npy_of({"descr": ("<f8", (2**27,)), "fortran_order": False, "shape": ()}, b"x" * 8),
    "too short": npy(np.arange(9))[:-1],
    "long header": npy_of({"descr": "<f8", "fortran_order": False, "shape": (1,), "x": "y" * 20_000}, b"x" * 8),
    "other version": b"\x93NUMPY\x09" + npy(np.arange(3))[7:],
    "no npy": b"hello",
}


def peak_of(function):
    """Return the error that a function raises, and the most bytes that it took."""
    tracemalloc.start()
    try:
        with pytest.raises(WdsplitError) as caught:
            function()
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", LYING)
def test_an_npy_that_lies_is_refused_before_it_takes_memory(name):
    error, peak = peak_of(lambda: decoded("npy", LYING[name]))
    assert isinstance(error, CorruptDataError)
    assert "field 'npy' of sample 'a/17', /data/000003.tar" in error.place
    assert peak < 2**20


def test_a_gzip_bomb_is_refused_before_it_takes_memory():
    bomb = gzip.compress(bytes(2**26))
    error, peak = peak_of(lambda: decoded("txt.gz", bomb, max_field_bytes=2**20))
    assert isinstance(error, InputError)
    assert "max_field_bytes" in error.remedy
    assert peak < 2**22


def with_claimed_size(payload, size):
    """Return a zip of one member whose headers claim another size."""
    changed = bytearray(payload)
    struct.pack_into("<I", changed, 22, size)
    struct.pack_into("<I", changed, payload.index(b"PK\x01\x02") + 24, size)
    return bytes(changed)


def test_an_npz_that_inflates_to_too_much_is_refused_whatever_it_claims():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(2**26))
    honest = file.getvalue()
    error, peak = peak_of(lambda: decoded("npz", honest, max_field_bytes=2**20))
    assert isinstance(error, InputError)
    assert peak < 2**20
    error, peak = peak_of(lambda: decoded("npz", with_claimed_size(honest, 100), max_field_bytes=2**20))
    assert isinstance(error, CorruptDataError)
    assert peak < 2**20


def test_a_ten_that_points_backwards_is_refused():
    """Webdataset would go round in it for ever."""
    with pytest.raises(CorruptDataError, match="negative length"):
        decoded("ten", b"~TenBin~" + struct.pack("<q", -64) + bytes(64))


# Errors name the sample


@pytest.mark.parametrize(
    ("name", "payload", "cause"),
    [
        ("cls", b"x", ValueError),
        ("txt", b"\xff", UnicodeDecodeError),
        ("json", b"{", ValueError),
        ("txt.gz", gzip.compress(b"abc", mtime=0)[:-9], EOFError),
    ],
)
def test_a_damaged_field_is_named_with_its_sample_and_shard(name, payload, cause):
    with pytest.raises(CorruptDataError, match=rf"'{name}' of sample 'a/17', /data/000003.tar") as caught:
        decoded(name, payload)
    assert isinstance(caught.value.__cause__, cause)
    assert (caught.value.key, caught.value.url) == ("a/17", "/data/000003.tar")


def test_an_error_of_the_users_own_handler_keeps_its_type_and_gets_a_note():
    class MyError(Exception):
        pass

    def fail(key, data):
        raise MyError(key)

    with pytest.raises(MyError) as caught:
        decoded("cls", b"3", fail)
    assert caught.value.args == (".cls",)
    if hasattr(caught.value, "add_note"):
        assert caught.value.__notes__ == ["while decoding field 'cls' of sample 'a/17', /data/000003.tar"]


# Columns


def column_payloads(num_rows):
    """Draw the payloads of columns, mostly alike and sometimes not, some of them damaged."""
    shapes = st.sampled_from([(), (3,), (2, 2), (0,)])
    dtypes = st.sampled_from(["<f4", ">f4", "<i8", "|u1", "|b1", "<f2", "<c8", "<U2", "M8[s]"])
    array = st.builds(
        lambda shape, dtype, number: npy(np.full(shape, number).astype("i8").astype(dtype)),
        shapes,
        dtypes,
        st.integers(0, 1),
    )
    kinds = {
        "cls": st.integers(-(2**63), 2**63).map(lambda n: b"%d" % n) | st.just(b"x"),
        "id": st.integers(0, 99).map(lambda n: b"%d\n" % n),
        "txt": st.text(max_size=3).map(str.encode) | st.just(b"\xff"),
        "json": json_values.map(lambda value: json.dumps(value).encode()),
        "npy": array,
        "one.npy": st.integers(0, 9).map(lambda k: npy(np.arange(k, k + 4, dtype=">u2").reshape(2, 2))),
        "f.npy": st.integers(0, 9).map(lambda k: npy(np.asfortranarray(np.arange(k, k + 6).reshape(2, 3)))),
        "bin": st.binary(max_size=3),
        "cls.gz": st.integers(0, 9).map(lambda n: gzip.compress(b"%d" % n)),
    }

    def column(values):
        rows = st.lists(values, min_size=num_rows, max_size=num_rows)
        return rows | values.map(lambda value: [value] * num_rows)

    return st.fixed_dictionaries({}, optional={name: column(values) for name, values in kinds.items()})


def outcome(function):
    """Return what a function returns, or the error that it raises as text."""
    try:
        return function()
    except WdsplitError as error:
        return type(error).__name__, str(error), error.key, type(error.__cause__).__name__


def values_of(samples):
    return {name: column.data for name, column in collate(samples).items()}


@given(st.integers(1, 4).flatmap(column_payloads), st.sampled_from([None, ["cls", "npy"]]))
@example({"json": [b"null", b'"a"']}, None)
def test_columns_are_those_of_the_samples_they_are_made_of(columns, only):
    stage = decode_sample_stage(only=only)
    num_rows = max((len(values) for values in columns.values()), default=0)
    columns = {"__key__": [f"k{row}" for row in range(num_rows)], "__url__": ["s.tar"] * num_rows, **columns}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def split(block):
        return [dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True)]

    by_row = outcome(lambda: list(stage(rows)))
    by_column = outcome(lambda: split(stage.columns(columns)))
    if isinstance(by_row, list) and by_row:
        by_row, by_column = outcome(lambda: values_of(by_row)), outcome(lambda: values_of(by_column))
    assert alike(by_column, by_row)


def test_cbor_is_refused_because_its_reader_can_be_made_to_crash():
    with pytest.raises(InputError, match="cbor"):
        list(decode_sample_stage()([{"__key__": "a", "__url__": "u", "cbor": b"\x81" * 10}]))
