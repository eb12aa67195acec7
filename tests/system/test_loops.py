"""Whatever loop a user writes: on two ranks each sample arrives once, or the loop is refused before its first batch.

The loops are functions of loops_worker.py. Libraries are told apart by the error that ends a refused loop.
"""

import json

import pytest

from made_datasets import real_rows
from torchruns import torchrun

pytestmark = pytest.mark.xdist_group("loops")

WORKS = "works"
SPLIT = "split among the ranks a second time"

LOOPS = {
    "accelerate_dataloader": SPLIT,
    "accelerate_dispatched": SPLIT,
    "accelerate_not_dispatched": SPLIT,
    "accelerate_split_batches": SPLIT,
    "accelerate_split_not_dispatched": SPLIT,
    "accelerate_web_loader": WORKS,
    "accelerate_loader": WORKS,
    "accelerate_dataset": WORKS,
    "trainer_train_by_steps": SPLIT,
    "trainer_evaluate": SPLIT,
    "trainer_predict": SPLIT,
}
"""What becomes of each loop: it works, or its error says so."""


def library_of(loop):
    return loop.partition("_")[0]


@pytest.fixture(scope="module")
def results(numbers, tmp_path_factory):
    """Return a function that gives what the ranks noted of a loop; the loops of a library share a job."""
    jobs = {}

    def of(loop, workers):
        library = library_of(loop)
        if (library, workers) not in jobs:
            out = tmp_path_factory.mktemp(f"{library}-{workers}")
            loops = ",".join(each for each in LOOPS if library_of(each) == library)
            ended = torchrun(2, "loops_worker.py", loops, workers, numbers, out, out=out)
            assert ended.returncode == 0, ended.output
            jobs[library, workers] = out
        return [json.loads((jobs[library, workers] / f"{loop}-{rank}.json").read_text()) for rank in range(2)]

    return of


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_gives_each_sample_once_or_is_refused_on_all_ranks(results, loop, workers):
    ranks = results(loop, workers)
    errors = [rank.get("refused", WORKS) for rank in ranks]
    assert all(LOOPS[loop] in error for error in errors), errors
    if LOOPS[loop] == WORKS:
        deliveries = [tuple(each) for rank in ranks for each in rank["deliveries"]]
        assert real_rows(deliveries) == list(range(101))
        assert len({len(rank["deliveries"]) for rank in ranks}) == 1
