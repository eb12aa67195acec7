"""Lightning's own Trainer on two processes; the ranks' script is lightning_worker.py."""

import subprocess
import sys

import lightning
import pytest

from made_datasets import expected_batches, real_rows
from torchruns import results_of, run_tasks, woven

pytestmark = pytest.mark.xdist_group("lightning")

WRONG_WARNINGS = ("IterableDataset", "DistributedSampler", "sampler", "num_workers", "resumable", "val_dataloader")
SCRIPT = "lightning_worker.py"


def global_batches(ranks):
    """Return (epoch, step) and the global batch of each step of the ranks."""
    places = [[step[:2] for step in rank] for rank in ranks]
    assert all(each == places[0] for each in places)
    return list(zip(map(tuple, places[0]), woven([[step[2] for step in rank] for rank in ranks]), strict=True))


def expected(path, places, global_batch=12):
    """Return what the steps at (epoch, step) must be given."""
    steps = -(-101 // global_batch)
    epochs = {epoch: expected_batches(path, steps, global_batch, epoch) for epoch, _ in places}
    return [((epoch, step), epochs[epoch][step]) for epoch, step in places]


def epochs(*numbers, begin=0, steps=9):
    """Return the places of the steps of some epochs; the first of them begins at a step."""
    places = [(epoch, step) for epoch in numbers for step in range(steps)]
    return places[begin:]


@pytest.fixture(scope="module")
def fitted(numbers, tmp_path_factory):
    """Run the jobs that only some tests look at: on two ranks, with checkpoints, and then on one."""
    out = tmp_path_factory.mktemp("lightning")
    tasks = "fit,resume,accumulate,callback,callback_of_dataset,overfit,sharded,tensor_parallel"
    run_tasks(2, SCRIPT, tasks, numbers, out)
    run_tasks(1, SCRIPT, "resume_small", numbers, out)
    return out


def test_fit_gives_each_rank_its_part_of_every_epoch_once_and_evaluates_exactly(numbers, fitted):
    ranks, warnings = results_of(fitted, "fit")
    seen = global_batches([rank["seen"] for rank in ranks])
    assert seen == expected(numbers, epochs(0, 1, 2))
    for epoch in range(3):
        delivered = [each for (of, _), batch in seen if of == epoch for each in batch]
        assert real_rows(delivered) == list(range(101))
    assert [rank["rows"] for rank in ranks] == [[50.0, 50.0]] * 2, "the mean of the rows 0 to 100, with no pad in it"
    assert [text for text in warnings if any(wrong in text for wrong in WRONG_WARNINGS)] == []


@pytest.mark.parametrize(
    ("checkpoint", "places"),
    [("4", epochs(1, 2, begin=4)), ("9", epochs(2)), ("epoch", epochs(2))],
    ids=["middle", "last batch", "end of epoch"],
)
def test_a_checkpoint_resumes_with_exactly_what_is_left(numbers, fitted, checkpoint, places):
    ranks, warnings = results_of(fitted, "resume")
    assert global_batches([rank[checkpoint] for rank in ranks]) == expected(numbers, places)
    assert [text for text in warnings if "resumable" in text] == []


@pytest.mark.parametrize(
    ("checkpoint", "places"),
    [("4", epochs(1, 2, begin=8, steps=17)), ("9", epochs(2, steps=17))],
    ids=["middle", "last batch"],
)
def test_it_resumes_on_another_number_of_processes(numbers, fitted, checkpoint, places):
    """Lightning counts batches, of which there are 17 of 6 samples here and were 9 of 12: the count is corrected."""
    (rank,), _ = results_of(fitted, "resume_small", 1)
    assert global_batches([rank[checkpoint]]) == expected(numbers, places, 6)


def test_a_checkpoint_in_the_middle_of_an_accumulation_is_warned_of(fitted):
    """Of 9 batches, of which 4 are accumulated, the last one is a step of its own."""
    ranks, _ = results_of(fitted, "accumulate")
    assert ranks == [[1, 2, 3, 5, 6, 7], []]


@pytest.mark.parametrize("task", ["callback", "callback_of_dataset"])
def test_the_callback_sets_the_epoch_of_a_loader_of_ones_own(numbers, fitted, task):
    """Two batches an epoch; the third epoch is that of a second Trainer, which has resumed at the end of the second."""
    ranks, _ = results_of(fitted, task)
    assert global_batches(ranks) == expected(numbers, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])


