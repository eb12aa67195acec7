"""Catalogs, and the sidecars that need no dataset; real readers open them in tests/integration/shards."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tars import SIZES, binary, payload
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.errors import InputError
from wdsplit.shards.emit import SIDECARS
from wdsplit.shards.sidecars import CatalogBuilder, dump_catalog, dump_dali, parse_catalog
from wdsplit.tar.members import build_body, parse_members


@st.composite
def sample_batches(draw):
    """Draw batches of samples: keys, and for each field the payloads, None where a sample lacks it."""
    fields = draw(st.lists(st.sampled_from(("jpg", "cls", "seg.png")), min_size=1, unique=True))
    batches, first = [], 0
    for count in draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
        rows = range(first, first + count)
        sizes = [draw(st.lists(st.sampled_from((None, *SIZES)), min_size=count, max_size=count)) for _ in fields]
        sizes[0] = [0 if all(column[i] is None for column in sizes) else sizes[0][i] for i in range(count)]
        columns = {
            field: binary([None if size is None else payload(row, number, size) for row, size in zip(rows, column)])  # noqa: B905
            for number, (field, column) in enumerate(zip(fields, sizes, strict=True))
        }
        folder = draw(st.sampled_from(("dir", "d" * 88, "e" * 92, "f" * 200)))
        batches.append((pa.array([f"{folder}/key_{row}" for row in rows], pa.large_string()), columns))
        first += count
    return batches


def catalog_of(batches):
    builder = CatalogBuilder()
    for keys, fields in batches:
        builder.append(keys, fields)
    return builder.build()


@given(sample_batches())
def test_a_catalog_says_where_members_stand_in_the_tar(batches):
    catalog = catalog_of(batches)
    bodies = [build_body(keys, fields) for keys, fields in batches]
    data = b"".join(bytes(body.join()) for body in bodies)
    members = parse_members(memoryview(data), catalog.offsets)
    present = catalog.sizes >= 0
    names = [f"{key}.{field}" for key in catalog.keys.to_pylist() for field in catalog.fields]
    assert [name for name, there in zip(names, present.reshape(-1), strict=True) if there] == [
        name.decode() for name in members.names
    ]
    assert catalog.starts[present].tolist() == members.starts.tolist()
    assert catalog.sizes[present].tolist() == members.sizes.tolist()
    assert present.sum(axis=1).tolist() == members.counts.tolist()
    assert catalog.offsets[-1] == len(data)


@given(sample_batches())
def test_a_catalog_that_was_written_is_read_back(batches):
    catalog = catalog_of(batches)
    again = parse_catalog(dump_catalog(catalog))
    assert (again.keys.to_pylist(), again.fields) == (catalog.keys.to_pylist(), catalog.fields)
    for name in ("offsets", "starts", "sizes"):
        assert np.array_equal(getattr(again, name), getattr(catalog, name))


@given(sample_batches())
def test_how_samples_come_in_batches_changes_nothing(batches):
    tables = [pa.table({"key": keys, **fields}) for keys, fields in batches]
    whole = pa.concat_tables(tables).combine_chunks()
    columns = {name: whole.column(name).combine_chunks() for name in whole.column_names}
    assert dump_dali(catalog_of(batches)) == dump_dali(catalog_of([(columns.pop("key"), columns)]))


def test_a_catalog_of_nothing_is_read_back_too():
    catalog = CatalogBuilder().build()
    assert parse_catalog(dump_catalog(catalog)).offsets.tolist() == [0]
    assert dump_dali(catalog) == b"v1.2 0\n"


def test_the_dali_index_of_a_small_shard_is_this():
    fields = {"jpg": binary([bytes(513), b""]), "cls": binary([None, b"7"])}
    catalog = catalog_of([(pa.array(["a/1", "a/2"], pa.large_string()), fields)])
    assert dump_dali(catalog) == b"v1.2 2\njpg 512 513 a/1.jpg\njpg 2048 0 a/2.jpg cls 2560 1 a/2.cls\n"


def test_a_sidecar_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="no such sidecar"):
        ConvertOptions(emit=("wids", "tfrecord"))


def test_the_options_hold_each_sidecar_once():
    assert ConvertOptions(emit=("wids", "dali", "wids")).emit == ("dali", "wids")
    assert SIDECARS == ("dali", "energon", "wids")
