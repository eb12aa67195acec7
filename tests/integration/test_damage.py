"""Damaged parquet: either the right samples, or an error that names the file; never a sample that it does not hold."""

import random
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tables import converted, mixed_table, real_samples
from wdsplit.errors import InputError
from wdsplit.tables.read import matching_groups, open_inputs, read_rows

TABLE = mixed_table(60).select(["image", "caption", "label"])
MAPPING = {"jpg": "image", "txt": "caption", "cls": "label"}
KINDS = {
    "plain": {"compression": "none", "use_dictionary": False},
    "dictionary": {"compression": "snappy"},
    "pages of version 2": {"compression": "zstd", "data_page_version": "2.0"},
}
TRIALS = 20


def values_of(path):
    """Return what pyarrow reads of a file: the rows as the samples should have them."""
    rows = pq.read_table(path, page_checksum_verification=True).to_pylist()
    return [(row["image"], row["caption"].encode(), str(row["label"]).encode()) for row in rows]


def written(path, output):
    """Convert a file and return the samples; None if it was refused by name."""
    shutil.rmtree(output, ignore_errors=True)
    try:
        converted(path, output, shards=2, mapping=MAPPING)
    except InputError as error:
        assert str(path) in str(error)
        assert not output.exists() or not (output / "wdsplit.json").exists()
        return None
    return [(fields.get("jpg"), fields.get("txt"), fields.get("cls")) for _, fields in real_samples(output)]


def with_flipped_bits(data, stop, seed):
    """Give copies of a file in which one bit before a place is the other way round, and where it is."""
    chance = random.Random(seed)
    for _ in range(TRIALS):
        place, damaged = chance.randrange(stop), bytearray(data)
        damaged[place] ^= 1 << chance.randrange(8)
        yield place, damaged


@pytest.mark.parametrize("kind", ["dictionary", "pages of version 2"])
def test_a_bit_that_was_flipped_in_pages_with_checksums_never_changes_a_sample(tmp_path, kind):
    path, refused = tmp_path / "in.parquet", 0
    pq.write_table(TABLE, path, row_group_size=20, write_page_checksum=True, **KINDS[kind])
    data, right = path.read_bytes(), values_of(path)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for place, damaged in with_flipped_bits(data, footer, kind):
        path.write_bytes(damaged)
        found = written(path, tmp_path / "out")
        assert found in (None, right), f"byte {place}"
        refused += found is None
    assert refused > TRIALS // 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_that_was_flipped_anywhere_gives_what_the_file_now_holds_or_an_error(tmp_path, kind):
    path = tmp_path / "in.parquet"
    pq.write_table(TABLE, path, row_group_size=20, **KINDS[kind])
    data = path.read_bytes()
    for place, damaged in with_flipped_bits(data, len(data), kind):
        path.write_bytes(damaged)
        found = written(path, tmp_path / "out")
        assert found is None or found == values_of(path), f"byte {place}"


def test_a_truncated_file_is_refused_by_name(tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(TABLE, path, row_group_size=20)
    data, chance = path.read_bytes(), random.Random(0)
    for length in [0, 1, 4, 8, 11, 12, len(data) - 1, *(chance.randrange(len(data)) for _ in range(10))]:
        path.write_bytes(data[:length])
        assert written(path, tmp_path / "out") is None, f"{length} bytes"


@pytest.mark.slow
def test_a_forged_footer_gives_rows_or_an_error_and_never_ends_the_process(tmp_path):
    """Arrow ends the process for some footers when it is asked what they say of a column, or prunes by them."""
    path, refused = tmp_path / "in.parquet", 0
    pq.write_table(pa.table({"a": range(40), "b": [[row] for row in range(40)]}), path, compression="none")
    data = path.read_bytes()
    for place in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8):
        forged = bytearray(data)
        forged[place] ^= (0x10, 0x20)[place % 2]
        path.write_bytes(forged)
        try:
            table = open_inputs([str(path)])
            name = table.schema.names[0]
            matching_groups(table, table.files[0], pc.field(name) > 30, [name])
            assert sum(map(len, read_rows(table, 0, table.num_rows, table.schema.names))) == table.num_rows
        except InputError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 100
