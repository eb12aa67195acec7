"""Parameters, gradients and deliveries compared between the ranks of a torchrun job."""

import pytest

pytestmark = [pytest.mark.xdist_group("debug"), pytest.mark.slow]

EXPECTED = {
    "parameters": {
        "same": 4,
        "running statistics": 2,
        "different": [
            "parameter '2.weight'",
            " on rank 0, float32 of 2 x 4 with hash ",
            " on rank 1",
            "1 of 4 parameters",
        ],
        "shapes": [
            "parameter 'weight'",
            "float32 of 2 x 3 with hash ",
            "rank 0, float32 of 3 x 3",
            "2 of 2 parameters",
        ],
        "names": ["parameter 'b0'", " on rank 0, nothing on rank 1"],
        "all buffers": ["parameter 'running_mean'", "1 of 5"],
        "own buffer": ["parameter 'mask'", "1 of 3"],
    },
    "sharded": {
        "own parts": 0,
        "tensors": 1,
        "a replica that differs": ["parameter 'copies'", "1 of 1 parameters"],
        "old": ["FSDP1"],
    },
    "gradients": {
        "reduced": 4,
        "not reduced": ["different gradients\n  place: gradient '0.weight'", "in all, 4 of 4 gradients differ"],
        "none": ["'module.2.bias'", " on rank 0, nothing on rank 1"],
    },
    "audits that fail": {
        "ignored rank": [
            "samples are not those of epoch 0",
            "rank 0 reads as rank 0 of 1; rank 1 reads as rank 0 of 1",
        ],
        "other seeds": ["options on all ranks", "rank 1 has seed 1, rank 0 0"],
        "other views": ["options on all ranks", "rank 1 has view 'cls < 59' (", "rank 0 'cls < 60' ("],
        "other epochs": ["options on all ranks", "rank 1 has epoch 1, rank 0 0"],
        "other positions": ["options on all ranks", "rank 1 has start position 12, rank 0 0"],
        "lost": ["rank 1: 6 samples missing: position 37 in step 3, ", "rank 0 9, rank 1 8"],
        "lost, uneven": ["rank 1: 6 samples missing: position 37 in step"],
        "lost, left before the end": ["rank 1: 6 samples missing: position 37 in step 3", "samples too many"],
        "one leaves early": ["the delivered samples are not those of epoch 0", "steps: rank 0 9, rank 1 7"],
        "dropped fields": ["cannot tell which samples", "found: cls", "AUDITED"],
    },
}
"""What each check of debug_worker.py returns, or says on both ranks."""


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, checks in EXPECTED.items() for name in checks])
def test_a_check_passes_on_all_ranks_or_names_on_all_what_differs(job, part, name):
    expected = EXPECTED[part][name]
    for outcome in (rank[part][name] for rank in job.ranks):
        if isinstance(expected, int):
            assert outcome == {"returned": expected}
        else:
            assert [each for each in expected if each not in outcome["text"]] == []


def test_hashes_of_the_same_parameters_are_the_same(job):
    assert job.ranks[0]["parameters"]["hash"] == job.ranks[1]["parameters"]["hash"]
    assert job.ranks[0]["sharded"]["hash"] != job.ranks[1]["sharded"]["hash"]
