"""Accelerate and Transformers' Trainer on two processes; the ranks' script is huggingface_worker.py."""

import importlib

import pytest
import torch

from made_datasets import expected_batches, real_rows
from torchruns import results_of, run_tasks, woven

pytestmark = pytest.mark.xdist_group("huggingface")

SCRIPT = "huggingface_worker.py"
STEPS = 9
"""Steps of an epoch, of 12 samples all together."""


def epochs(path, *numbers, begin=0):
    """Return the global batches of some epochs; the first of them begins at a step."""
    return [batch for epoch in numbers for batch in expected_batches(path, STEPS, epoch=epoch)][begin:]


def unflagged(batches):
    """Return the global batches as models get them, which are not given the flags."""
    return [[(position, row) for position, row, _ in batch] for batch in batches]


def woven_unflagged(parts):
    return unflagged(woven([[[(*each, None) for each in batch] for batch in part] for part in parts]))


@pytest.fixture(scope="module")
def trained(numbers, tmp_path_factory):
    """Run the jobs that only some tests look at: on two ranks, with checkpoints, and then on one."""
    out = tmp_path_factory.mktemp("huggingface")
    run_tasks(2, SCRIPT, "accelerate,trainer,trainer_without", numbers, out)
    run_tasks(1, SCRIPT, "trainer_small", numbers, out)
    return out


def test_accelerate_gives_each_rank_its_part_of_every_epoch_once(numbers, trained):
    ranks, warnings = results_of(trained, "accelerate")
    seen = woven([[step[3] for step in rank["seen"]] for rank in ranks])
    assert seen == epochs(numbers, 0, 1)
    for epoch in range(2):
        delivered = [each for batch in seen[epoch * STEPS :][:STEPS] for each in batch]
        assert real_rows(delivered) == list(range(101))
    assert warnings == []


def test_accelerate_resumes_with_exactly_what_is_left(numbers, trained):
    ranks, _ = results_of(trained, "accelerate")
    assert [[step[:2] for step in rank["resumed"]] for rank in ranks] == [[[1, step] for step in range(4, 9)]] * 2
    assert woven([[step[3] for step in rank["resumed"]] for rank in ranks]) == epochs(numbers, 1, begin=4)


def test_accelerate_synchronises_the_gradients_of_an_epochs_last_batch(trained):
    """Of 9 batches, of which 2 are accumulated, the last one stands alone."""
    ranks, _ = results_of(trained, "accelerate")
    for rank in ranks:
        synchronised = [bool(step % 2) for step in range(8)] + [True]
        assert [step[2] for step in rank["seen"]] == synchronised * 2
        assert [step[2] for step in rank["resumed"]] == synchronised[4:]


def test_accelerate_gathers_each_sample_once_to_evaluate(trained):
    ranks, _ = results_of(trained, "accelerate")
    assert [rank["val"] for rank in ranks] == [list(range(101))] * 2
    assert [rank["num_pads"] for rank in ranks] == [8 * 14 - 101] * 2


def test_accelerate_must_not_split_or_dispatch_batches_itself(trained):
    (first, _), _ = results_of(trained, "accelerate")
    assert first["refused"] == [
        f"a wdsplit.Loader does not support {name}" for name in ("split_batches", "dispatch_batches")
    ]


def test_accelerate_refuses_to_split_a_dataset_by_processes_that_shall_read_the_same(trained):
    ranks, _ = results_of(trained, "accelerate")
    assert [rank["meshes"] for rank in ranks] == [
        ["rank 0 of 1: open the dataset with rank=0 and world_size=1", *["no error"] * 3]
    ] * 2


def test_a_state_in_the_middle_of_an_accumulation_is_warned_of(trained):
    ranks, _ = results_of(trained, "accelerate")
    assert [rank["warned"] for rank in ranks] == [[1, 3, 5, 7], []]


def test_the_trainer_gives_each_rank_its_part_of_every_epoch_once(numbers, trained):
    ranks, warnings = results_of(trained, "trainer")
    assert woven_unflagged([rank["seen"] for rank in ranks]) == unflagged(epochs(numbers, 0, 1, 2))
    assert [rank["steps"] for rank in ranks] == [15, 15], "5 updates an epoch, of 2 batches each but the last"
    assert [rank["num_examples"] for rank in ranks] == [101, 101]
    assert warnings == []


@pytest.mark.parametrize(("checkpoint", "epoch", "step"), [("7", 1, 4), ("10", 2, 0)], ids=["middle", "end of epoch"])
def test_the_trainer_resumes_with_exactly_what_is_left(numbers, trained, checkpoint, epoch, step):
    ranks, _ = results_of(trained, "trainer")
    left = epochs(numbers, *range(epoch, 3), begin=step)
    assert woven_unflagged([rank[checkpoint][0] for rank in ranks]) == unflagged(left)
    assert [rank[checkpoint][1] for rank in ranks] == [15, 15]


def test_the_trainer_resumes_on_one_process_with_the_same_global_batch(numbers, trained):
    (seen,), _ = results_of(trained, "trainer_small", 1)
    assert woven_unflagged([seen]) == unflagged(epochs(numbers, 1, 2, begin=4))


def test_the_trainer_evaluates_and_predicts_without_pads(trained):
    ranks, _ = results_of(trained, "trainer")
    assert [rank["rows"] for rank in ranks] == [list(range(101))] * 2
    assert [rank["predicted"] for rank in ranks] == [[list(range(101)), 101]] * 2


def test_the_trainer_refuses_datasets_that_would_go_wrong(trained):
    (first, _), _ = results_of(trained, "trainer")
    tail = "the dataset's tail does not fit the Trainer's arguments"
    strategies = [
        f"train_sampling_strategy={name!r} does not work with this dataset"
        for name in ("group_by_length", "sequential")
    ]
    pads = "samples have no __pad__, so an evaluation would count pads"
    assert first["refused"] == [tail, tail, pads, tail, *strategies]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: only there is memory pinned")
def test_the_trainer_pins_memory_as_its_arguments_say(numbers, tmp_path):
    worker = importlib.import_module("huggingface_worker")
    for is_asked in (True, False):
        options = {"dataloader_pin_memory": is_asked, "dataloader_num_workers": 0}
        batch = next(iter(worker.trainer_of(numbers, tmp_path, **options).get_train_dataloader().loader))
        assert {column.is_pinned() for column in batch.values()} == {is_asked}


def test_the_trainer_takes_other_datasets_as_before(trained):
    ranks, _ = results_of(trained, "trainer_without")
    assert ranks == [[list(range(8))] * 2] * 2


def test_the_trainer_takes_views_of_one_size_and_refuses_others(numbers, tmp_path):
    """It counts its steps by the first epoch: with a longer one later, samples would be left out."""
    run_tasks(1, SCRIPT, "trainer_views", numbers, tmp_path)
    (found,), _ = results_of(tmp_path, "trainer_views", 1)
    rows = [row for batch in found["equal"] for _, row in batch]
    assert sorted(set(rows)) == [*range(40), *range(61, 101)]
    assert "epochs with views of different sizes" in found["other"]
    assert "epoch 1 of" in found["other"] and "found: 5 batches" in found["other"]
    assert "expected: 4 batches" in found["other"]
