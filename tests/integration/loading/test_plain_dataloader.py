"""A dataset in torch's own DataLoader: who reads what, and how the epoch reaches workers of every kind."""

import copy
import itertools
import json
import multiprocessing
import pickle
import sys
import warnings

import pytest
import torch.utils.data
from torchdata.stateful_dataloader import StatefulDataLoader

from made_datasets import all_deliveries, deliveries, delivering, expected_epoch, real_rows
from wdsplit.loading.dataset import Dataset


def first_positions(path, count, **options):
    return list(itertools.islice(expected_epoch(path, **options), count))


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 2), (3, 0), (3, 2)])
def test_a_plain_dataloader_delivers_each_sample_once_in_equally_many_batches(numbers, world_size, num_workers):
    ranks = []
    for rank in range(world_size):
        dataset = delivering(Dataset(numbers, rank=rank, world_size=world_size))
        ranks.append(list(torch.utils.data.DataLoader(dataset, batch_size=5, num_workers=num_workers)))
    assert len({tuple(len(batch[0]) for batch in batches) for batches in ranks}) == 1
    delivered = [delivery for batches in ranks for delivery in all_deliveries(batches)]
    assert real_rows(delivered) == list(range(101))
    assert sorted(position for position, _, _ in delivered) == list(range(len(delivered)))
    assert len(delivered) - 101 < world_size


ARRANGEMENTS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 1, "multiprocessing_context": "spawn"},
]
arrangements = pytest.mark.parametrize("options", ARRANGEMENTS, ids=str)


def epoch_of(path, batches):
    """Return which epoch some batches are."""
    delivered = sorted(all_deliveries(batches))
    return next(epoch for epoch in range(9) if first_positions(path, 101, epoch=epoch) == delivered)


@pytest.mark.filterwarnings("default:.*is read again:UserWarning")
@arrangements
def test_each_pass_has_another_order_or_one_warning_says_what_to_do(numbers, options, capfd, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", lambda text, *_: print(text, file=sys.stderr))  # pytest keeps them
    loader = torch.utils.data.DataLoader(delivering(Dataset(numbers)), batch_size=5, **options)
    next(iter(loader))
    epochs = [epoch_of(numbers, loader) for _ in range(3)]
    loader.dataset.set_epoch(6)
    epochs += [epoch_of(numbers, loader) for _ in range(2)]
    warned = capfd.readouterr().err.count("is read again, in the same order: call dataset.set_epoch(epoch) before each")
    assert (epochs, warned) == (([0, 0, 0, 6, 6], 1) if options["num_workers"] else ([0, 1, 2, 6, 7], 0))


@arrangements
def test_set_epoch_during_a_pass_is_for_the_next_one_in_all_workers(numbers, options):
    loader = torch.utils.data.DataLoader(delivering(Dataset(numbers)), batch_size=5, **options)
    batches = iter(loader)
    first = next(batches)
    if not options.get("persistent_workers"):
        batches, first = iter(loader), None
    loader.dataset.set_epoch(5)
    rest = list(batches)
    assert epoch_of(numbers, rest if first is None else [first, *rest]) == 0
    assert epoch_of(numbers, loader) == 5


@pytest.mark.filterwarnings("ignore:.*is read again:UserWarning")
def test_the_epoch_of_a_forked_rank_does_not_reach_the_workers_of_this_one(numbers):
    loader = torch.utils.data.DataLoader(
        delivering(Dataset(numbers)), batch_size=5, num_workers=1, persistent_workers=True
    )
    list(loader)
    other = multiprocessing.get_context("fork").Process(target=loader.dataset.set_epoch, args=(5,))
    other.start()
    other.join()
    assert (other.exitcode, epoch_of(numbers, loader)) == (0, 0)


@pytest.mark.parametrize(
    ("copied", "context", "num_workers"),
    [
        (lambda dataset: dataset, "spawn", 1),
        (lambda dataset: pickle.loads(pickle.dumps(dataset)), "fork", 2),
        (copy.deepcopy, "forkserver", 1),
    ],
)
def test_set_epoch_reaches_persistent_workers_which_know_their_rank_of_a_dataset_that_was_copied(
    numbers, copied, context, num_workers
):
    dataset = copied(delivering(Dataset(numbers, rank=1, world_size=2)))
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=5, num_workers=num_workers, multiprocessing_context=context, persistent_workers=True
    )
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        assert sorted(all_deliveries(loader)) == first_positions(numbers, 102, epoch=epoch)[1::2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it
@pytest.mark.parametrize(("num_workers", "at"), [(0, (0, 1, 21)), (2, (7, 21))])
def test_a_stateful_loader_resumes_and_its_epoch_and_the_next_one_are_those_of_a_run_that_was_not_interrupted(
    numbers, num_workers, at
):
    def loader():
        dataset = delivering(Dataset(numbers))
        dataset.set_epoch(2)
        return StatefulDataLoader(dataset, batch_size=5, num_workers=num_workers)

    def next_epoch(resumed):
        resumed.dataset.set_epoch(3)
        return [deliveries(batch) for batch in resumed]

    whole = [deliveries(batch) for batch in loader()]
    assert real_rows(itertools.chain(*whole)) == [*range(101)]
    after = next_epoch(loader())
    for steps in at:
        first, again = loader(), loader()
        begun = [deliveries(batch) for batch in itertools.islice(first, steps)]
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert begun + [deliveries(batch) for batch in again] == whole
        assert next_epoch(again) == after
