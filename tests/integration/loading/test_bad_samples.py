"""Bad samples that others take the places of: `Dataset(on_bad_sample="substitute")`."""

import json
import logging
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import wdsplit
from bad_samples import (
    Refusing,
    damage_header,
    expected_substitutes,
    in_batches,
    place_of,
    refusing,
    truncate_shard,
    with_substitutes,
)
from made_datasets import delivering, global_batches, numbers_dataset, sized_dataset
from tables import reading_ahead, wait_for_threads
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, PipelineError

GLOBAL_BATCH = 12
TOPOLOGIES = [(1, 0, "process"), (2, 3, "thread"), (3, 2, "thread")]
PERCENT = {0: set(), 1: {40}, 5: {3, 4, 40, 77, 100}}
"""Of 101 rows, those that are bad."""


def opened(path, **options):
    return wdsplit.Dataset(str(path), on_bad_sample="substitute", **{"max_bad_samples": 1000, **options})


def loaders(path, stages, topology, **options):
    world_size, num_workers, workers = topology
    return [
        wdsplit.Loader(
            stages(opened(path, rank=rank, world_size=world_size, **options)),
            GLOBAL_BATCH // world_size,
            num_workers=num_workers,
            workers=workers,
        )
        for rank in range(world_size)
    ]


def batches(path, stages, topology=TOPOLOGIES[0], **options):
    return global_batches(loaders(path, stages, topology, **options))


def expected(path, bad, num_batches, **order):
    return in_batches(expected_substitutes(path, GLOBAL_BATCH * num_batches, bad, **order), GLOBAL_BATCH)


@pytest.fixture
def damaged(numbers, tmp_path):
    """Return a copy of a dataset of 101 rows that a test may damage."""
    return shutil.copytree(numbers, tmp_path / "train")


# The same substitutes everywhere


def rows_of(loaders):
    """Return the rows of the global batches of loaders of tuples, sorted by their first column."""
    return [
        sorted(row for part in parts for row in zip(*(list(map(plain, column)) for column in part), strict=True))
        for parts in zip(*loaders, strict=True)
    ]


def plain(value):
    return int(value) if isinstance(value, bytes) else value.item() if hasattr(value, "item") else value


