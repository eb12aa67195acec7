"""Parameters, optimizers and gradients compared between the ranks of a torchrun job."""

import re

import pytest

pytestmark = pytest.mark.xdist_group("debug")


def test_parameters_that_are_the_same_on_all_ranks_pass(job):
    for rank in job.ranks:
        assert rank["parameters"]["same"] == {"returned": 4}
        assert rank["parameters"]["running statistics"] == {"returned": 2}
    assert job.ranks[0]["parameters"]["hash"] == job.ranks[1]["parameters"]["hash"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("different", ["parameter '2.weight'", " on rank 0, values ", " on rank 1", "1 of 4 parameters"]),
        ("shapes", ["parameter 'weight'", "float32 of 2 x 3 on rank 0, float32 of 3 x 3 on rank 1"]),
        ("names", ["parameter 'b0'", "float32 of 1 on rank 0, nothing on rank 1"]),
        ("all buffers", ["parameter 'running_mean'", "1 of 5"]),
        ("own buffer", ["parameter 'mask'", "1 of 3"]),
        ("meta on one rank", ["parameter 'weight'", "out of meta tensor"]),
        ("unreadable", ["the disk is gone"]),
    ],
)
def test_parameters_that_differ_are_named_on_all_ranks(job, name, parts):
    for text in job.texts("parameters", name):
        assert [part for part in parts if part not in text] == []


def test_an_error_of_one_rank_is_raised_on_all_and_says_whose_it_is(job):
    other, own = job.texts("parameters", "meta on one rank")
    assert "rank 1, parameter" in other
    assert "rank 1" not in own
    other, own = (rank["parameters"]["unreadable"] for rank in job.ranks)
    assert "place: rank 1\n  found: OSError: the disk is gone" in other["text"]
    assert own["error"] == "OSError"


def test_sharded_parameters_are_compared_with_their_replicas(job):
    for rank in job.ranks:
        sharded = rank["sharded"]
        assert sharded["own parts"] == {"returned": 0}
        assert sharded["replicas"] == {"returned": 4}
        assert sharded["tensors"] == {"returned": 1}
        assert sharded["meshes"] == {"returned": 1}
        assert sharded["meshes that look alike"] == {"returned": 0}
        assert sharded["gradients of replicas"] == {"returned": 4}
    for text in job.texts("sharded", "a replica that differs"):
        assert "parameter '0.bias'" in text
    for text in job.texts("sharded", "meshes, one differs"):
        assert "parameter 'dense'" in text
        assert "1 of 2 parameters" in text
    for text in job.texts("sharded", "not reduced"):
        assert "Partial" in text
    for text in job.texts("sharded", "old"):
        assert "FSDP1" in text


def test_optimizers_that_differ_are_named_with_the_state_or_the_option(job):
    for rank in job.ranks:
        assert rank["optimizers"]["same"]["returned"] > 3 * 4
    for text in job.texts("optimizers", "option"):
        assert "optimizer value 'group.0.lr'" in text
        assert "values 0.1 on rank 0, values 1.1 on rank 1; in all, 1 of " in text
    for text in job.texts("optimizers", "state"):
        assert "optimizer value 'state.3.exp_avg'" in text


def test_gradients_that_ddp_has_reduced_pass_and_those_of_a_plain_model_do_not(job):
    for rank in job.ranks:
        assert rank["gradients"]["reduced"] == {"returned": 4}
    for text in job.texts("gradients", "not reduced"):
        assert "the ranks have different gradients\n  place: gradient '0.weight'" in text
        assert re.search(r"values \w+ on rank 0, values \w+ on rank 1; in all, 4 of 4 gradients differ", text)


def test_a_gradient_that_is_not_finite_or_missing_is_named_with_its_rank(job):
    other, own = job.texts("gradients", "nan")
    assert "place: rank 1, gradient 'module.2.bias'\n  found: NaN or infinity in 1 of 2 values" in other
    assert "place: gradient 'module.2.bias'" in own
    for text in job.texts("gradients", "none"):
        assert "'module.2.bias'" in text
        assert "float32 of 2 on rank 0, no gradient on rank 1" in text
