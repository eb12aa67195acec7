"""Bad samples in a real training: the ranks of a torchrun job stay in step, and one that gives up ends all of them.

What a loader gives in the places of bad samples is in tests/integration/loading/test_bad_samples.py.
"""

import json

from bad_samples import expected_substitutes, in_batches
from bad_samples_worker import BAD_ROWS, GLOBAL_BATCH
from torchruns import processes_that_stay, results_of, run_tasks, torchrun, woven

NUM_STEPS = 9


def test_ranks_stay_in_step_whatever_share_of_the_samples_is_bad(numbers, tmp_path):
    num_ranks = 4
    run_tasks(num_ranks, "bad_samples_worker.py", "train", numbers, tmp_path)
    ranks, _ = results_of(tmp_path, "train", num_ranks)
    for percent, bad in BAD_ROWS.items():
        expected = in_batches(expected_substitutes(numbers, NUM_STEPS * GLOBAL_BATCH, bad), GLOBAL_BATCH)
        sums = [sum(row for _, row, _ in batch) for batch in expected]
        for num_workers in (0, 2):
            found = [rank[f"{percent} %, {num_workers} workers"] for rank in ranks]
            assert woven([rank["given"] for rank in found]) == expected
            assert [rank["sums"] for rank in found] == [sums] * num_ranks
    assert woven([rank["resumed"]["given"] for rank in ranks]) == expected[4:]
    listed = [json.loads(line)["message"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert sorted(listed) == sorted(f"row {row} is bad" for row in BAD_ROWS[5])


def test_a_rank_that_accepts_no_more_bad_samples_ends_the_job(numbers, tmp_path):
    ended = torchrun(2, "bad_samples_worker.py", "exceed", numbers, tmp_path, out=tmp_path)
    assert ended.returncode != 0
    assert "more than 0 bad samples on this rank in epoch 0" in ended.output
    assert not processes_that_stay(tmp_path)
