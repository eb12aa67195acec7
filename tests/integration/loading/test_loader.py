import copy
import inspect
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import traceback
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import webdataset

from made_datasets import (
    all_deliveries,
    converted,
    deliveries,
    delivering,
    expected_batches,
    global_batches,
    interleaved,
    loaders_of,
    numbers_dataset,
    real_rows,
    sized_dataset,
)
from wdsplit.errors import (
    CorruptDataError,
    DatasetNotFoundError,
    InputError,
    PipelineError,
    StateError,
    WdsplitError,
)
from wdsplit.loading import announcing
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.loader_arguments import ARGUMENTS_OF_TORCH

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

in_process_and_workers = pytest.mark.parametrize("num_workers", [0, 2])


def through_json(state):
    return json.loads(json.dumps(state))


def loader_of(path, batch_size=12, num_workers=0, persistent_workers=False, **options):
    dataset = delivering(Dataset(path, rank=0, world_size=1, **options))
    return Loader(dataset, batch_size, num_workers=num_workers, persistent_workers=persistent_workers)


@contextmanager
def raises(kind, match):
    """Do as pytest.raises does; then let go of what the traceback holds, so that workers end now and not at a gc."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    traceback.clear_frames(caught.tb)


# The order on any topology


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world_size", [1, 3, 12])
def test_global_batches_are_the_order_cut_in_steps_on_any_number_of_ranks(numbers, world_size, shuffle):
    batches = global_batches(loaders_of(numbers, world_size, epoch=3, shuffle=shuffle))
    assert batches == expected_batches(numbers, 9, epoch=3, shuffle=shuffle)
    assert real_rows(itertools.chain(*batches)) == list(range(101))


@pytest.mark.parametrize(
    ("counts", "lanes", "world_size"),
    [
        ([5] * 7, 4, 8),  # fewer shards than ranks
        ([3] * 6, 6, 4),  # webdataset gave the ranks 6, 6, 3 and 3 samples
        ([1, 90, 2, 0, 40, 7, 1], 3, 4),  # sizes that differ wildly
        ([30], 5, 3),  # one shard
        ([1], 4, 2),  # one sample: all others are pads
        ([2, 3], 16, 4),  # fewer samples than lanes
    ],
)
def test_any_shards_give_equal_steps_and_each_sample_once(tmp_path, counts, lanes, world_size):
    path = sized_dataset(tmp_path, counts, lanes, window=4)
    for shuffle in (True, False):
        loaders = loaders_of(path, world_size, global_batch=24, shuffle=shuffle)
        batches = global_batches(loaders)
        assert {len(loader) for loader in loaders} == {len(batches)} == {-(-sum(counts) // 24)}
        assert real_rows(itertools.chain(*batches)) == list(range(sum(counts)))
        assert [len(batch) for batch in batches] == [24] * len(batches)


# Tails


@pytest.mark.parametrize("world_size", [1, 4])
def test_pad_fills_the_last_step_with_repeated_samples_that_are_flagged(numbers, world_size):
    batches = global_batches(loaders_of(numbers, world_size))
    pads = [row for batch in batches for _, row, pad in batch if pad]
    assert len(pads) == 9 * 12 - 101
    assert not any(pad for batch in batches[:-1] for _, _, pad in batch)
    assert set(pads) <= set(range(101))


@pytest.mark.parametrize("world_size", [1, 4])
def test_drop_repeats_nothing_and_leaves_out_less_than_a_global_batch(numbers, world_size):
    loaders = loaders_of(numbers, world_size, tail="drop")
    batches = global_batches(loaders)
    delivered = list(itertools.chain(*batches))
    assert len(batches) == len(loaders[0]) == 101 // 12
    assert not any(pad for _, _, pad in delivered)
    assert len({row for _, row, _ in delivered}) == len(delivered) == 8 * 12


def test_drop_gives_no_step_to_fewer_samples_than_a_global_batch_and_goes_on_to_the_next_epoch(numbers):
    loader = loader_of(numbers, batch_size=102, tail="drop")
    assert len(loader) == 0
    assert list(loader) == []
    assert loader.epoch == 1


@pytest.mark.parametrize("num_workers", [0, 3])
def test_uneven_delivers_each_sample_once_and_nothing_twice(tmp_path, num_workers):
    path = sized_dataset(tmp_path, [1, 90, 2, 0, 40, 7, 1], lanes=3, window=4)
    loaders = loaders_of(path, 4, global_batch=28, num_workers=num_workers, tail="uneven")
    epochs = [list(map(deliveries, loader)) for loader in loaders]
    delivered = list(itertools.chain(*itertools.chain(*epochs)))
    assert sorted(row for _, row, _ in delivered) == list(range(141))
    assert not any(pad for _, _, pad in delivered)
    assert [len(epoch) for epoch in epochs] == [len(loader) for loader in loaders_of(path, 4, 28, tail="uneven")]
    for epoch in epochs:
        assert all(len(batch) == 7 for batch in epoch[:-1])


# Epochs


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_set_epoch_reaches_workers_that_are_running_and_new_ones(numbers, num_workers, persistent_workers):
    loader = loader_of(numbers, num_workers=num_workers, persistent_workers=persistent_workers)
    for epoch in (0, 5, 5, 2):
        loader.set_epoch(epoch)
        assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9, epoch=epoch)


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_after_an_early_break_the_epoch_starts_anew_and_one_warning_says_so(numbers, num_workers, persistent_workers):
    loader = loader_of(numbers, num_workers=num_workers, persistent_workers=persistent_workers)
    for number, batch in enumerate(loader):
        assert deliveries(batch) == expected_batches(numbers, 3)[number]
        if number == 2:
            break
    with pytest.warns(UserWarning, match=r"epoch 0 begins again .* call loader.set_epoch\(epoch\)") as warned:
        list(itertools.islice(loader, 3))
        assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9)
    assert len(warned) == 1
    assert loader.epoch == 1


def test_a_loop_that_ends_early_is_not_warned_of_where_epochs_are_set_or_not_shuffled(numbers):
    loader = loader_of(numbers)
    for epoch in (0, 1, 1):
        loader.set_epoch(epoch)
        list(itertools.islice(loader, 3))
    validation = Loader(Dataset(numbers, shuffle=False), 12)
    for _ in range(3):
        list(itertools.islice(validation, 3))


@pytest.mark.parametrize("looks", [lambda loader: None, lambda loader: (loader.epoch, loader.step)])
@pytest.mark.parametrize("on_dataset", [False, True])
@pytest.mark.parametrize("epoch", [0, 1, 4])
def test_an_epoch_set_during_an_epoch_is_that_of_the_next_pass_whoever_looks(numbers, looks, on_dataset, epoch):
    loader = loader_of(numbers)
    batches = iter(loader)
    next(batches)
    (loader.dataset if on_dataset else loader).set_epoch(epoch)
    for _ in batches:
        looks(loader)
    assert (loader.epoch, loader.state_dict()["epoch"], loader.state_dict()["position"]) == (epoch, epoch, 0)
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9, epoch=epoch)
    assert loader.epoch == epoch + 1


def test_a_look_at_the_first_batch_after_a_resume_does_not_restart_the_epoch(numbers):
    loader = loader_of(numbers)
    list(itertools.islice(loader, 4))
    loader.load_state_dict(loader.state_dict())
    next(iter(loader))
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9)[4:]
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9, epoch=1)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_two_iterations_side_by_side_do_not_take_each_others_batches(numbers, persistent_workers):
    """Either each gives the whole epoch in order, or the first one is refused when the second has begun."""
    loader = loader_of(numbers, num_workers=1, persistent_workers=persistent_workers)
    first, second = iter(loader), iter(loader)
    batches = expected_batches(numbers, 2)
    assert deliveries(next(second)) == batches[0]
    try:
        seen = [deliveries(next(first)), deliveries(next(first))]
    except WdsplitError:
        seen = batches
    assert seen == batches
    assert deliveries(next(second)) == batches[1]


# Resume

TOPOLOGIES = [(2, 0), (3, 0), (1, 0), (4, 0)]
"""World sizes and workers of a run that is stopped and continued again and again."""


def resumed(path, world_size, state, num_workers=0, **options):
    """Return loaders of new datasets, as another program would make them, that have loaded a state."""
    loaders = loaders_of(path, world_size, num_workers=num_workers, **options)
    for loader in loaders:
        loader.load_state_dict(through_json(state))
    return loaders


def state_of(loaders):
    """Return the state of all ranks, which must agree."""
    states = [through_json(loader.state_dict()) for loader in loaders]
    assert all(state == states[0] for state in states)
    return states[0]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_resuming_at_any_batch_twice_on_other_ranks_gives_the_rest_in_the_same_order(numbers, tail, shuffle):
    options = {"tail": tail, "shuffle": shuffle, "seed": 5}
    whole = global_batches(loaders_of(numbers, 1, epoch=2, **options))
    assert whole == expected_batches(numbers, len(whole), epoch=2, **options)
    for first in range(len(whole)):
        second = (first * 5 + 1) % (len(whole) - first)
        worlds = itertools.islice(itertools.cycle(TOPOLOGIES), first, None)
        loaders = loaders_of(numbers, next(worlds)[0], epoch=2, **options)
        seen = global_batches(loaders, first)
        loaders = resumed(numbers, next(worlds)[0], state_of(loaders), **options)
        seen += global_batches(loaders, second)
        loaders = resumed(numbers, next(worlds)[0], state_of(loaders), **options)
        seen += global_batches(loaders)
        assert seen == whole
        assert state_of(loaders)["epoch"] == 3
        assert state_of(loaders)["position"] == 0


@in_process_and_workers
def test_a_state_counts_what_was_delivered_and_not_what_was_prefetched(numbers, num_workers):
    loader = loader_of(numbers, num_workers=num_workers)
    assert loader.state_dict()["position"] == 0
    for number, _ in enumerate(loader):
        if number < 8:
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 12 * (number + 1))
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)


def test_set_epoch_to_another_epoch_drops_the_position(numbers):
    loader = loader_of(numbers)
    list(itertools.islice(loader, 4))
    rest = loader_of(numbers)
    rest.load_state_dict(loader.state_dict())
    rest.set_epoch(3)
    assert rest.state_dict()["position"] == 0
    assert [deliveries(batch) for batch in rest] == expected_batches(numbers, 9, epoch=3)
    rest.set_epoch(0)
    assert [deliveries(batch) for batch in rest] == expected_batches(numbers, 9)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_that_runs_can_go_back_to_a_state(numbers, num_workers):
    loader = loader_of(numbers, num_workers=num_workers, persistent_workers=num_workers > 0)
    list(itertools.islice(loader, 3))
    state = through_json(loader.state_dict())
    loader.set_epoch(0)
    list(loader)
    loader.load_state_dict(state)
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9)[3:]


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"shuffle": False}, {"lanes": 5}, {"window": 5}, {"tail": "drop"}], ids=str
)
def test_a_state_of_other_options_is_refused_by_name(numbers, other):
    state = loader_of(numbers).state_dict()
    with pytest.raises(StateError, match=next(iter(other))):
        loader_of(numbers, **other).load_state_dict(state)


def test_a_state_of_another_dataset_is_refused_and_that_of_a_copy_is_not(numbers, whole_lanes, tmp_path):
    loader = loader_of(numbers)
    list(itertools.islice(loader, 4))
    with pytest.raises(StateError, match="fingerprint"):
        loader_of(whole_lanes, lanes=4, window=4).load_state_dict(loader.state_dict())
    moved = loader_of(shutil.copytree(numbers, tmp_path / "moved"))
    moved.load_state_dict(loader.state_dict())
    assert [deliveries(batch) for batch in moved] == expected_batches(numbers, 9)[4:]


# Batches


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_collate_fn_gets_the_samples_of_the_batch_in_order(numbers, num_workers):
    dataset = delivering(Dataset(numbers))
    loader = Loader(dataset, 12, num_workers=num_workers, collate_fn=lambda samples: ("mine", samples))
    assert list(loader) == [("mine", batch) for batch in expected_batches(numbers, 9)]


def test_samples_are_collated_to_tensors_and_lists(numbers):
    batch = next(iter(Loader(Dataset(numbers).decode(), 4)))
    assert list(batch) == ["__key__", "__url__", "__position__", "__pad__", "cls", "txt"]
    assert batch["__position__"].tolist() == [0, 1, 2, 3]
    assert batch["__pad__"].dtype == torch.bool
    assert batch["__key__"] == [f"{row:08d}" for row in batch["cls"].tolist()]
    assert batch["txt"] == [f"row {row}" for row in batch["cls"].tolist()]
    assert all(url.startswith(numbers) and url.endswith(".tar") for url in batch["__url__"])


# Stages that are not one to one


KNOWN_STAGES = {
    "batched": lambda dataset: dataset.batched(4),
    "listed": lambda dataset: dataset.listed(4),
    "unbatched": lambda dataset: dataset.unbatched(),
    "unlisted": lambda dataset: dataset.unlisted(),
    "shuffle": lambda dataset: dataset.shuffle(10),
    "detshuffle": lambda dataset: dataset.compose(webdataset.detshuffle(10)),
    "slice": lambda dataset: dataset.slice(30),
    "Cached": lambda dataset: dataset.mcached(),
    "repeat": lambda dataset: dataset.repeat(2),
}


def place_of(sample):
    return sample["__position__"]


def repeated(samples, at):
    for sample in samples:
        yield from [sample] * (2 if place_of(sample) == at else 1)


UNEQUAL_STAGES = {
    "a selection": ("nothing for", lambda data, at: data.select(lambda sample: place_of(sample) != at)),
    "a selection of the first": ("nothing for", lambda data, at: data.select(lambda sample: place_of(sample) < at)),
    "a map": ("nothing for", lambda data, at: data.map(lambda sample: sample if place_of(sample) != at else None)),
    "repeats": ("more than one item for", lambda data, at: data.compose(partial(repeated, at=at))),
    "stops": ("nothing more after", lambda data, at: data.compose(lambda samples: itertools.islice(samples, at + 1))),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("stage", UNEQUAL_STAGES)
def test_the_sample_for_which_a_stage_gives_nothing_or_more_than_one_is_named(tmp_path, stage, num_workers):
    """In the middle of a step, at its beginning and at its end."""
    dataset = Dataset(numbers_dataset(tmp_path, 60, shards=1, lanes=1), shuffle=False, rank=0, world_size=1)
    samples, (gave, apply) = list(dataset), UNEQUAL_STAGES[stage]
    for at in (0, 3, 11, 12, 50):
        with raises(PipelineError, match="one sample for each") as caught:
            list(Loader(apply(dataset, at), 12, num_workers=num_workers))
        assert f"returned {gave} sample {samples[at]['__key__']!r} of {samples[at]['__url__']}" in caught.value.place
        assert (caught.value.key, caught.value.url) == (samples[at]["__key__"], samples[at]["__url__"])


@pytest.mark.parametrize("stage", KNOWN_STAGES)
def test_a_stage_that_is_known_not_to_be_one_to_one_is_refused_by_name_with_the_loader(numbers, stage):
    with pytest.raises(InputError, match="batched" if stage == "listed" else stage):
        Loader(KNOWN_STAGES[stage](Dataset(numbers)), 12)


# Damage


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10240])


def grow(path):
    path.write_bytes(path.read_bytes() + bytes(10240))


def flip_a_header_byte(path):
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 0xFF
    path.write_bytes(data)


def remove_the_index(path):
    path.with_name(f"{path.name}.places").unlink()


def truncate_the_index(path):
    index = path.with_name(f"{path.name}.places")
    index.write_bytes(index.read_bytes()[:-8])


DAMAGES = {
    truncate: CorruptDataError,
    grow: CorruptDataError,
    flip_a_header_byte: CorruptDataError,
    Path.unlink: DatasetNotFoundError,
    remove_the_index: DatasetNotFoundError,
    truncate_the_index: CorruptDataError,
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_an_error_that_names_the_shard(numbers, tmp_path, damage):
    path = shutil.copytree(numbers, tmp_path / "damaged")
    damage(path / "000003.tar")
    with raises(DAMAGES[damage], match=r"000003\.tar") as caught:
        list(loader_of(path))
    assert caught.value.remedy


@pytest.mark.parametrize("batch_size", [2, 16])
def test_a_shard_that_is_truncated_while_worker_processes_read_it_is_an_error(tmp_path, batch_size):
    """They read large payloads directly into the memory that they share with the loader."""
    table = pa.table({"bin": pa.array([bytes([row]) * 40_000 for row in range(200)], pa.binary())})
    path = converted(tmp_path, table, shards=1, lanes=1, window=200)
    dataset = Dataset(path, shuffle=False)
    assert [batch["bin"] for batch in Loader(dataset, batch_size, num_workers=2)] == [
        batch["bin"] for batch in Loader(dataset, batch_size)
    ]
    batches = iter(Loader(dataset, batch_size, num_workers=2, prefetch_factor=1))
    assert len(next(batches)["bin"]) == batch_size
    os.truncate(Path(path, "000000.tar"), 150 * 40_000)
    with raises(CorruptDataError, match=r"shorter while it was read[\s\S]*000000\.tar"):
        list(batches)


# Processes and random numbers


def test_persistent_workers_stay_and_others_go_with_their_epoch(numbers):
    before = set(multiprocessing.active_children())
    loader = loader_of(numbers, num_workers=2, persistent_workers=True)
    list(loader)
    workers = set(multiprocessing.active_children()) - before
    list(loader)
    assert len(workers) == 2
    assert set(multiprocessing.active_children()) - before == workers
    other = loader_of(numbers, num_workers=2)
    list(other)
    assert set(multiprocessing.active_children()) - before == workers


def with_a_draw(sample):
    return sample["__position__"], torch.rand(()).item()


def draws(loader):
    return [draw for _, column in loader for draw in column.tolist()]


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_random_numbers_drawn_in_workers_differ_from_epoch_to_epoch(numbers, persistent_workers):
    dataset = Dataset(numbers).map(with_a_draw)
    loader = Loader(dataset, 12, num_workers=2, persistent_workers=persistent_workers)
    first, second = draws(loader), draws(loader)
    assert len(set(first)) == len(first)
    assert not set(first) & set(second)


# Workers started otherwise, and arguments


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_give_the_same_batches(numbers, context):
    dataset = delivering(Dataset(numbers, rank=1, world_size=2))
    loader = Loader(dataset, 6, num_workers=1, multiprocessing_context=context, persistent_workers=True)
    for epoch in (0, 4):
        loader.set_epoch(epoch)
        whole = expected_batches(numbers, 9, epoch=epoch)
        assert [deliveries(batch) for batch in loader] == [batch[1::2] for batch in whole]


def test_all_wrong_arguments_are_named_at_once(numbers):
    with pytest.raises(InputError) as caught:
        Loader([1, 2], 0, num_workers=-1, prefetch_factor=True)
    for name in ("dataset", "batch_size", "num_workers", "prefetch_factor"):
        assert name in caught.value.found


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ({"shuffle": True}, "wdsplit.Dataset(..., shuffle=True)"),
        ({"num_worker": 4}, "did you mean 'num_workers'?"),
        ({"xyz": 4}, "leave it out"),
    ],
)
def test_an_argument_of_torchs_dataloader_is_refused_with_what_to_write_instead(numbers, argument, instead):
    (name,) = argument
    with pytest.raises(InputError, match=f"no argument '{name}'") as caught:
        Loader(Dataset(numbers), 12, **argument)
    assert instead in caught.value.remedy


def test_every_argument_of_torchs_dataloader_is_one_of_a_loader_or_is_explained(numbers):
    """And those that are told are no arguments of it."""
    own = set(inspect.signature(Loader).parameters)
    torchs = set(inspect.signature(torch.utils.data.DataLoader).parameters)
    assert torchs - own == set(ARGUMENTS_OF_TORCH)


def test_the_environment_of_a_launcher_is_enough(numbers, monkeypatch):
    parts = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        parts.append([deliveries(batch) for batch in Loader(delivering(Dataset(numbers)), 4)])
    assert [interleaved(step) for step in zip(*parts, strict=True)] == expected_batches(numbers, 9)


def test_rank_0_of_1_switches_the_split_off_under_a_launcher(numbers, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = Loader(delivering(Dataset(numbers, rank=0, world_size=1)), 12)
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9)


def with_the_worker(sample):
    return Path(sample["__url__"]).stem, int(sample["cls"]), torch.utils.data.get_worker_info().id


@pytest.mark.parametrize(("lanes", "chosen"), [(32, None), (4, 32)], ids=["of the dataset", "of the reader"])
def test_worker_0_of_4_on_rank_0_of_8_reads_every_32nd_of_100_shards(tmp_path, lanes, chosen):
    path = numbers_dataset(tmp_path, 200, shards=100, lanes=lanes)
    dataset = Dataset(path, shuffle=False, tail="uneven", rank=0, world_size=8, lanes=chosen).map(with_the_worker)
    batches = list(Loader(dataset, 3, num_workers=4))
    samples = [
        sample for shards, *columns in batches for sample in zip(shards, *(c.tolist() for c in columns), strict=True)
    ]
    assert len(samples) == 2 * 13
    read = [(shard, row) for shard, row, worker in samples if worker == 0]
    assert read == [(f"{shard:06d}", 2 * shard + sample) for shard in (0, 32, 64, 96) for sample in (0, 1)]


# Loaders that share a dataset, and iterators that are held


def test_two_loaders_of_one_dataset_do_not_move_each_others_epoch_or_state(numbers):
    dataset = delivering(Dataset(numbers, rank=0, world_size=1))
    train, probe = Loader(dataset, 12), Loader(dataset, 30)
    batches = iter(train)
    first = next(batches)
    list(probe)
    state = train.state_dict()
    assert (train.epoch, state["epoch"], state["position"]) == (0, 0, 12)
    rest = all_deliveries(batches)
    assert deliveries(first) + rest == all_deliveries(loader_of(numbers))
    assert (train.epoch, probe.epoch) == (1, 1)


@pytest.mark.parametrize("collate_fn", [None, torch.utils.data.default_collate], ids=["wdsplit", "torch"])
def test_samples_of_many_tensors_need_no_file_each(numbers, collate_fn):
    """A process may hold so many files; torch sends each tensor of a list through one."""
    script = f"""
