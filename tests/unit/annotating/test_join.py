import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.annotating.match import match
from wdsplit.annotating.passes import partitions_of
from wdsplit.errors import InputError
from wdsplit.fields.keys import escape_keys
from wdsplit.tar.names import escape_key

TEXTS = st.text("ab_x2E. é/", min_size=1, max_size=4)


def texts(values):
    return pa.array(values, pa.large_string())


def chunks(values):
    """Return texts in chunks of one and two, some of them empty."""
    return pa.chunked_array([texts(values[:1]), texts([]), texts(values[1:3]), texts(values[3:])])


def matched(rows, samples, duplicates="first"):
    """Match rows as a table has their keys with samples as tars have theirs."""
    keys = [escape_key(key) for key in rows]
    raw = [None if one == key else one for one, key in zip(rows, keys, strict=True)]
    return match(chunks(keys), chunks(raw), chunks(samples), duplicates)


@given(st.lists(TEXTS, unique=True, max_size=8), st.lists(TEXTS, max_size=8), st.sampled_from(["first", "last"]))
def test_rows_are_those_of_a_dict(originals, rows, duplicates):
    samples, escaped = [escape_key(key) for key in originals], {escape_key(row) for row in rows}
    if any({row, escape_key(row)} <= {*samples} and row not in escaped for row in rows):
        with pytest.raises(InputError, match="a key belongs to two samples"):
            matched(rows, samples, duplicates)
        return
    found = matched(rows, samples, duplicates)
    use = {escape_key(row): row if escape_key(row) in samples else None for row in rows}
    names = [escape_key(row) if use[escape_key(row)] is not None else row for row in rows]
    order = list(enumerate(names)) if duplicates == "last" else list(enumerate(names))[::-1]
    row_of = {name: number for number, name in order}
    assert found.rows.tolist() == [row_of.get(sample, -1) for sample in samples]
    assert found.extra.tolist() == [number for number, name in enumerate(names) if name not in samples]
    kept = set(found.rows.tolist()) | set(found.extra.tolist())
    assert found.duplicates.tolist() == [number for number in range(len(rows)) if number not in kept]


@given(TEXTS, st.integers(1, 7))
def test_a_key_and_what_it_was_escaped_from_are_in_one_of_about_equal_partitions(original, num_partitions):
    sample = escape_key(original)
    rows = escape_keys(texts([original, sample]), str)
    partitions = partitions_of(pa.concat_arrays([rows, texts([sample])]), num_partitions)
    assert len(set(partitions.tolist())) == 1
    assert 0 <= partitions[0] < num_partitions
    assert np.bincount(partitions_of(texts([f"{number:08d}" for number in range(1000)]), 4)).min() > 200
