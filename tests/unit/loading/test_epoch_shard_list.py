import copy
import gc
import io
import itertools
import pickle
import random
import tarfile
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.errors import DatasetNotFoundError, InputError, TopologyError
from wdsplit.loading.epoch_shard_list import EpochShardList, next_turn

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

NUM_SHARDS, SHARD_SAMPLES = 12, 3

LOADERS = {
    "in process": {},
    "forked": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forked, persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
}
SPAWNED = {
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "spawned, persistent": {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
}

with_any_workers = pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
with_spawned_workers = pytest.mark.parametrize("options", SPAWNED.values(), ids=SPAWNED)
with_forked_workers = pytest.mark.parametrize("persistent_workers", [False, True])


@pytest.fixture(scope="module", autouse=True)
def tars_that_webdataset_leaves_open():
    """Collect them before other tests run, in which they would be errors."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def tars(tmp_path_factory):
    """Return the pattern of small tars."""
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for sample in range(SHARD_SAMPLES):
                member = tarfile.TarInfo(f"{shard:03d}-{sample}.txt")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"x"))
    return f"{folder}/{{000..{NUM_SHARDS - 1:03d}}}.tar"


def pipeline_of(*first):
    """Return a pipeline as users write it: what comes first, the split, the samples' URLs and keys."""
    split = (wds.split_by_node, wds.split_by_worker)
    return wds.DataPipeline(*first, *split, wds.tarfile_to_samples(), wds.to_tuple("__url__", "__key__"))


def loader_of(*first, **options):
    return torch.utils.data.DataLoader(pipeline_of(*first), batch_size=None, **options)


def be_rank(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def be_worker(monkeypatch, worker, num_workers):
    """Be a worker for webdataset, in this process."""
    monkeypatch.setenv("WORKER", str(worker))
    monkeypatch.setenv("NUM_WORKERS", str(num_workers))


def read(loader):
    """Return the URLs of an epoch in the order in which they began, having seen all samples of each."""
    delivered = [tuple(sample) for sample in loader]
    urls = list(dict.fromkeys(url for url, _ in delivered))
    assert sorted(delivered) == sorted(
        (url, f"{Path(url).stem}-{sample}") for url in urls for sample in range(SHARD_SAMPLES)
    )
    return urls


def dealt(order, rank, world_size, num_workers):
    """Return the URLs of each worker of a rank."""
    return [order[rank::world_size][worker::num_workers] for worker in range(num_workers)]


def assert_parts(urls, parts):
    """Check that workers have read their parts, each in its order."""
    assert sorted(urls) == sorted(itertools.chain(*parts))
    for part in parts:
        assert [url for url in urls if url in part] == part


def urls_of(shards):
    return [item["url"] for item in shards]


# The order


def test_the_order_of_an_epoch_is_a_permutation_that_no_library_can_change():
    shards = EpochShardList("{0..9}", seed=3)
    assert ["".join(shards.order(epoch)) for epoch in (0, 1, 2**40)] == [
        "2458760193",
        "8374259061",
        "5164389072",
    ]
    assert urls_of(shards) == shards.order(0)


def test_no_two_pairs_of_seed_and_epoch_have_the_same_order():
    lists = [EpochShardList("{00..19}", seed=seed) for seed in (*range(8), 1000)]
    orders = {tuple(shards.order(epoch)) for shards in lists for epoch in range(20)}
    assert len(orders) == 9 * 20


def test_how_the_shards_were_listed_does_not_change_a_shuffled_order():
    urls = [f"{number}.tar" for number in range(20)]
    assert EpochShardList(urls[::-1]).order(4) == EpochShardList(urls).order(4)


def test_unshuffled_epochs_are_the_list_itself():
    shards = EpochShardList("b{1..3}::a", shuffle=False)
    for _ in range(2):
        assert urls_of(shards) == ["b1", "b2", "b3", "a"] == shards.urls
    assert len(shards) == 4


# With webdataset's splitters, under torch's DataLoader


@with_any_workers
def test_ranks_and_workers_read_each_shard_once_in_the_order_of_the_epoch_that_was_set(tars, monkeypatch, options):
    shards = EpochShardList(tars, seed=1)
    for rank in range(3):
        be_rank(monkeypatch, rank, 3)
        loader = loader_of(shards, **options)
        for epoch in (0, 7, 8, 7):
            shards.set_epoch(epoch)
            parts = dealt(shards.order(epoch), rank, 3, options.get("num_workers", 1))
            assert_parts(read(loader), parts)
    assert len({tuple(shards.order(epoch)) for epoch in (0, 7, 8)}) == 3


@with_any_workers
def test_epochs_that_nobody_sets_are_counted_alike_on_all_ranks(tars, monkeypatch, options):
    for rank in range(2):
        be_rank(monkeypatch, rank, 2)
        shards = EpochShardList(tars, epoch=5)
        loader = loader_of(shards, **options)
        for epoch in (5, 6, 7):
            assert shards.epoch == epoch
            assert_parts(read(loader), dealt(shards.order(epoch), rank, 2, options.get("num_workers", 1)))


@with_spawned_workers
def test_spawned_workers_count_epochs_and_see_the_one_that_is_set(tars, options):
    shards = EpochShardList(tars)
    loader = loader_of(shards, **options)
    for epoch in (0, 1):
        assert_parts(read(loader), dealt(shards.order(epoch), 0, 1, loader.num_workers))
    if loader.persistent_workers:
        shards.set_epoch(9)
        assert_parts(read(loader), dealt(shards.order(9), 0, 1, 2))


def be_slow(worker):
    """Let the other workers be far ahead."""
    time.sleep(0.5 * (worker == 1))


@with_forked_workers
@pytest.mark.parametrize("is_set", [False, True])
def test_workers_agree_on_the_epoch_after_an_iteration_that_some_of_them_never_began(tars, persistent_workers, is_set):
    shards = EpochShardList(tars)
    loader = loader_of(
        shards, num_workers=2, persistent_workers=persistent_workers, worker_init_fn=be_slow, prefetch_factor=1
    )
    for epoch in (0, 1, 2):
        if is_set:
            shards.set_epoch(epoch)
        if epoch < 2:
            next(iter(loader))
        else:
            assert_parts(read(loader), dealt(shards.order(epoch), 0, 1, 2))


def test_epochs_are_counted_on_when_the_number_of_workers_changes(tars):
    shards = EpochShardList(tars)
    for epoch, num_workers in enumerate((0, 3, 1, 0, 2)):
        urls = read(loader_of(shards, num_workers=num_workers))
        assert_parts(urls, dealt(shards.order(epoch), 0, 1, num_workers or 1))


def test_a_pipeline_that_repeats_gets_a_new_order_each_time(tars):
    shards = EpochShardList(tars)
    pipeline = pipeline_of(shards).repeat(2)
    urls = [url for url, _ in pipeline][::SHARD_SAMPLES]
    assert urls == shards.order(0) + shards.order(1)


def test_a_run_resumes_with_the_order_it_would_have_had(tars):
    whole = EpochShardList(tars)
    epochs = [urls_of(whole) for _ in range(4)]
    counting, choosing = EpochShardList(tars, epoch=2), EpochShardList(tars)
    choosing.set_epoch(3)
    assert [urls_of(counting), urls_of(counting)] == epochs[2:]
    assert urls_of(choosing) == epochs[3]
    assert (whole.epoch, counting.epoch, choosing.epoch) == (4, 4, 3)


# What webdataset's own stages do instead


def trap_of(kind, urls):
    """Return the first stages of a pipeline that looks right."""
    return {
        "fixed seed": (wds.SimpleShardList(urls, seed=0),),
        "detshuffle": (wds.SimpleShardList(urls), wds.detshuffle(seed=0)),
        "unseeded": (wds.SimpleShardList(urls), wds.shuffle(100)),
        "ours": (EpochShardList(urls, seed=0),),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "is_exact", "is_new"),
    [("fixed seed", True, False), ("detshuffle", True, False), ("unseeded", False, True), ("ours", True, True)],
)
def test_shuffles_of_webdataset_repeat_an_order_or_lose_shards_and_ours_does_neither(tars, kind, is_exact, is_new):
    loader = loader_of(*trap_of(kind, tars), num_workers=2)
    random.seed(0)
    epochs = [[url for url, _ in loader] for _ in range(2)]
    exact = [sorted(urls) == sorted(wds.shardlists.expand_urls(tars) * SHARD_SAMPLES) for urls in epochs]
    assert all(exact) == is_exact
    assert (epochs[0] != epochs[1]) == is_new


# Shards that ranks and workers do not divide


def shares_of(shards, monkeypatch, world_size, num_workers):
    """Return the URLs of each reader in the list's first epoch."""
    shares = []
    for rank, worker in itertools.product(range(world_size), range(num_workers)):
        be_rank(monkeypatch, rank, world_size)
        be_worker(monkeypatch, worker, num_workers)
        source = copy.deepcopy(shards)
        shares.append(urls_of(wds.DataPipeline(source, wds.split_by_node, wds.split_by_worker)))
    return shares


def test_uneven_shards_are_left_as_they_are_with_one_warning_that_names_the_numbers(monkeypatch):
    shards = EpochShardList("{0..5}")
    with pytest.warns(
        UserWarning, match="6 shards do not divide by 4 ranks x 1 workers: 2 of these 4 readers get 2, 2"
    ):
        shares = shares_of(shards, monkeypatch, 4, 1)
    assert list(map(len, shares)) == [2, 2, 1, 1]
    assert shares == [shards.order(0)[rank::4] for rank in range(4)]
    monkeypatch.delenv("WORKER")
    be_rank(monkeypatch, 1, 4)
    urls_of(shards)
    be_rank(monkeypatch, 0, 4)
    with pytest.warns(UserWarning, match="do not divide"):
        urls_of(shards)
    urls_of(copy.copy(shards))


def test_workers_of_a_loader_warn_once_in_all_their_epochs(tars):
    """A warning is an error here, in forked workers too."""
    shards = EpochShardList(wds.shardlists.expand_urls(tars)[:3])
    loader = loader_of(shards, num_workers=2)
    with pytest.raises(UserWarning, match="3 shards do not divide by 1 ranks x 2 workers") as caught:
        read(loader)
    traceback.clear_frames(caught.tb)
    assert_parts(read(loader), dealt(shards.order(1), 0, 1, 2))


@pytest.mark.parametrize(("num_shards", "world_size", "num_workers"), [(6, 4, 1), (7, 2, 3), (2, 3, 2), (1, 2, 2)])
def test_padded_shards_give_readers_equally_many_and_repeat_from_the_start_of_the_order(
    monkeypatch, num_shards, world_size, num_workers
):
    shards = EpochShardList([str(shard) for shard in range(num_shards)], tail="pad")
    shares = shares_of(shards, monkeypatch, world_size, num_workers)
    readers = world_size * num_workers
    each = -(-num_shards // readers)
    assert set(map(len, shares)) == {each}
    repeated = itertools.islice(itertools.cycle(shards.order(0)), each * readers)
    assert sorted(itertools.chain(*shares)) == sorted(repeated)


@pytest.mark.parametrize(("num_shards", "world_size", "num_workers"), [(6, 4, 1), (7, 2, 3), (12, 3, 2)])
def test_dropped_shards_are_the_last_of_the_order(monkeypatch, num_shards, world_size, num_workers):
    shards = EpochShardList([str(shard) for shard in range(num_shards)], tail="drop")
    shares = shares_of(shards, monkeypatch, world_size, num_workers)
    kept = num_shards // (world_size * num_workers) * world_size * num_workers
    assert len(set(map(len, shares))) == 1
    assert sorted(itertools.chain(*shares)) == sorted(shards.order(0)[:kept])


def test_dropping_all_shards_is_refused(monkeypatch):
    be_rank(monkeypatch, 0, 4)
    with pytest.raises(InputError, match="no shard is left"):
        urls_of(EpochShardList("{1..3}", tail="drop"))


def test_shards_that_divide_bring_no_warning_and_are_the_same_with_any_tail(monkeypatch):
    for tail in ("uneven", "pad", "drop"):
        shares = shares_of(EpochShardList("{0..5}", tail=tail), monkeypatch, 3, 2)
        assert sorted(itertools.chain(*shares)) == list("012345")


def test_a_rank_that_cannot_be_is_refused(monkeypatch):
    be_rank(monkeypatch, 4, 4)
    with pytest.raises(TopologyError):
        urls_of(EpochShardList("{0..7}"))


# Copies


def test_copies_share_the_epoch_and_deep_copies_and_pickles_go_their_own_way():
    shards = EpochShardList("{0..9}", epoch=2)
    urls_of(shards)
    others = [copy.deepcopy(shards), pickle.loads(pickle.dumps(shards))]
    copied = copy.copy(shards)
    shards.set_epoch(8)
    assert copied.epoch == 8
    for other in others:
        assert other.epoch == 3
        assert urls_of(other) == shards.order(3)
        other.set_epoch(4)
        assert (other.epoch, shards.epoch) == (4, 8)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda shards: pickle.loads(pickle.dumps(shards))])
