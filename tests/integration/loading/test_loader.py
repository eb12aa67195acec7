import copy
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
import traceback
from contextlib import contextmanager
from functools import partial
from pathlib import Path

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
    loaders_of,
    numbers_dataset,
    sized_dataset,
)
from tables import DEADLINE_S
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, PipelineError, StateError, WdsplitError
from wdsplit.loading import announcing
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import ARGUMENTS_OF_TORCH, Loader


def through_json(state):
    return json.loads(json.dumps(state))


def loader_of(path, batch_size=12, num_workers=0, persistent_workers=False, **options):
    dataset = delivering(Dataset(path, rank=0, world_size=1, **options))
    return Loader(dataset, batch_size, num_workers=num_workers, persistent_workers=persistent_workers)


def position_of(loader):
    state = loader.state_dict()
    return state["epoch"], state["position"]


@contextmanager
def raises(kind, match):
    """Do as pytest.raises does; then let go of what the traceback holds, so that workers end now and not at a gc."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    traceback.clear_frames(caught.tb)


# Epochs


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_set_epoch_reaches_all_workers_and_a_state_counts_what_was_delivered(numbers, num_workers, persistent_workers):
    """Not what was prefetched."""
    loader = loader_of(numbers, num_workers=num_workers, persistent_workers=persistent_workers)
    for epoch in (0, 5, 5, 2):
        loader.set_epoch(epoch)
        found, states = [], [position_of(loader)]
        for batch in loader:
            found.append(deliveries(batch))
            states.append(position_of(loader))
        assert found == expected_batches(numbers, 9, epoch=epoch)
        assert states == [*((epoch, 12 * step) for step in range(9)), (epoch + 1, 0)]


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, True)])
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


@pytest.mark.parametrize(
    ("looks", "on_dataset", "epoch"),
    [
        (lambda loader: None, False, 0),
        (lambda loader: (loader.epoch, loader.step), True, 0),
        (lambda loader: (loader.epoch, loader.step), False, 1),
        (lambda loader: None, True, 4),
    ],
)
def test_an_epoch_set_during_an_epoch_is_that_of_the_next_pass_whoever_looks(numbers, looks, on_dataset, epoch):
    loader = loader_of(numbers)
    batches = iter(loader)
    next(batches)
    (loader.dataset if on_dataset else loader).set_epoch(epoch)
    for _ in batches:
        looks(loader)
    assert (loader.epoch, position_of(loader)) == (epoch, (epoch, 0))
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9, epoch=epoch)
    assert loader.epoch == epoch + 1


def test_asking_a_loader_where_it_is_changes_nothing(numbers):
    loader = loader_of(numbers)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "position": 24})
    loader.dataset.set_epoch(2)
    assert (loader.epoch, loader.step, position_of(loader)) == (2, 0, (2, 0))
    loader.dataset.set_epoch(3)
    assert (loader.epoch, loader.step, position_of(loader)) == (3, 2, (3, 24))


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


# States


def test_a_loader_that_runs_can_go_back_to_a_state_and_another_epoch_drops_the_position(numbers):
    loader = loader_of(numbers, num_workers=2, persistent_workers=True)
    list(itertools.islice(loader, 3))
    state = through_json(loader.state_dict())
    loader.set_epoch(0)
    list(loader)
    loader.load_state_dict(state)
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9)[3:]
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert position_of(loader) == (3, 0)
    assert [deliveries(batch) for batch in loader] == expected_batches(numbers, 9, epoch=3)


def test_a_state_of_another_dataset_is_refused_and_that_of_a_copy_is_not(numbers, whole_lanes, tmp_path):
    loader = loader_of(numbers)
    list(itertools.islice(loader, 4))
    with pytest.raises(StateError, match="fingerprint"):
        loader_of(whole_lanes, lanes=4, window=4).load_state_dict(loader.state_dict())
    moved = loader_of(shutil.copytree(numbers, tmp_path / "moved"))
    moved.load_state_dict(loader.state_dict())
    assert [deliveries(batch) for batch in moved] == expected_batches(numbers, 9)[4:]


# Batches


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_collate_fn_gets_the_samples_of_the_batch_in_order(numbers, num_workers):
    dataset = delivering(Dataset(numbers))
    loader = Loader(dataset, 12, num_workers=num_workers, collate_fn=lambda samples: ("mine", samples))
    assert list(loader) == [("mine", batch) for batch in expected_batches(numbers, 9)]


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


@pytest.mark.parametrize(
    ("stage", "num_workers"), [*((name, 0) for name in UNEQUAL_STAGES), ("a map", 1), ("stops", 1)]
)
def test_the_sample_for_which_a_stage_gives_nothing_or_more_than_one_is_named(tmp_path, stage, num_workers):
    """In the middle of a step, at its beginning and at its end."""
    dataset = Dataset(numbers_dataset(tmp_path, 60, shards=1, lanes=1), shuffle=False, rank=0, world_size=1)
    samples, (gave, apply) = list(dataset), UNEQUAL_STAGES[stage]
    for at in (0, 11, 12):
        with raises(PipelineError, match="one sample for each") as caught:
            list(Loader(apply(dataset, at), 12, num_workers=num_workers))
        assert f"returned {gave} sample {samples[at]['__key__']!r} of {samples[at]['__url__']}" in caught.value.place
        assert (caught.value.key, caught.value.url) == (samples[at]["__key__"], samples[at]["__url__"])


def test_a_stage_that_is_known_not_to_be_one_to_one_is_refused_by_name_with_the_loader(numbers):
    for name, staged in KNOWN_STAGES.items():
        with pytest.raises(InputError, match="batched" if name == "listed" else name):
            Loader(staged(Dataset(numbers)), 12)


# Damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("000003.tar", lambda data: data[:-10240]),
        ("000003.tar", lambda data: data + bytes(10240)),
        ("000003.tar", lambda data: data.replace(b"0000644\0", b"0000744\0", 1)),  # in a header
        ("000003.tar", None),
        ("000003.tar.places", lambda data: data[:-8]),
        ("000003.tar.places", None),
    ],
)
def test_damage_is_an_error_that_names_the_shard(numbers, tmp_path, name, damage):
    file = shutil.copytree(numbers, tmp_path / "damaged") / name
    data = file.read_bytes()
    file.unlink()
    if damage:
        file.write_bytes(damage(data))
    with raises(CorruptDataError if damage else DatasetNotFoundError, match=r"000003\.tar") as caught:
        list(loader_of(file.parent))
    assert caught.value.remedy


def test_a_shard_that_is_truncated_while_worker_processes_read_it_is_an_error(tmp_path):
    """They read large payloads directly into the memory that they share with the loader."""
    table = pa.table({"bin": pa.array([bytes([row]) * 40_000 for row in range(200)], pa.binary())})
    path = converted(tmp_path, table, shards=1, lanes=1, window=200)
    dataset = Dataset(path, shuffle=False)
    whole, alone = Loader(dataset, 16, num_workers=2), Loader(dataset, 16)
    assert [batch["bin"] for batch in whole] == [batch["bin"] for batch in alone]
    batches = iter(Loader(dataset, 16, num_workers=2, prefetch_factor=1))
    assert len(next(batches)["bin"]) == 16
    os.truncate(Path(path, "000000.tar"), 150 * 40_000)
    with raises(CorruptDataError, match=r"shorter while it was read[\s\S]*000000\.tar"):
        list(batches)


@pytest.mark.parametrize(("workers", "shard"), [("process", 3), ("thread", 0)])
def test_all_batches_before_damage_are_right(tmp_path, workers, shard):
    """Samples are so small that several steps travel together."""
    path = sized_dataset(tmp_path, [300] * 6, lanes=6, window=16)
    expected, found = expected_batches(path, 180, global_batch=10), []
    with open(tmp_path / f"{shard:06d}.tar", "r+b") as file:
        file.seek(131 * 1024)  # a header: a sample is one block of header and one of payload
        file.write(b"\xff" * 512)
    with raises(CorruptDataError, match=f"{shard:06d}.tar"):
        for batch in Loader(delivering(Dataset(path)), 10, num_workers=2, workers=workers):
            found.append(deliveries(batch))
    assert found == expected[: len(found)]
    assert len(found) > 2


# Processes and random numbers


def test_random_numbers_drawn_in_workers_differ_from_epoch_to_epoch(numbers):
    dataset = Dataset(numbers).map(lambda sample: (sample["__position__"], torch.rand(()).item()))
    loader = Loader(dataset, 12, num_workers=2, persistent_workers=True)
    first, second = ([draw for _, column in loader for draw in column.tolist()] for _ in range(2))
    assert len(set(first)) == len(first)
    assert not set(first) & set(second)


# Workers started otherwise, and arguments


@pytest.mark.slow
def test_workers_that_are_not_forked_give_the_same_batches(numbers):
    dataset = delivering(Dataset(numbers, rank=1, world_size=2))
    loader = Loader(dataset, 6, num_workers=1, multiprocessing_context="forkserver", persistent_workers=True)
    for epoch in (0, 4):
        loader.set_epoch(epoch)
        whole = expected_batches(numbers, 9, epoch=epoch)
        assert [deliveries(batch) for batch in loader] == [batch[1::2] for batch in whole]


def test_wrong_arguments_are_named_at_once_and_those_of_torchs_dataloader_with_what_to_write_instead(numbers):
    with pytest.raises(InputError) as caught:
        Loader([1, 2], 0, num_workers=-1, prefetch_factor=True)
    for name in ("dataset", "batch_size", "num_workers", "prefetch_factor"):
        assert name in caught.value.found
    remedies = {"shuffle": "Dataset(..., shuffle=True)", "num_worker": "did you mean 'num_workers'?", "xyz": "leave it"}
    for name, instead in remedies.items():
        with pytest.raises(InputError, match=f"no argument '{name}'") as caught:
            Loader(Dataset(numbers), 12, **{name: 4})
        assert instead in caught.value.remedy


def test_every_argument_of_torchs_dataloader_is_one_of_a_loader_or_is_explained(numbers):
    """And those that are told are no arguments of it."""
    own = set(inspect.signature(Loader).parameters)
    torchs = set(inspect.signature(torch.utils.data.DataLoader).parameters)
    assert torchs - own == set(ARGUMENTS_OF_TORCH)


def test_the_environment_of_a_launcher_is_enough_and_rank_0_of_1_switches_it_off(numbers, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    whole = expected_batches(numbers, 9)
    for options, size, expected in (
        ({}, 4, [batch[2::3] for batch in whole]),
        ({"rank": 0, "world_size": 1}, 12, whole),
    ):
        loader = Loader(delivering(Dataset(numbers, **options)), size)
        assert [deliveries(batch) for batch in loader] == expected


def with_the_worker(sample):
    return Path(sample["__url__"]).stem, int(sample["cls"]), torch.utils.data.get_worker_info().id


def test_worker_0_of_4_on_rank_0_of_8_reads_every_32nd_of_100_shards(tmp_path):
    path = numbers_dataset(tmp_path, 200, shards=100, lanes=4)
    dataset = Dataset(path, shuffle=False, tail="uneven", rank=0, world_size=8, lanes=32).map(with_the_worker)
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


@pytest.mark.parametrize(("batch_size", "is_warned"), [(203, True), (202, False), (51, False)])
def test_a_batch_of_mostly_pads_is_warned_of_once(numbers, caplog, monkeypatch, batch_size, is_warned):
    monkeypatch.setattr(announcing, "_announced", set())
    loader = loader_of(numbers, batch_size=batch_size)
    assert len(list(loader) + list(loader)) == 2 * len(loader)
    assert [each for each in caplog.messages if "pads" in each] == [
        f"{numbers}: 102 of the 203 samples of an epoch are pads, which fill its only step: use a smaller batch_size"
    ] * is_warned


# Epochs and positions, whoever names them


def test_a_state_that_was_loaded_is_not_overwritten_by_an_iterator_that_goes_on(numbers):
    [loader] = loaders_of(numbers, 1)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "position": 24})
    assert (loader.epoch, loader.step) == (7, 2)
    next(batches)
    assert position_of(loader) == (7, 24)


def test_a_copy_of_a_loader_keeps_its_position_and_has_an_epoch_of_its_own(numbers):
    [loader] = loaders_of(numbers, 1, epoch=2)
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "position": 24})
    again = copy.deepcopy(loader)
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


@pytest.mark.slow
def test_samples_of_many_tensors_need_no_file_each_and_a_program_may_end_in_the_middle_of_an_epoch(numbers):
    """A process may hold so many files; torch sends each tensor of a list through one."""
    script = f"""
import resource
import torch
from wdsplit import Dataset, Loader

def nested(sample):
    return ((torch.zeros(3), torch.full((1,), sample["__position__"])),), sample["__key__"]

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
    print(sum(1 for _ in Loader(Dataset({numbers!r}, lanes=2).map(nested), 101, num_workers=2)))
    samples = iter(Dataset({numbers!r}).map(dict))
    next(samples)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