import resource
import torch
from wdsplit import Dataset, Loader

def nested(sample):
    return ((torch.zeros(3), torch.full((1,), sample["__position__"])),), sample["__key__"]

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
    collate_fn = {"None" if collate_fn is None else "torch.utils.data.default_collate"}
    loader = Loader(Dataset({numbers!r}, lanes=2).map(nested), 101, num_workers=2, collate_fn=collate_fn)
    print(sum(1 for _ in loader))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize(("batch_size", "is_warned"), [(203, True), (202, False), (51, False)])
def test_a_batch_of_mostly_pads_is_warned_of_once(numbers, caplog, monkeypatch, batch_size, is_warned):
    monkeypatch.setattr(announcing, "_announced", set())
    loader = loader_of(numbers, batch_size=batch_size)
    assert len(list(loader) + list(loader)) == 2 * len(loader)
    assert [each for each in caplog.messages if "pads" in each] == [
        f"{numbers}: 102 of the 203 samples of an epoch are pads, which fill its only step: use a smaller batch_size"
    ] * is_warned


def test_numpys_integers_are_as_good_as_pythons(numbers):
    options = {"rank": np.int64(1), "world_size": np.int64(2), "seed": np.int64(3), "lanes": np.int32(4)}
    loader = Loader(delivering(Dataset(Path(numbers), tail="uneven", **options)), np.int64(5), num_workers=np.int8(0))
    loader.set_epoch(np.int64(1))
    plain = Loader(delivering(Dataset(numbers, rank=1, world_size=2, seed=3, lanes=4, tail="uneven")), 5)
    plain.set_epoch(1)
    assert all_deliveries(loader) == all_deliveries(plain)
    assert through_json(loader.state_dict()) == plain.state_dict()