def test_a_deep_copy_and_a_pickle_reach_their_own_workers(tars, duplicate):
    shards = duplicate(EpochShardList(tars))
    loader = loader_of(shards, num_workers=2, persistent_workers=True)
    for epoch in (0, 3):
        shards.set_epoch(epoch)
        assert_parts(read(loader), dealt(shards.order(epoch), 0, 1, 2))


def test_a_composed_pipeline_sees_the_epoch_of_the_list(tars):
    shards = EpochShardList(tars)
    composed = pipeline_of(shards).compose(wds.select(bool))
    shards.set_epoch(6)
    assert read(composed) == shards.order(6)


# Epochs that are read again


def test_reading_an_epoch_that_was_set_once_more_warns_once():
    shards = EpochShardList("{0..9}")
    shards.set_epoch(2)
    first = urls_of(shards)
    with pytest.warns(UserWarning, match="epoch 2 is read again in the same order"):
        assert urls_of(shards) == first
    assert urls_of(shards) == first


def test_an_epoch_that_was_left_early_or_set_again_or_is_not_shuffled_begins_again_without_a_warning():
    shards, unshuffled = EpochShardList("{0..9}"), EpochShardList("{0..9}", shuffle=False)
    shards.set_epoch(2)
    next(iter(shards))
    assert urls_of(shards) == shards.order(2)
    shards.set_epoch(2)
    assert urls_of(shards) == shards.order(2)
    unshuffled.set_epoch(1)
    assert urls_of(unshuffled) == urls_of(unshuffled)