@pytest.mark.parametrize(("topology", "shards", "lanes"), [((2, 3, "thread"), 7, 4), ((3, 2, "process"), 6, 6)])
def test_damaged_samples_and_shards_that_were_cut_off_have_the_same_substitutes(tmp_path, shards, lanes, topology):
    """A shard that is a whole lane gets samples of the next lane."""
    path = numbers_dataset(tmp_path / "lanes", 101, shards=shards, lanes=lanes, window=4)
    bad = PERCENT[5] | truncate_shard(path, 60)
    for row in PERCENT[5]:
        damage_header(path, row)
    assert batches(path, delivering, topology, bad_samples_file=tmp_path / "bad.jsonl") == expected(path, bad, 9)
    assert len(Path(tmp_path / "bad.jsonl").read_text().splitlines()) == len(bad)
    of_columns = loaders(path, lambda dataset: dataset.to_tuple("__position__", "cls", "__pad__"), topology)
    assert rows_of(of_columns) == expected(path, bad, 9)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(sum),
    lanes=st.integers(1, 5),
    window=st.integers(1, 4),
    topology=st.sampled_from([(1, 0, "process"), (2, 3, "thread"), (3, 0, "process")]),
    epoch=st.integers(0, 3),
    tail=st.sampled_from(["pad", "drop"]),
    chance=st.randoms(use_true_random=False),
    first_step=st.integers(0, 3),
)
def test_property(tmp_path_factory, counts, lanes, window, topology, epoch, tail, chance, first_step):
    """All ranks and workers together give what plain Python gives, also from the middle on."""
    total = sum(counts)
    assume(total >= lanes)  # of a lane without samples the model knows nothing
    path = sized_dataset(tmp_path_factory.mktemp("sized"), counts, lanes, window)
    good = chance.sample(range(total), chance.randint(1, total))
    bad = set(range(total)) - set(good)
    made = loaders(path, lambda dataset: refusing(dataset, bad), topology, tail=tail)
    for loader in made:
        loader.set_epoch(epoch)
    position = min(first_step, len(made[0]) - 1) * GLOBAL_BATCH if len(made[0]) else 0
    state = {**made[0].state_dict(), "position": position}
    for loader in made:
        loader.load_state_dict(state)
    wanted = expected(path, bad, len(made[0]), epoch=epoch, tail=tail)
    assert global_batches(made) == wanted[position // GLOBAL_BATCH :]


def drawn(sample, generator):
    """Add a number of chance; some numbers make the sample bad."""
    number = int(generator.integers(10))
    if sample["cls"] in PERCENT[5] or number == 0:
        raise ValueError(f"drew {number}")
    return {**sample, "drawn": number}


def test_a_substitute_draws_the_random_numbers_of_its_own_position(numbers):
    """Those of the bad one may be what made a stage fail."""

    def drawing(dataset):
        return dataset.decode().map_random(drawn).to_tuple("__position__", "cls", "drawn", "__pad__")

    found = [rows_of(loaders(numbers, drawing, topology)) for topology in TOPOLOGIES]
    assert found[0] == found[1] == found[2]
    delivered = [row for batch in found[0] for row in batch]
    own = {(row, number) for _, row, number, pad in delivered if not pad}
    replaced = [(row, number) for position, row, number, pad in delivered if pad and position < 101]
    assert len(replaced) > 5
    assert set(replaced) <= own
    assert own.isdisjoint((row, 0) for row in range(101))


def test_the_substitute_in_a_mixture_is_of_the_same_lane(tmp_path):
    numbers = numbers_dataset(tmp_path / "a", 60, shards=6, lanes=3, window=4)
    others = numbers_dataset(tmp_path / "b", 30, shards=3, lanes=3, window=4)
    sources, bad = {numbers: 0.6, others: 0.4}, {3, 4, 17, 25}

    def made(topology, bad, **options):
        world_size, num_workers, workers = topology
        found = []
        for rank in range(world_size):
            dataset = wdsplit.mix(sources, num_samples=90, rank=rank, world_size=world_size, **options)
            stages = dataset.decode().map(Refusing(bad)).to_tuple("__position__", "cls", "__pad__", "__source__")
            size = GLOBAL_BATCH // world_size
            found.append(wdsplit.Loader(stages, size, num_workers=num_workers, workers=workers))
        return rows_of(found)

    whole = [row for batch in made(TOPOLOGIES[0], ()) for row in batch]
    options = {"on_bad_sample": "substitute", "max_bad_samples": 100}
    found = [made(topology, bad, **options) for topology in TOPOLOGIES]
    assert found[0] == found[1] == found[2]
    assert [row for batch in found[0] for row in batch] == with_substitutes(whole, 3, bad)


@pytest.mark.parametrize(("topology", "where"), [(TOPOLOGIES[1], "disk"), (TOPOLOGIES[2], "bucket")])
def test_the_substitute_in_a_view_is_one_of_its_samples(damaged, bucket, topology, where):
    """Of most windows a part is read; the samples that were left out are not bad."""
    bad = {10, 12, 50, 83}
    rows = {row for row in range(101) if (row % 3 != 2 and row < 60) or row in bad}
    view = {"keys": [f"{row:08d}" for row in sorted(rows)]}
    whole = [row for batch in batches(damaged, delivering, **view) for row in batch]
    assert {row for _, row, _ in whole} == rows
    for row in (10, 50):
        damage_header(damaged, row)
    path = bucket.put(damaged) if where == "bucket" else damaged
    found = batches(path, lambda dataset: refusing(dataset, bad), topology, **view)
    assert [row for batch in found for row in batch] == with_substitutes(whole, 4, bad)


# Stages


def one_late(samples):
    before = next(samples)
    for sample in samples:
        yield before
        before = sample
    yield before


def test_a_stage_that_does_not_give_one_item_for_each_sample_is_an_error(numbers):
    """Those that give none or several are in test_loader.py."""
    with pytest.raises(PipelineError, match="took another sample"):
        list(opened(numbers).compose(one_late))


# Iteration without a Loader


def test_a_plain_dataloader_gives_the_substitutes_of_the_same_lanes(numbers):
    dataset = refusing(opened(numbers), PERCENT[5]).batched(5, collation_fn=None)
    delivered = [tuple(item) for batch in DataLoader(dataset, batch_size=None, num_workers=2) for item in batch]
    wanted = {position: (position, row, pad) for position, row, pad in expected_substitutes(numbers, 101, PERCENT[5])}
    assert sorted(item for item in delivered if item[0] < 101) == sorted(wanted.values())


# Damage


@pytest.mark.parametrize(("cached", "num_workers"), [(False, 2), (True, 0)])
def test_damage_in_a_bucket_has_the_same_substitutes_with_a_cache_and_without(
    damaged, bucket, tmp_path, cached, num_workers
):
    for row in PERCENT[5]:
        damage_header(damaged, row)
    cut_off = truncate_shard(damaged, 60)
    options, before = {"cache_dir": str(tmp_path / "cache"), "cache_size": "1GB"} if cached else {}, reading_ahead()
    found = batches(bucket.put(damaged), delivering, (1, num_workers, "thread"), **options)
    assert found == expected(damaged, PERCENT[5] | cut_off, 9)
    wait_for_threads(before)


def test_a_missing_file_is_no_bad_sample(damaged):
    Path(damaged, "000002.tar.places").unlink()
    with pytest.raises(DatasetNotFoundError):
        list(opened(damaged))


# Limits


@pytest.mark.parametrize("bad", [range(250), range(20, 280)])
def test_long_runs_of_bad_samples_are_tried_once_each(tmp_path, bad):
    path, calls = sized_dataset(tmp_path / "one", [300], 1, 50), []

    def counting(sample):
        calls.append(sample["cls"])
        return Refusing(bad)(sample)

    dataset = opened(path, shuffle=False).decode().map(counting)
    assert sum(sample["__pad__"] for sample in dataset) == len(bad)
    assert len(calls) < 3 * 300


def test_a_dataset_without_a_good_sample_is_an_error_that_names_the_first_ones(tmp_path):
    path = sized_dataset(tmp_path / "one", [3, 3], 2, 2)
    with pytest.raises(PipelineError, match="all samples are bad") as caught:
        list(refusing(opened(path), range(6)))
    assert "ValueError: row" in str(caught.value) and "000000.tar" in str(caught.value)


@pytest.mark.parametrize(
    ("max_bad", "is_raised", "num_workers"), [(4, True, 0), (5, False, 3), (0.03, True, 3), (0.04, False, 0)]
)
def test_more_bad_samples_than_are_accepted_are_an_error(numbers, tmp_path, max_bad, is_raised, num_workers):
    """The 5 rows of 101 come once in an epoch, whichever workers meet them; 4 % of 101 samples are rounded up."""
    bad = PERCENT[5]
    file = tmp_path / "bad.jsonl"
    dataset = refusing(opened(numbers, max_bad_samples=max_bad, bad_samples_file=file, tail="drop"), bad)
    loader = wdsplit.Loader(dataset, 1, num_workers=num_workers, workers="thread")
    if not is_raised:
        assert [len(list(loader)) for _ in range(3)] == [101, 101, 101]
        return
    with pytest.raises(PipelineError, match="bad samples on this rank in epoch 0") as caught:
        list(loader)
    assert str(file) in str(caught.value) and "ValueError: row" in str(caught.value)


# What is said of them


def test_each_bad_sample_is_listed_once_in_a_file_whoever_meets_it(damaged, tmp_path):
    file = tmp_path / "listed" / "bad.jsonl"
    damage_header(damaged, 50)

    def stages(dataset):
        return refusing(dataset, PERCENT[5])

    made = loaders(damaged, stages, (2, 2, "process"), bad_samples_file=file)
    for _ in range(2):
        global_batches(made)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    rows = {50, *PERCENT[5]}
    assert sorted(line["key"] for line in lines) == sorted(f"{row:08d}" for row in rows)
    assert sorted(Path(line["shard"]).name for line in lines) == sorted(place_of(damaged, row)[0].name for row in rows)
    assert Counter(line["error"] for line in lines) == {"ValueError": 5, "CorruptDataError": 1}
    assert all({"sample", "epoch", "position", "message"} <= line.keys() for line in lines)


def test_bad_samples_are_counted_and_logged_one_by_one_up_to_ten(numbers, caplog):
    bad = set(range(0, 60, 3))
    loader = wdsplit.Loader(refusing(opened(numbers, tail="drop"), bad), 1)
    before = loader.statistics()
    with caplog.at_level(logging.INFO, "wdsplit"):
        list(loader)
    made = loader.statistics()
    assert made.bad_samples == made.as_dict()["bad_samples"] == 20
    assert "; 20 bad samples; " in made.summary(before)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warnings if "replaced a bad sample" in text]) == 10
    assert "ValueError: row" in warnings[0]
    assert loader.statistics().bad_samples == made.bad_samples
    list(loader)
    assert loader.statistics().bad_samples == 40


def test_raising_stays_the_default(damaged):
    with pytest.raises(ValueError, match="row 3 is bad"):
        list(refusing(wdsplit.Dataset(str(damaged)), {3}))
    damage_header(damaged, 3)
    with pytest.raises(CorruptDataError):
        list(wdsplit.Dataset(str(damaged)))
