"""A dataset in torchdata's StatefulDataLoader, which reads an epoch again up to the batch of a state."""

import itertools

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from iterations import dataset_of, through_json
from made_datasets import deliveries, delivering, real_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 calls it
]


@pytest.mark.parametrize(("num_workers", "at"), [(0, (0, 1, 21)), (2, (7, 21))])
def test_a_resumed_epoch_and_the_next_one_are_those_of_a_run_that_was_not_interrupted(numbers, num_workers, at):
    def loader():
        dataset = delivering(dataset_of(numbers, epoch=2))
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
        again.load_state_dict(through_json(first.state_dict()))
        assert begun + [deliveries(batch) for batch in again] == whole
        assert next_epoch(again) == after