# Counting


@st.composite
def iterations(draw):
    """Draw iterations of loaders: for each the workers that begin in it, those together that begin at once."""
    begun = st.permutations(range(draw(st.integers(1, 5)))).flatmap(
        lambda workers: st.lists(st.integers(0, len(workers)), max_size=3).map(
            lambda cuts: [workers[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(workers)]) if a < b]
        )
    )
    return [(draw(begun), draw(st.booleans())) for _ in range(draw(st.integers(1, 6)))]


@given(iterations())
def test_workers_agree_on_the_turn_whoever_comes_first_and_although_some_never_began(drawn):
    turns, last = np.zeros(6, np.int64), -1
    for number, (together, is_left_early) in enumerate(drawn):
        found = set()
        for workers in together[: 1 if is_left_early else None]:
            notes = [next_turn(turns.copy(), worker, number + 1) for worker in workers]
            turns[workers] = notes
            found |= {turn_of(note) for note in notes}
        assert found == {last + 1}
        last += 1


def turn_of(note):
    return (note >> 21) % 2**22 + note % 2**21 - 1


def test_a_worker_that_begins_late_joins_the_turn_of_its_own_iteration():
    turns = np.zeros(3, np.int64)
    for turn in range(3):
        turns[1] = next_turn(turns, 1, key=7)
        assert turn_of(int(turns[1])) == turn
    turns[2] = next_turn(turns, 2, key=7)
    assert turn_of(int(turns[2])) == 0
    turns[0] = next_turn(turns, 0, key=0)
    assert turn_of(int(turns[0])) == 3
    assert turn_of(next_turn(turns, 1, key=8)) == 4


