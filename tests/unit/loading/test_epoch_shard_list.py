import copy
import itertools
from pathlib import Path

import pytest
import webdataset as wds

from wdsplit.errors import InputError
from wdsplit.loading.epoch_shard_list import EpochShardList


def be_rank(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def urls_of(shards):
    return [item["url"] for item in shards]


def test_the_order_of_an_epoch_is_a_permutation_that_no_library_can_change():
    shards = EpochShardList("{0..9}", seed=3)
    assert ["".join(shards.order(epoch)) for epoch in (0, 1, 2**40)] == ["2458760193", "8374259061", "5164389072"]
    assert urls_of(shards) == shards.order(0)


# Shards that ranks and workers do not divide


def shares_of(shards, monkeypatch, world_size, num_workers):
    """Return the URLs of each reader in the list's first epoch."""
    shares = []
    for rank, worker in itertools.product(range(world_size), range(num_workers)):
        be_rank(monkeypatch, rank, world_size)
        monkeypatch.setenv("WORKER", str(worker))  # that of webdataset, in this process
        monkeypatch.setenv("NUM_WORKERS", str(num_workers))
        source = copy.deepcopy(shards)
        shares.append(urls_of(wds.DataPipeline(source, wds.split_by_node, wds.split_by_worker)))
    return shares


def test_uneven_shards_are_left_as_they_are_with_one_warning_that_names_the_numbers(monkeypatch):
    shards = EpochShardList("{0..5}")
    with pytest.warns(
        UserWarning, match="6 shards cannot be divided by 4 ranks x 1 worker: 2 of these 4 readers get 2, 2"
    ):
        shares = shares_of(shards, monkeypatch, 4, 1)
    assert list(map(len, shares)) == [2, 2, 1, 1]
    assert shares == [shards.order(0)[rank::4] for rank in range(4)]
    monkeypatch.delenv("WORKER")
    be_rank(monkeypatch, 1, 4)
    urls_of(shards)
    be_rank(monkeypatch, 0, 4)
    with pytest.warns(UserWarning, match="cannot be divided"):
        urls_of(shards)
    shards.set_epoch(1)
    urls_of(copy.copy(shards))


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize(("num_shards", "world_size", "num_workers"), [(7, 2, 3), (1, 2, 2), (12, 3, 2)])
def test_readers_get_equally_many_shards_padded_from_the_start_of_the_order_or_without_the_last_ones(
    monkeypatch, num_shards, world_size, num_workers, tail
):
    shards = EpochShardList([str(shard) for shard in range(num_shards)], tail=tail)
    readers = world_size * num_workers
    if tail == "drop" and num_shards < readers:
        with pytest.raises(InputError, match="no shard is left"):
            shares_of(shards, monkeypatch, world_size, num_workers)
        return
    shares = shares_of(shards, monkeypatch, world_size, num_workers)
    each = -(-num_shards // readers) if tail == "pad" else num_shards // readers
    assert set(map(len, shares)) == {each}
    expected = itertools.islice(itertools.cycle(shards.order(0)), each * readers)
    assert sorted(itertools.chain(*shares)) == sorted(expected)


# Epochs that are read again


def test_reading_an_epoch_that_was_set_once_more_warns_once():
    shards = EpochShardList("{0..9}")
    shards.set_epoch(2)
    first = urls_of(shards)
    with pytest.warns(UserWarning, match="epoch 2 is repeated in the same order"):
        assert urls_of(shards) == first
    assert urls_of(shards) == first


# What the list is made from


def test_urls_come_from_patterns_lists_and_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_WHERE", "pipe:cat x")
    assert EpochShardList("a{1..2}::b").urls == ["a1", "a2", "b"]
    assert EpochShardList("${WHERE}/0").urls == ["pipe:cat x/0"]
    assert EpochShardList(["{1..2}", tmp_path / "0.tar"]).urls == ["1", "2", str(tmp_path / "0.tar")]
    assert EpochShardList(["pipe:awk '{1..2}'", "a"]).urls == ["pipe:awk '{1..2}'", "a"]
    assert EpochShardList(url for url in "ab").urls == ["a", "b"]


def test_the_folder_of_a_dataset_means_its_shards(numbers):
    shards = EpochShardList(Path(numbers), shuffle=False)
    assert shards.urls == [f"{numbers}/{shard:06d}.tar" for shard in range(7)]


def test_a_glob_means_the_files_it_matches_sorted_and_a_file_with_a_name_like_a_pattern_itself(tmp_path):
    for name in ("b.tar", "a.tar", "[c].tar", "d.txt"):
        (tmp_path / name).touch()
    assert EpochShardList(f"{tmp_path}/?.tar").urls == [f"{tmp_path}/{name}" for name in ("a.tar", "b.tar")]
    assert EpochShardList([tmp_path / "[c].tar"]).urls == [f"{tmp_path}/[c].tar"]
    with pytest.raises(InputError, match=r"no match"):
        EpochShardList(f"{tmp_path}/[xy].tar")


def test_an_epoch_that_is_resumed_leaves_out_the_shards_that_were_used_up(monkeypatch):
    shards = EpochShardList("{0..9}", tail="pad")
    shards.set_epoch(5)
    whole = shares_of(shards, monkeypatch, 2, 2)
    shards.set_epoch(5, first_shard=4)
    assert shares_of(shards, monkeypatch, 2, 2) == [share[1:] for share in whole]
    assert sorted(itertools.chain(*shares_of(shards, monkeypatch, 3, 1))) == sorted(shards.order(5)[4:])
    shards.set_epoch(6)
    assert sorted(itertools.chain(*shares_of(shards, monkeypatch, 1, 1))) == sorted(shards.order(6))


@pytest.mark.parametrize(
    ("urls", "match"),
    [
        ([], "there are no shards"),
        ("", "invalid URLs of shards"),
        (["a", 3], "found: int"),
        ("a{1..2", "invalid pattern"),
    ],
)
def test_what_names_no_shards_is_refused(urls, match):
    with pytest.raises(InputError, match=match):
        EpochShardList(urls)
