import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odd_keys import ESCAPED, PARTS
from wdsplit.errors import InputError
from wdsplit.fields.keys import escape_keys, find_duplicate_keys, hash_keys, is_key_type, number_keys, number_width
from wdsplit.tar.names import MAX_COMPONENT_BYTES, MAX_NAME_BYTES, escape_key

raw_keys = st.text(min_size=1, max_size=6) | st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join)
columns = st.lists(raw_keys, max_size=20)
text_types = st.sampled_from([pa.string(), pa.large_string()])


def where(row):
    return f"part-3.parquet, row {row}"


def keys_of(values, kind=None):
    return escape_keys(pa.array(values, kind or pa.string()), where)


@given(columns, text_types)
@example(list(ESCAPED), pa.string())
def test_a_column_is_escaped_as_each_of_its_rows(values, kind):
    keys = keys_of(values, kind)
    assert keys.type == pa.large_string()
    assert keys.to_pylist() == [escape_key(value) for value in values]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64()])
def test_integers_are_keys_in_decimal(kind):
    top = 2 ** (kind.bit_width - (not str(kind).startswith("u"))) - 1
    low = 0 if str(kind).startswith("u") else -top - 1
    assert keys_of([0, 7, top, low], kind).to_pylist() == ["0", "7", str(top), str(low)]


@pytest.mark.parametrize("letter", ["a", ".", "é"])
@pytest.mark.parametrize(("room", "folder"), [(MAX_COMPONENT_BYTES - 2, ""), (MAX_NAME_BYTES - 2, "x/")])
def test_a_key_is_refused_by_its_row_when_it_is_too_long_escapes_included(letter, room, folder):
    """A name between slashes fits into a file system, the whole name into what is sane."""
    step = len(escape_key(letter))
    fits = folder * ((room - 240) // 2 if folder else 0)
    fits += letter * ((room - len(fits)) // step)
    assert keys_of([fits]).to_pylist() == [escape_key(fits)]
    with pytest.raises(InputError, match="too long") as caught:
        keys_of(["a", fits + letter, "b"])
    assert caught.value.place == where(1)
    assert f"{len(escape_key(fits + letter))} bytes" in caught.value.found
    assert caught.value.key == escape_key(fits + letter)


GOLDEN = {
    "": 0x24E351EC0A843F23,
    "a": 0x2A2304CDF6FF8160,
    "00000017": 0x3E3E1494BF51F8F5,
    "train/n01440764/n01440764_10026": 0xF3C60873372DF5BF,
    "k" * 99: 0x8766960073E233D7,
    "k" * 104: 0xF88D862CDE2614E5,
    "k" * 105: 0x7065242F0720A6E3,
    "k" * 250: 0x4BEA6B5787495405,
}
"""A key of up to 104 bytes fills thirteen words."""


def test_the_hashes_of_keys_are_part_of_what_does_not_change():
    keys = pa.array(list(GOLDEN), pa.large_string())
    assert dict(zip(GOLDEN, hash_keys(keys).tolist(), strict=True)) == GOLDEN
    assert [hash_keys(keys[row : row + 1]).tolist() for row in range(len(keys))] == [[one] for one in GOLDEN.values()]


@given(st.integers(0, 10**12), st.integers(0, 300))
def test_numbers_are_keys_that_sort_are_unique_and_need_no_escape(first, count):
    width = number_width(first + count)
    keys = number_keys(np.arange(first, first + count), width).to_pylist()
    assert keys == sorted(set(keys))
    assert [int(key) for key in keys] == list(range(first, first + count))
    assert {len(key) for key in keys} <= {width}
    assert keys == [escape_key(key) for key in keys]


def test_the_width_is_8_digits_and_grows_when_the_last_row_needs_more():
    assert [number_width(num_rows) for num_rows in (0, 10**8, 10**8 + 1, 10**12 + 1)] == [8, 8, 9, 13]


def test_strings_and_integers_and_nothing_else_can_be_keys():
    assert all(map(is_key_type, (pa.string(), pa.large_string(), pa.uint64(), pa.dictionary(pa.int32(), pa.string()))))
    assert not any(map(is_key_type, (pa.float64(), pa.bool_(), pa.binary(), pa.list_(pa.string()), pa.date32())))


# Duplicate keys


def words(text):
    return pa.array(text.split(), pa.large_string())


def duplicates(*batches, hashes=None):
    """Return the duplicate keys of batches that are given as words, and how often the keys were read."""
    reads = []

    def read_keys(suspects):
        reads.append(suspects)
        for number, batch in enumerate(batches):
            yield words(batch), f"batch {number}"

    found = list(find_duplicate_keys(hashes or [hash_keys(words(batch)) for batch in batches], read_keys))
    return [tuple(one) for one in found], len(reads)


def test_each_further_place_of_a_key_is_found_with_its_first():
    found, reads = duplicates("a b c", "d b", "b e a")
    assert found == [("b", "batch 0", "batch 1"), ("b", "batch 0", "batch 2"), ("a", "batch 0", "batch 2")]
    assert reads == 1


def test_keys_are_not_read_where_all_hashes_differ():
    assert duplicates("a b c", "d e", "") == ([], 0)
    assert duplicates() == ([], 0)


def test_equal_hashes_of_different_keys_are_no_duplicates():
    hashes = [hash_keys(words("a b c a"))]
    assert duplicates("a b c", hashes=hashes) == ([], 1)