# Epochs and positions, whoever names them


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
def test_counting_goes_on_after_a_resume_so_that_it_ends_at_the_length(numbers, tail):
    """With any batch size, also where the position lies between two of its steps; if `uneven`, for that epoch."""
    dataset = Dataset(numbers, rank=0, world_size=2, tail=tail).to_tuple("__position__")
    loader = Loader(dataset, 5)
    for epoch in (0, 1):
        states = [loader.state_dict()]
        for step, _ in enumerate(loader, 1):
            if step < len(loader):
                assert loader.step == step
                states.append(loader.state_dict())
        for state, batch_size in itertools.product(states, (1, 3, 5, 7, 50)):
            resumed = Loader(dataset, batch_size)
            resumed.load_state_dict(state)
            resumed.set_epoch(epoch)
            first, num_steps = resumed.step, len(resumed)
            assert first + len(list(resumed)) == num_steps


def test_a_state_that_was_loaded_is_not_overwritten_by_an_iterator_that_goes_on(numbers):
    [loader] = loaders_of(numbers, 1)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "position": 24})
    assert (loader.epoch, loader.step) == (7, 2)
    next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (7, 24)


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_of_a_loader_keeps_its_position_and_has_an_epoch_of_its_own(numbers, copied):
    [loader] = loaders_of(numbers, 1, epoch=2)
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "position": 24})
    again = copied(loader)
    assert (again.epoch, again.step, again.state_dict()) == (7, 2, loader.state_dict())
    before = loader.statistics()
    assert [deliveries(batch) for batch in again] == expected_batches(numbers, 9, epoch=7)[2:]
    assert (loader.statistics(), again.statistics().batches) == (before, 7)
    again.dataset.set_epoch(5)
    assert (again.epoch, loader.epoch, loader.step) == (5, 7, 2)


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_a_function_that_cannot_be_sent_to_a_worker_is_an_error_with_a_remedy(numbers):
    dataset = Dataset(numbers).map(lambda sample: sample)
    with pytest.raises(PipelineError, match="cannot be sent to worker processes") as caught:
        iter(Loader(dataset, 12, num_workers=1, multiprocessing_context="spawn"))
    assert "workers='thread'" in caught.value.remedy


def test_another_seed_makes_another_order(numbers):
    assert all_deliveries(loader_of(numbers, seed=1)) != all_deliveries(loader_of(numbers, seed=2))


def test_more_workers_than_shards_give_the_same_batches(tmp_path):
    path = sized_dataset(tmp_path, [7, 8], lanes=2, window=4)
    assert global_batches(loaders_of(path, 2, num_workers=3)) == expected_batches(path, 2)


@pytest.mark.parametrize("prefetch_factor", [1, 5])
def test_working_ahead_changes_nothing(numbers, prefetch_factor):
    loader = Loader(delivering(Dataset(numbers)), 12, num_workers=2, prefetch_factor=prefetch_factor)
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9)
