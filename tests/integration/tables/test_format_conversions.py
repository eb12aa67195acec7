"""Tables of every format give the same shards."""

from itertools import pairwise

import pytest

from format_inputs import cut_small
from tables import converted, options, shard_files, write_table
from wdsplit.conversion.convert import convert
from written_formats import WRITERS, numbered_table, write_as

TABLE = numbered_table(60)
PLAN = {
    "shards": 4,
    "null": "omit",
    "mapping": {"txt": "caption", "cls": "label", "a.json": "score", "b.cls": "is good"},
}
every_format = pytest.mark.parametrize("name", WRITERS)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Cut files into blocks and batches of a few rows, so that their boundaries are met everywhere."""
    cut_small(monkeypatch)


@pytest.fixture(scope="module")
def as_parquet(tmp_path_factory):
    """Return the shards that the table gives as parquet, in order and shuffled."""
    folder = tmp_path_factory.mktemp("parquet")
    path = write_table(folder / "a.parquet", TABLE, 13)
    return {shuffle: _converted(path, folder / str(shuffle), shuffle=shuffle) for shuffle in (False, True)}


def _converted(inputs, out, **changes):
    converted(inputs, out, **{**PLAN, **changes})
    return shard_files(out)


@every_format
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_table_gives_the_shards_that_it_gives_as_parquet(name, shuffle, tmp_path, as_parquet, tiny_blocks):
    path = write_as(tmp_path, name, TABLE)
    assert _converted(path, tmp_path / "out", shuffle=shuffle) == as_parquet[shuffle]


@pytest.mark.parametrize("name", ["stream.arrow", "a.jsonl"])
def test_two_jobs_give_the_same_shards(name, tmp_path, as_parquet, tiny_blocks):
    path = write_as(tmp_path, name, TABLE)
    assert _converted(path, tmp_path / "out", jobs=2) == as_parquet[False]


@every_format
def test_several_files_give_the_shards_of_one(name, tmp_path, as_parquet):
    cuts = [0, 0, 1, 20, 20, 60]
    paths = [
        write_as(tmp_path / str(number), name, TABLE.slice(first, stop - first))
        for number, (first, stop) in enumerate(pairwise(cuts))
    ]
    assert _converted(paths, tmp_path / "out") == as_parquet[False]


@every_format
def test_a_run_is_resumed(name, tmp_path, as_parquet):
    path = write_as(tmp_path, name, TABLE)

    def stop(progress):
        if progress.done >= 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        convert([path], str(tmp_path / "out"), options(**PLAN), stop)
    assert _converted(path, tmp_path / "out", resume=True) == as_parquet[False]
