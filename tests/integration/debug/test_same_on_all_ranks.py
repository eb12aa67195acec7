"""Parameters, gradients and deliveries compared between the ranks of a torchrun job."""

import pytest

pytestmark = [pytest.mark.xdist_group("debug"), pytest.mark.slow]

EXPECTED = {
    "parameters": {
        "same": 4,
        "running statistics": 2,
        "different": ["parameter '2.weight'", " on rank 0, values ", " on rank 1", "1 of 4 parameters"],
        "shapes": ["parameter 'weight'", "float32 of 2 x 3 on rank 0, float32 of 3 x 3 on rank 1"],
        "names": ["parameter 'b0'", "float32 of 1 on rank 0, nothing on rank 1"],
        "all buffers": ["parameter 'running_mean'", "1 of 5"],
        "own buffer": ["parameter 'mask'", "1 of 3"],
        "meta on one rank": ["parameter 'weight'", "out of meta tensor"],
        "unreadable": ["the disk is gone"],
    },
    "sharded": {
        "own parts": 0,
        "replicas": 4,
        "tensors": 1,
        "meshes": 1,
        "meshes that look alike": 0,
        "gradients of replicas": 4,
        "a replica that differs": ["parameter '0.bias'"],
        "meshes, one differs": ["parameter 'dense'", "1 of 2 parameters"],
        "not reduced": ["Partial"],
        "old": ["FSDP1"],
    },
    "gradients": {
        "reduced": 4,
        "not reduced": ["different gradients\n  place: gradient '0.weight'", "in all, 4 of 4 gradients differ"],
        "nan": ["gradient 'module.2.bias'\n  found: NaN or infinity in 1 of 2 values"],
        "none": ["'module.2.bias'", "float32 of 2 on rank 0, no gradient on rank 1"],
    },
    "audits that fail": {
        "ignored rank": [
            "delivered more than once in epoch 0",
            "101 deliveries too many",
            "sample '00000042' at position 0: rank 0 in step 0, rank 1 in step 0",
            "rank 1 reads as rank 0 of 1",
        ],
        "ignored rank, positions alone": ["101 deliveries too many", "at position 0: rank 0 in step 0, rank 1 in"],
        "other seeds": ["do not read the same epoch", "rank 1 has seed 1, rank 0 0"],
        "other views": ["do not read the same epoch", "rank 1 has view 'cls < 59' (", "rank 0 'cls < 60' ("],
        "other epochs": ["do not read the same epoch", "rank 1 has epoch 1, rank 0 0"],
        "other positions": ["do not read the same epoch", "rank 1 has start position 12, rank 0 0"],
        "lost": ["6 samples missing", "position 37, due to rank 1 in step 3", "rank 0 9, rank 1 8"],
        "lost, uneven": ["6 samples missing", "at position 37, due to rank 1"],
        "lost, left before the end": ["position 37, due to rank 1 in step 3", "samples too many"],
        "one leaves early": ["the delivered samples are not those of epoch 0", "steps: rank 0 9, rank 1 7"],
        "comparison": ["the disk is gone"],
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


def test_an_error_of_one_rank_is_raised_on_all_and_says_whose_it_is(job):
    for part, name in (("parameters", "meta on one rank"), ("gradients", "nan")):
        other, own = (rank[part][name]["text"] for rank in job.ranks)
        assert f"rank 1, {part[:-1]}" in other and "rank 1" not in own
    other, own = (rank["parameters"]["unreadable"] for rank in job.ranks)
    assert "place: rank 1\n  found: OSError: the disk is gone" in other["text"]
    assert own["error"] == "OSError"
