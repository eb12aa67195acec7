"""Groups of ranks in a real torchrun job; the ranks' script is launched_worker.py, which also checks them.

What the ranks of a whole job are given is in test_acceptance.py, and those of meshes in test_launchers.py.
"""

import itertools
import re
import shutil

import wdsplit
from made_datasets import expected_batches, numbers_table
from made_views import expected_view, store_view
from tables import write_table
from torchruns import delivered, results_of, run_tasks, woven


def test_each_group_sees_the_whole_dataset_and_spawned_workers_know_their_rank(numbers, tmp_path):
    """Under torchrun, webdataset takes the environment's RANK although a group was passed in."""
    run_tasks(4, "launched_worker.py", "groups", numbers, tmp_path)
    ranks, _ = results_of(tmp_path, "groups", 4)
    expected = expected_batches(numbers, 9)
    for members in (ranks[:2], ranks[2:]):
        for num_workers in (0, 2):
            assert woven([rank[f"workers {num_workers}"] for rank in members]) == expected
    delivered = [list(delivery) for batch in expected for delivery in batch]
    assert ranks[3]["spawned, DataLoader"] == delivered[3:104:4]
    assert ranks[3]["forkserver, Loader"] == delivered[3::4]
    assert ranks[3]["spawned, Loader, group"] == ranks[3]["spawned, Loader, mesh"] == delivered[1::2]


def test_ranks_that_have_opened_different_versions_as_the_latest_are_told_before_the_first_batch(tmp_path):
    (tmp_path / "out").mkdir()
    wdsplit.convert(write_table(tmp_path / "first.parquet", numbers_table(24)), tmp_path / "dataset", shards=2)
    write_table(tmp_path / "out" / "more.parquet", numbers_table(48).slice(24))
    run_tasks(2, "launched_worker.py", "appended_meanwhile", tmp_path / "dataset", tmp_path / "out")
    (first, second), _ = results_of(tmp_path / "out", "appended_meanwhile")
    assert first == [12, 12, 24]
    assert second[1:] == [12, 24]
    assert re.search("different versions.*expected: version 1 .*found: version 2 .*version=", second[0], re.S)


def test_a_curriculum_on_two_ranks_that_stops_in_the_middle_goes_on_on_three(numbers, tmp_path):
    path = shutil.copytree(numbers, tmp_path / "dataset")
    easy, hard = range(0, 101, 3), range(40, 90)
    store_view(str(path), "easy", easy)
    store_view(str(path), "hard", hard)
    run_tasks(2, "launched_worker.py", "curriculum", path, tmp_path / "out")
    run_tasks(3, "launched_worker.py", "curriculum_resumed", path, tmp_path / "out")
    before, _ = results_of(tmp_path / "out", "curriculum", 2)
    after, _ = results_of(tmp_path / "out", "curriculum_resumed", 3)
    epochs = [(0, easy, 36), (1, hard, 60), (2, range(101), 108)]
    expected = [itertools.islice(expected_view(str(path), rows, epoch), count) for epoch, rows, count in epochs]
    assert delivered(woven(before)) + delivered(woven(after)) == delivered(expected)