def test_more_turns_than_can_be_counted_are_refused():
    full = np.array([2**43 + 2**21 - 1], np.int64)
    with pytest.raises(InputError, match="call set_epoch"):
        next_turn(full, 0, key=1)
    with pytest.raises(InputError, match="call set_epoch"):
        next_turn(np.array([(2**22 - 1) << 21 | 1], np.int64), 0, key=0)


# What the list is made from


def test_urls_come_from_patterns_lists_and_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_WHERE", "pipe:cat x")
    assert EpochShardList("a{1..2}::b").urls == ["a1", "a2", "b"]
    assert EpochShardList("${WHERE}/0").urls == ["pipe:cat x/0"]
    assert EpochShardList(["{1..2}", tmp_path / "0.tar"]).urls == ["{1..2}", str(tmp_path / "0.tar")]
    assert EpochShardList(url for url in "ab").urls == ["a", "b"]


def test_the_folder_of_a_dataset_means_its_shards(numbers):
    for folder in (numbers, Path(numbers)):
        shards = EpochShardList(folder, shuffle=False)
        assert shards.urls == [f"{numbers}/{shard:06d}.tar" for shard in range(7)]
        pipeline = wds.DataPipeline(shards, wds.tarfile_to_samples())
        rows = sorted(int(sample["cls"]) for sample in pipeline if not sample["__key__"].startswith("_pad_/"))
        assert rows == list(range(101))


@pytest.mark.parametrize(
    ("urls", "match"),
    [
        ([], "there are no shards"),
        ("", "not URLs of shards"),
        (["a", ""], "found: nothing"),
        (["a", 3], "found: int"),
        ([{"url": "a"}], "found: dict"),
        ("a{1..2", "cannot be expanded"),
        ("${NOT_SET}/a", "cannot be expanded"),
    ],
)
def test_what_names_no_shards_is_refused(urls, match):
    with pytest.raises(InputError, match=match):
        EpochShardList(urls)


def test_a_folder_without_a_dataset_is_refused(tmp_path):
    (tmp_path / "0.tar").touch()
    with pytest.raises(DatasetNotFoundError, match="wdsplit index"):
        EpochShardList(tmp_path)


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": "0"}, {"tail": "fill"}, {"epoch": -1}, {"epoch": 0.5}])
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(InputError):
        EpochShardList("a", **options)


@pytest.mark.parametrize("epoch", [-1, 1.0, True, None])
def test_an_epoch_that_cannot_be_is_refused(epoch):
    with pytest.raises(InputError, match="epoch"):
        EpochShardList("a").set_epoch(epoch)