def test_to_overfit_the_same_batches_come_in_each_epoch(numbers, fitted):
    ranks, _ = results_of(fitted, "overfit")
    seen = global_batches(ranks)
    assert [place for place, _ in seen] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [batch for _, batch in seen] == expected_batches(numbers, 2) * 2


def test_views_of_different_sizes_need_lightning_to_count_anew_and_resume_in_the_middle(numbers, tmp_path):
    """Lightning counts the batches of the first epoch: a longer one later would be cut off without a word."""
    run_tasks(1, SCRIPT, "curriculum", numbers, tmp_path)
    (found,), _ = results_of(tmp_path, "curriculum", 1)
    epochs = [range(40, 90), range(101), range(30), range(30)]
    steps = [[epoch, step] for epoch, rows in enumerate(epochs) for step in range(-(-len(rows) // 12))]
    for name in ("", ", own loader"):
        text, seen = found[f"refused{name}"]
        assert "reload_dataloaders_every_n_epochs=1" in text and "found: 9 batches" in text
        assert [step[:2] for step in seen] == steps[:5]
        whole = found[f"whole{name}"]
        assert [step[:2] for step in whole] == steps
        for epoch, rows in enumerate(epochs):
            given = [each for of, _, batch in whole if of == epoch for each in batch]
            assert real_rows(given) == list(rows)
    assert found["4"] == found["whole"][9:]
    assert found["epoch"] == found["whole"][14:]


def test_fit_works_with_fsdp2(numbers, fitted):
    ranks, _ = results_of(fitted, "sharded")
    assert global_batches(ranks) == expected(numbers, epochs(0, 1))
    with pytest.raises(ValueError, match="requires a GPU"):  # so Lightning's first strategy cannot be tested here
        lightning.Trainer(accelerator="cpu", strategy="fsdp", logger=False)


def test_a_dataset_that_is_not_split_as_the_strategy_wants_is_refused(fitted):
    """With tensor parallelism, both processes are the same rank, but the dataset does not know."""
    ranks, _ = results_of(fitted, "tensor_parallel")
    assert ["rank 0 of 1" in text and f"rank {rank} of 2" in text for rank, text in enumerate(ranks)] == [True, True]


PYTORCH_LIGHTNING = """
import pickle, sys
import pytorch_lightning
from wdsplit import Dataset
from wdsplit.integrations.lightning import EpochCallback, WdsplitDataModule

class Mine(WdsplitDataModule):
    def val_dataloader(self):
        return "mine"

assert issubclass(WdsplitDataModule, pytorch_lightning.LightningDataModule)
assert issubclass(EpochCallback, pytorch_lightning.Callback)
dataset = Dataset(sys.argv[1]).decode().to_tuple("cls")
module = pickle.loads(pickle.dumps(Mine(dataset, dataset, batch_size=10)))
assert module.val_dataloader() == "mine"
print(len(module.train_dataloader()), sum(len(batch) for batch, in module.train_dataloader()))
"""


def test_the_classes_are_those_of_the_library_that_the_program_has_imported(numbers):
    """Lightning has two packages, whose classes are not the same; the script of the other tests imports the first.

    A subclass keeps its own hooks, and the module can be copied to other processes, and looked at without a Trainer.
    """
    command = [sys.executable, "-W", "ignore", "-c", PYTORCH_LIGHTNING, numbers]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == ["11", "110"], done.stderr
