"""wdsplit.debug: checks across the ranks of a real torchrun job (debug_worker.py), and what needs one process only."""

import json
import logging
import math
import random
import re
import textwrap
import time
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from loaded import modules_loaded_by
from made_datasets import numbers_dataset
from paths import ROOT
from torchruns import torchrun
from wdsplit import debug, mix, resized
from wdsplit.debug import delivered
from wdsplit.debug.diagnosis import Figures, advice
from wdsplit.debug.ranks import Ranks, Rendezvous
from wdsplit.debug.tensors import Entry, difference, differing
from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.integrations.opaque_loader import OpaqueLoader
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.order.epoch import hash_stream

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.xdist_group("debug"),
]

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return what the two ranks of a job said, and its folder; it is run once."""
    folder = tmp_path_factory.mktemp("job")
    path = numbers_dataset(folder / "numbers", 101, shards=7, lanes=4, window=4)
    ended = torchrun(2, "debug_worker.py", path, folder / "out", out=folder / "out")
    assert ended.returncode == 0, ended.output
    return [json.loads((folder / "out" / f"{rank}.json").read_text()) for rank in range(2)], folder / "out"


def texts(job, part, name):
    """Return what both ranks said of a check that must have failed."""
    said = [rank[part][name] for rank in job[0]]
    assert all("text" in each for each in said), said
    return [each["text"] for each in said]


# Seeds


def drawn():
    return random.random(), float(np.random.random()), float(torch.rand(1))


def test_a_seed_gives_each_rank_numbers_of_its_own_again_and_again():
    by_rank = []
    for rank in range(3):
        for _ in range(2):
            debug.set_seed(7, rank)
            by_rank.append(drawn())
    assert by_rank[::2] == by_rank[1::2]
    assert all(len(set(values)) == 3 for values in zip(*by_rank[::2], strict=True))


def test_a_seed_says_what_it_set_and_that_is_the_documented_hash():
    seeded = debug.set_seed(7, 2)
    assert seeded == debug.Seeded(7, 2, hash_stream(7, 13, 2), ("python", "numpy", "torch"))
    assert torch.initial_seed() == seeded.value
    assert debug.set_seed(7) == debug.set_seed(7, 0)
    assert debug.set_seed(2, 7).value != seeded.value


@pytest.mark.parametrize("arguments", [(-1,), (1.5,), (True,), (2**63,), (0, -1), ("0",)])
def test_a_seed_that_cannot_be_is_refused(arguments):
    with pytest.raises(InputError, match=r"invalid (seed|rank)"):
        debug.set_seed(*arguments)


def test_ranks_find_their_seeds_before_the_process_group_and_with_it(job):
    for rank, said in enumerate(job[0]):
        value = hash_stream(5, 13, rank)
        assert said["seed"] == [rank, value, value, value]


# Parameters


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(dtype)


def changed(change):
    model = model_of()
    with torch.no_grad():
        change(model)
    return debug.param_hash(model)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight[0, 0].mul_(1.0000002),
        lambda model: model.double(),
        lambda model: model.bfloat16(),
        lambda model: setattr(model[0], "weight", torch.nn.Parameter(model[0].weight.reshape(3, 4))),
        lambda model: model.add_module("more", torch.nn.Linear(1, 1)),
        lambda model: model[1].bias[0].copy_(-0.0),
    ],
)
def test_a_hash_depends_on_names_types_shapes_and_each_bit(change):
    assert changed(change) != debug.param_hash(model_of())


def test_a_hash_does_not_depend_on_order_layout_gradients_or_buffers():
    model = model_of()
    expected = debug.param_hash(model)
    named = dict(reversed(list(model.named_parameters())))
    assert debug.param_hash(named) == expected
    strided = {name: torch.stack([value, value], -1)[..., 0].detach() for name, value in named.items()}
    assert not strided["0.weight"].is_contiguous()
    assert debug.param_hash(strided) == expected
    model(torch.ones(2, 3)).sum().backward()
    assert debug.param_hash(model) == expected
    assert debug.param_hash(model, buffers=True) != debug.param_hash(model_of(), buffers=True)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int64]
)
def test_all_types_are_hashed_also_empty_ones_and_scalars(dtype):
    for shape in ((), (0,), (3, 2)):
        same = [debug.param_hash({"a": torch.zeros(shape).to(dtype)}) for _ in range(2)]
        assert same[0] == same[1]
    one, zero = (debug.param_hash({"a": torch.full((2,), value).to(dtype)}) for value in (1.0, 0.0))
    assert one != zero


def test_sparse_tensors_and_views_are_hashed_by_their_values():
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert debug.param_hash({"a": dense.to_sparse()}) == debug.param_hash({"a": dense})
    numbers = torch.tensor([1 + 2j])
    assert debug.param_hash({"a": numbers.conj()}) == debug.param_hash({"a": numbers.conj().resolve_conj()})


class Sharded(torch.nn.Linear):
    """A module with a parameter as DeepSpeed ZeRO-3 leaves it."""

    def __init__(self):
        super().__init__(2, 2)
        self.weight = torch.nn.Parameter(torch.empty(0))
        self.weight.ds_id = 0


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (torch.nn.Linear(2, 2, device="meta"), "meta device"),
        (torch.nn.LazyLinear(2), "not initialised yet"),
        (Sharded(), "ZeRO-3"),
        ({"step": 3}, "found: int"),
        ([1, 2], "list"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_what_has_no_values_to_compare_is_refused(model, found):
    for check in (debug.param_hash, debug.check_same_parameters):
        with pytest.raises(InputError, match=found):
            check(model)


def test_one_process_has_nobody_to_differ_from():
    assert debug.check_same_parameters(model_of()) == 0


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([], []),
        (["a", "a"], []),
        (["a", None, "a"], []),
        (["a", "b", "a"], [1]),
        (["b", "a", "a", "c"], [0, 3]),
        (["a", "b"], [0, 1]),
        (["a", "b", None, "b", "a"], [0, 1, 3, 4]),
    ],
)
def test_those_who_differ_are_the_minority(values, odd):
    assert differing(values) == odd


def test_ranks_that_differ_are_named_by_their_ranks_in_the_job():
    ranks = Ranks((4, 5, 6), 0)

    def described(*digests):
        return difference([digest and Entry("a", "float32", (), digest) for digest in digests], ranks)

    assert described("x", "y", "x") == "rank 5 differs from the others"
    assert described("x", "y", "z") == "ranks 4, 5, 6 differ from each other"
    assert described("x", None, "x") == "float32 on ranks 4, 6, nothing on rank 5"
    assert described("x", "x", "x") == ""


def test_parameters_that_are_the_same_on_all_ranks_pass(job):
    for rank in job[0]:
        assert rank["parameters"]["same"] == {"returned": 4}
        assert rank["parameters"]["running statistics"] == {"returned": 2}
        assert rank["parameters"]["no buffers"] == {"returned": 2}
    assert job[0][0]["parameters"]["hash"] == job[0][1]["parameters"]["hash"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("different", ["parameter '2.weight'", "ranks 0, 1 differ from each other", "1 of 4 parameters"]),
        ("shapes", ["parameter 'weight'", "float32 of 2 x 3 on rank 0, float32 of 3 x 3 on rank 1"]),
        ("names", ["parameter 'b0'", "float32 of 1 on rank 0, nothing on rank 1"]),
        ("all buffers", ["parameter 'running_mean'", "1 of 5"]),
        ("own buffer", ["parameter 'mask'", "1 of 3"]),
        ("meta on one rank", ["parameter 'weight'", "meta device"]),
        ("unreadable", ["the disk is gone"]),
    ],
)
def test_parameters_that_differ_are_named_on_all_ranks(job, name, parts):
    for text in texts(job, "parameters", name):
        assert [part for part in parts if part not in text] == []


def test_an_error_of_one_rank_is_raised_on_all_and_says_whose_it_is(job):
    other, own = texts(job, "parameters", "meta on one rank")
    assert "rank 1, parameter" in other
    assert "rank 1" not in own
    other, own = (rank["parameters"]["unreadable"] for rank in job[0])
    assert "place: rank 1\n  found: OSError: the disk is gone" in other["text"]
    assert own["error"] == "OSError"


def test_sharded_parameters_are_compared_with_their_replicas(job):
    for rank in job[0]:
        sharded = rank["sharded"]
        assert sharded["own parts"] == {"returned": 0}
        assert sharded["replicas"] == {"returned": 4}
        assert sharded["tensors"] == {"returned": 1}
        assert sharded["meshes"] == {"returned": 1}
        assert sharded["meshes that look alike"] == {"returned": 0}
        assert sharded["gradients of replicas"] == {"returned": 4}
    for text in texts(job, "sharded", "a replica that differs"):
        assert "parameter '0.bias'" in text
    for text in texts(job, "sharded", "meshes, one differs"):
        assert "parameter 'dense'" in text
        assert "1 of 2 parameters" in text
    for text in texts(job, "sharded", "not reduced"):
        assert "Partial" in text
    for text in texts(job, "sharded", "old"):
        assert "FSDP1" in text
        assert "fully_shard" in text


def test_a_mesh_of_two_dimensions_costs_one_group_of_each_process_group(job):
    """The job has left its process group and joined another one between the two."""
    for rank in job[0]:
        for first, second in (rank["groups"], rank["groups again"]):
            assert first == second


def test_optimizers_that_differ_are_named_with_the_state_or_the_option(job):
    for rank in job[0]:
        assert rank["optimizers"]["same"]["returned"] > 3 * 4
    for name, place in (("option", "'group.0.lr'"), ("state", "'state.3.exp_avg'")):
        for text in texts(job, "optimizers", name):
            assert f"optimizer value {place}" in text
            assert "ranks 0, 1 differ from each other" in text


# Gradients


def test_gradients_that_ddp_has_reduced_pass_and_those_of_a_plain_model_do_not(job):
    for rank in job[0]:
        assert rank["gradients"]["reduced"] == {"returned": 4}
        assert rank["gradients"]["within a tolerance"] == {"returned": 4}
    for text in texts(job, "gradients", "not reduced"):
        assert "the ranks have different gradients" in text
        assert re.search(r"'0\.weight': ranks 0, 1 differ from each other; norms rank 0 [\d.]+, rank 1 [\d.]+", text)


def test_gradients_of_complex_numbers_are_compared_with_both_parts_and_small_floats_are_looked_at(job):
    for text in texts(job, "gradients", "complex, within a tolerance"):
        assert "norms rank 0 1.41421356, rank 1 5.09901951 (0.72 apart)" in text
    model = torch.nn.Linear(1, 1, dtype=torch.complex64)
    model.weight.grad = torch.tensor([[complex(1, math.nan)]])
    with pytest.raises(debug.CheckError, match="1 NaN"):
        debug.check_same_gradients(model)
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn))
    model.weight.grad = torch.tensor([1.0, math.nan]).to(torch.float8_e4m3fn)
    with pytest.raises(debug.CheckError, match="1 NaN"):
        debug.check_same_gradients(model)


def test_a_gradient_that_is_not_finite_or_missing_is_named_with_its_rank(job):
    for text in texts(job, "gradients", "nan"):
        assert "'module.2.bias': rank 1: 1 NaN, 0 infinite" in text
        assert "rank 0" not in text
    for text in texts(job, "gradients", "none"):
        assert "'module.2.bias': float32 of 2 on rank 0, no gradient on rank 1" in text


def test_a_spot_check_looks_at_the_first_and_the_last_parameter():
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(20)))
    model(torch.ones(1, 2)).sum().backward()
    assert debug.check_same_gradients(model) == 8
    assert debug.check_same_gradients(model, sample=None) == 40
    for name in ("0.weight", "19.bias"):
        gradient = model.get_parameter(name).grad
        kept, gradient[0] = gradient[0].clone(), torch.inf
        with pytest.raises(debug.CheckError, match=re.escape(name)):
            debug.check_same_gradients(model, sample=2)
        gradient[0] = kept


@pytest.mark.parametrize("options", [{"sample": 0}, {"sample": 1.5}, {"tolerance": 1.0}, {"tolerance": -0.1}])
def test_options_of_the_spot_check_that_cannot_be_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        debug.check_same_gradients(model_of(), **options)


# Audits


def test_audits_of_trainings_that_are_right_hold(job):
    whole, rest = "epoch {}: 101 samples, each once, by {}; pads: {}; nothing is missing", "__key__ and __position__"
    expected = {
        "pad": [whole.format(epoch, rest, 7) for epoch in (0, 1)],
        "drop": [whole.format(epoch, rest, 0).replace("101", "96") for epoch in (0, 1)],
        "uneven": [whole.format(epoch, rest, 0) for epoch in (0, 1)],
        "workers": [whole.format(0, rest, 7)],
        "tuples": [whole.format(0, rest, 7)],
        "keys alone": [whole.format(0, "__key__", 7)],
        "replicas": [whole.format(0, rest, 1)],
        "whole mesh": [whole.format(0, rest, 7)],
        "left early": [f"epoch 0: 36 samples, each once, by {rest}; pads: 0; left before its end"],
        "resumed": [
            f"epoch 0 from position 36 on: 65 samples, each once, by {rest}; pads: 7; nothing is missing",
            whole.format(1, rest, 7),
        ],
    }
    for rank in job[0]:
        held = dict(rank["audits that hold"])
        resumed, left = held.pop("resumed, uneven"), held.pop("left early, uneven")
        assert left == [f"epoch 0: 36 samples, each once, by {rest}; pads: 0; left before its end"]
        assert held == expected
        assert re.fullmatch(r"epoch 0 from position \d+ on: 65 samples, each once, .*nothing is missing", resumed[0])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "ignored rank",
            [
                "delivered more than once in epoch 0",
                "101 deliveries too many",
                "sample '00000042' at position 0: rank 0 in step 0, rank 1 in step 0",
                "rank 1 reads as rank 0 of 1",
            ],
        ),
        (
            "ignored rank, keys alone",
            ["101 deliveries too many", "key has the hash", "rank 0 in step 0, rank 1 in step"],
        ),
        ("ignored rank, positions alone", ["101 deliveries too many", "at position 0: rank 0 in step 0, rank 1 in"]),
        ("other seeds", ["delivered more than once", "rank 1 has seed 1, rank 0 0"]),
        ("other epochs", ["delivered more than once", "rank 1 has epoch 1, rank 0 0"]),
        ("other positions", ["do not read one and the same epoch", "begin at position: rank 0 0, rank 1 12"]),
        ("lost", ["6 samples missing", "position 37, which rank 1 should have had in step 3", "rank 0 9, rank 1 8"]),
        ("one leaves early", ["what was delivered is not epoch 0", "steps: rank 0 9, rank 1 7"]),
        ("lost, left before the end", ["position 37, which rank 1 should have had in step 3", "samples too many"]),
        ("comparison", ["the disk is gone"]),
        ("lost, uneven", ["6 samples missing", "at position 37, which rank 1 should have had"]),
        ("dropped fields", ["cannot tell which samples", "found: cls", "AUDITED"]),
    ],
)
def test_an_audit_fails_on_all_ranks_and_names_samples_ranks_and_steps(job, name, parts):
    for text in texts(job, "audits that fail", name):
        assert [part for part in parts if part not in text] == []


def test_nobody_waits_for_a_rank_that_has_left_an_audit_by_an_error(job):
    first = job[0][0]["a rank that fails"]
    assert "rank 1 left: EndedError: the loss is nan" in first["text"]
    assert first["waited_s"] < 100


def test_nobody_waits_for_a_rank_whose_comparison_fails(job):
    own, other = (rank["audits that fail"]["comparison"] for rank in job[0])
    assert own["error"] == "OSError"
    assert "rank 0 left: OSError: the disk is gone" in other["text"]


def test_nobody_waits_for_a_rank_that_has_fewer_epochs(job):
    first, second = (rank["unequal epochs"] for rank in job[0])
    assert "rank 1 left: its audit is over" in first["text"]
    assert len(second["returned"]) == 1


def repeating(batches):
    """Give the third batch again after the fourth."""
    kept = None
    for step, batch in enumerate(batches):
        yield batch
        kept = batch if step == 2 else kept
        if step == 3:
            yield kept


def mislabelling(batches):
    """Give two samples of a batch one key."""
    for batch in batches:
        batch["__key__"][0] = batch["__key__"][1]
        yield batch


def hiding(batches):
    """Call a sample a pad."""
    for step, batch in enumerate(batches):
        if step == 1:
            batch["__pad__"][0] = True
        yield batch


def unflagged(batches):
    """Call no pad a pad."""
    for batch in batches:
        batch["__pad__"][:] = False
        yield batch


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (repeating, ["12 deliveries too many", "rank 0 in step 2, rank 0 in step 4"]),
        (mislabelling, ["9 deliveries too many", "the sample at position 0: rank 0 in step 0, rank 0 in step 0"]),
        (hiding, ["1 samples missing", "at position 12, which rank 0 should have had in step 1"]),
        (unflagged, ["7 deliveries too many", "rank 0 in step 8, rank 0 in step 8"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_audit_believes_the_batches_and_not_the_loader(numbers, wrong, parts):
    class Wrong(Loader):
        def __iter__(self):
            return wrong(super().__iter__())

    with pytest.raises(debug.CheckError) as caught, debug.audit(Wrong(Dataset(numbers), 12)) as audited:
        list(audited)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_an_audit_names_the_steps_of_the_first_sample_that_came_twice(numbers):
    class Wrong(Loader):
        def __iter__(self):
            return repeating(super().__iter__())

    with pytest.raises(debug.CheckError) as caught, debug.audit(Wrong(Dataset(numbers), 12)) as audited:
        list(audited)
    assert "at position 24: rank 0 in step 2, rank 0 in step 4; " in caught.value.found


def test_an_audit_tells_of_samples_also_if_they_cannot_be_read(numbers, monkeypatch):
    class Wrong(Loader):
        def __iter__(self):
            return repeating(super().__iter__())

    def sample(dataset, index):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Dataset, "sample", sample)
    with pytest.raises(debug.CheckError) as caught, debug.audit(Wrong(Dataset(numbers), 12)) as audited:
        list(audited)
    assert "the sample at position 24: rank 0 in step 2, rank 0 in step 4; " in caught.value.found


def test_an_epoch_is_complete_with_its_last_batch_and_one_that_is_left_early_is_audited_so_far(numbers):
    class Losing(Loader):
        def __iter__(self):
            return (batch for step, batch in enumerate(super().__iter__()) if step != 1)

    with debug.audit(Loader(Dataset(numbers), 12)) as audited:
        batches = iter(audited)
        for _ in range(len(audited)):
            next(batches)
    assert audited.epochs[0].complete
    with (
        pytest.raises(debug.CheckError, match=r"12 samples too many.*; 12 samples missing"),
        debug.audit(Losing(Dataset(numbers), 12)) as audited,
    ):
        for step, _ in enumerate(audited):
            if step == 2:
                break


def test_a_resumed_audit_refuses_what_was_delivered_before(numbers):
    class Forgetful(Loader):
        def __iter__(self):
            return chain([next(iter(Loader(self.dataset, 12)))], super().__iter__())

    loader = Forgetful(Dataset(numbers), 12)
    loader.load_state_dict({**loader.state_dict(), "position": 60})
    with pytest.raises(debug.CheckError, match="12 samples too many") as caught, debug.audit(loader) as audited:
        list(audited)
    assert "at position 0: rank 0 in step 5" in caught.value.found


def test_without_positions_an_audit_counts(numbers):
    class Losing(Loader):
        def __iter__(self):
            return (batch for step, batch in enumerate(super().__iter__()) if step != 3)

    loader = Losing(Dataset(numbers).to_tuple("__key__", "__pad__"), 12)
    with pytest.raises(debug.CheckError, match="89 samples instead of 101"), debug.audit(loader) as audited:
        list(audited)


def test_positions_are_compared_over_all_of_an_epoch(monkeypatch):
    monkeypatch.setattr(delivered, "_AT_ONCE", 4)
    given = np.array([0, 2, 4, 6, 8, 18, 2, 21])

    def even(positions):
        return positions % 2 == 0

    alone = Rendezvous(Ranks(), "test", 1.0)
    faults = delivered.compare_positions(alone, given, len(given), even, stop=20)
    assert (faults.num_repeated, faults.repeated) == (1, [[(0, 1), (0, 6)]])
    assert (faults.num_missing, faults.missing) == (4, [10, 12, 14, 16])
    assert (faults.num_unexpected, faults.unexpected) == (1, [(0, 7)])
    assert delivered.compare_positions(alone, given[:0], 0, even, stop=20).num_missing == 10


def test_large_audits_go_in_buckets(numbers, monkeypatch):
    monkeypatch.setattr(delivered, "_AT_ONCE", 7)
    with debug.audit(Loader(Dataset(numbers), 12)) as audited:
        list(audited)
    assert audited.epochs[0].samples == 101
    with pytest.raises(debug.CheckError, match="12 deliveries too many"), debug.audit(audited._loader) as audited:
        for step, _ in enumerate(audited):
            if step == 4:
                audited._record.note(*audited_again(audited))


def audited_again(audited):
    """Return what notes a batch that was delivered before."""
    return next(iter(Loader(Dataset(audited._loader.dataset.source.url), 12))), audited._identify


def test_a_limited_dataset_is_audited_as_what_it_is(numbers):
    with debug.audit(Loader(Dataset(numbers, limit=20), 12)) as audited:
        list(audited)
    assert (audited.epochs[0].samples, audited.epochs[0].pads) == (20, 4)


def test_an_epoch_resumed_on_one_rank_is_audited_from_where_two_have_left_it(numbers):
    two = Loader(Dataset(numbers, rank=1, world_size=2), 6)
    for _, _ in zip(two, range(3), strict=False):
        state = two.state_dict()
    one = Loader(Dataset(numbers), 9)
    one.load_state_dict(state)
    with debug.audit(one) as audited:
        list(audited)
    epoch = audited.epochs[0]
    assert (epoch.start, epoch.samples, epoch.complete) == (state["position"], 101 - state["position"], True)


def test_a_mixture_is_audited_by_positions_because_its_keys_come_again(numbers):
    dataset = mix(repeat={numbers: 2})
    with debug.audit(Loader(dataset, 12)) as audited:
        list(audited)
    assert (audited.epochs[0].samples, audited.epochs[0].by) == (202, ("__position__",))
    with (
        pytest.raises(InputError, match="cannot tell"),
        debug.audit(Loader(dataset.to_tuple("__key__"), 12)) as audited,
    ):
        list(audited)


def test_a_collate_fn_says_itself_where_the_samples_stand(numbers):
    loader = Loader(Dataset(numbers), 12, collate_fn=lambda samples: samples)

    def identify(samples):
        return {name: [sample[name] for sample in samples] for name in debug.AUDITED}

    with debug.audit(loader, identify=identify) as audited:
        batches = list(audited)
    assert audited.epochs[0].samples == 101
    assert isinstance(batches[0], list)
    with pytest.raises(InputError, match="a batch without names"), debug.audit(loader) as audited:
        list(audited)


def test_without_a_process_group_one_rank_of_several_is_audited_alone(numbers, caplog):
    loader = Loader(Dataset(numbers, rank=1, world_size=3), 4)
    with debug.audit(loader) as audited:
        list(audited)
    assert audited.epochs[0].complete
    assert audited.epochs[0].samples == 34
    assert "only what rank 1 of 3 is given is audited" in caplog.text


def test_an_audit_stands_in_for_its_loader(numbers):
    loader = Loader(Dataset(numbers), 12)
    with debug.audit(loader) as audited:
        audited.set_epoch(3)
        assert (len(audited), audited.epoch, audited.batch_size) == (9, 3, 12)
        assert [batch["__key__"] for batch in audited] == [
            batch["__key__"] for batch in epoch_of(Loader(Dataset(numbers), 12), 3)
        ]
        assert audited.state_dict() == loader.state_dict()
    assert [epoch.epoch for epoch in audited.epochs] == [3]
    with pytest.raises(InputError, match="an audit is a context"):
        list(audited)
    with pytest.raises(InputError, match=r"wdsplit\.Loader"):
        debug.audit([1, 2])


def epoch_of(loader, epoch):
    loader.set_epoch(epoch)
    return loader


# Rendezvous


def test_a_barrier_names_who_did_not_come_and_who_comes_too_late_is_told(job):
    first, second = (rank["late"] for rank in job[0])
    assert first["met"] == second["met"] == {"returned": None}
    assert "found: rank 1 did not come" in first["alone"]["text"]
    assert "place: second" in first["alone"]["text"]
    assert "rank 0 left: gave up waiting for rank 1" in second["too late"]["text"]


@pytest.mark.parametrize("name", ["in a mesh", "in a check"])
def test_nobody_waits_for_a_rank_that_does_not_come_to_a_mesh_or_a_check(job, name):
    first, second = (rank["late"] for rank in job[0])
    assert "found: rank 1 did not come" in first[f"alone {name}"]["text"]
    assert "rank 0 left: gave up waiting for rank 1" in second[f"too late {name}"]["text"]


def test_one_process_waits_for_nobody():
    debug.barrier(0.001)
    with pytest.raises(InputError, match="timeout_s"):
        debug.barrier(0)


# Losses


def logged(folder, losses):
    """Write the losses of some ranks, {rank: losses}."""
    for rank, values in losses.items():
        with debug.LossLog(folder, rank) as log:
            for step, loss in enumerate(values):
                log.log(step, loss)
    return debug.read_losses(folder)


def noisy(rank, num_steps, away=lambda step: 0.0):
    numbers = np.random.default_rng(rank).normal(0, 0.1, num_steps)
    return [3 * math.exp(-step / 40) + number + away(step) for step, number in enumerate(numbers.tolist())]


def test_losses_of_a_job_are_lined_up_and_a_rank_that_leaves_is_found(job):
    losses = debug.read_losses(job[1] / "losses")
    assert (losses.ranks, len(losses.steps), losses.behind()) == ((0, 1), 60, {})
    assert [each.rank for each in losses.diverged()] == [0, 1], "of two, nobody knows which"
    assert 30 < losses.diverged()[0].step < 36


def test_ranks_that_see_different_samples_do_not_diverge(tmp_path):
    losses = logged(tmp_path, {rank: noisy(rank, 300) for rank in range(8)})
    assert losses.diverged() == []
    assert str(losses).startswith("8 ranks, steps 0 to 299; mean loss of the last 10: rank 0 ")


def test_the_rank_that_leaves_the_others_is_named_with_the_step(tmp_path):
    def away(step):
        return 0.05 * max(0, step - 150)

    losses = logged(tmp_path, {rank: noisy(rank, 300, away if rank == 2 else lambda step: 0.0) for rank in range(4)})
    [found] = losses.diverged()
    assert found.rank == 2
    assert 150 < found.step < 170
    assert found.loss > found.others
    assert f"diverges: rank 2 from step {found.step} on" in str(losses)


@pytest.mark.parametrize("deviation", [0.002, 0.0015])
def test_losses_that_are_rounded_so_that_most_do_not_change_do_not_diverge(tmp_path, deviation):
    generator = np.random.default_rng(0)
    values = {rank: 2 + deviation * generator.standard_normal(2000) for rank in range(4)}
    losses = logged(tmp_path, {rank: (own * 128).round() / 128 for rank, own in values.items()})
    assert 0 < (np.diff(losses.losses, axis=0) != 0).mean() < 0.2
    assert losses.diverged() == []
    values[2][500:] += 0.05
    [found] = logged(tmp_path, {rank: (own * 128).round() / 128 for rank, own in values.items()}).diverged()
    assert (found.rank, 500 <= found.step < 505) == (2, True)


def test_after_a_resume_on_fewer_ranks_those_that_are_left_are_compared(tmp_path):
    def away(step):
        return 50.0 * (step > 100)

    losses = logged(tmp_path, {0: noisy(0, 300), 1: noisy(1, 300, away), 2: noisy(2, 300), 3: noisy(3, 50)})
    [found] = losses.diverged()
    assert (found.rank, found.step) == (1, 101)
    assert losses.behind() == {3: 49}


def test_a_loss_that_is_not_finite_diverges_at_once_also_alone(tmp_path):
    losses = logged(tmp_path / "one", {0: [1.0, 0.9, math.inf, math.nan]})
    assert [(each.rank, each.step) for each in losses.diverged()] == [(0, 2)]
    losses = logged(tmp_path / "two", {0: [1.0, 0.5], 1: [1.0, math.nan]})
    assert [(each.rank, each.step, each.others) for each in losses.diverged(window=2)] == [(1, 1, 0.5)]


def test_a_rank_that_ends_early_is_told(tmp_path):
    losses = logged(tmp_path, {0: noisy(0, 40), 1: noisy(1, 25), 2: []})
    assert losses.behind() == {1: 24, 2: -1}
    assert "ends early: rank 1, at step 24" in str(losses)


def test_a_log_is_plain_json_and_goes_on_after_a_kill(tmp_path, caplog):
    with debug.LossLog(tmp_path, 3) as log:
        log.log(np.int64(7), torch.tensor(0.5, requires_grad=True), norm=math.nan)
    assert log.path == tmp_path / "rank-00003.jsonl"
    assert json.loads(log.path.read_text()) == {"step": 7, "rank": 3, "loss": 0.5, "norm": "nan"}
    with log.path.open("a") as file:
        file.write('{"step": 8, "ra')
    with debug.LossLog(tmp_path, 3) as log:
        log.log(7, 0.25)
        log.log(8, 0.125)
    with caplog.at_level(logging.WARNING):
        losses = debug.read_losses(tmp_path)
    assert (losses.steps.tolist(), losses.losses.tolist()) == ([7, 8], [[0.25], [0.125]])
    assert "rank-00003.jsonl, line 2" in caplog.text


def test_a_line_is_there_before_the_log_is_closed(tmp_path):
    log = debug.LossLog(tmp_path, 0)
    log.log(0, 1.5)
    assert debug.read_losses(tmp_path).losses.tolist() == [[1.5]]
    log.close()


def test_what_is_no_loss_is_refused(tmp_path):
    with debug.LossLog(tmp_path, 0) as log:
        with pytest.raises(InputError, match="another name"):
            log.log(0, 1.0, rank=7)
        for step, loss in ((0, "much"), (0, torch.ones(2)), (0, None), (0.5, 1.0)):
            with pytest.raises(InputError, match=r"loss log|invalid step"):
                log.log(step, loss)
    with pytest.raises(DatasetNotFoundError):
        debug.read_losses(tmp_path / "nowhere")
    with pytest.raises(InputError, match="window"):
        debug.read_losses(tmp_path).diverged(window=0)


# Diagnosis


MODEST = Figures(
    batches=100,
    samples=1000,
    num_bytes=10**6,
    iterations=1,
    wait_s=5.0,
    compute_s=5.0,
    first_wait_s=0.1,
    waits={"50": 0.05, "90": 0.06, "99": 0.07, "100": 0.08},
    computes={"50": 0.05, "90": 0.06, "99": 0.07, "100": 0.08},
    num_workers=4,
    num_processors=4,
    prefetch_factor=2,
    is_threaded=False,
    is_persistent=True,
    is_remote=False,
    is_cached=False,
    read_ahead_bytes=2**27,
    connections=16,
    decodes_images=False,
    is_columnar=True,
    collates=False,
    windows_read=1.0,
    sharing=None,
)
"""A loader that is too slow, and of which nothing is to be said but that the processors are busy."""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "4 workers keep all 4 processors busy"),
        ({"num_workers": 0}, "more workers (now num_workers=0): this machine has 4 processors"),
        ({"first_wait_s": 4.0, "iterations": 3, "is_persistent": False}, "persistent_workers=True"),
        ({"decodes_images": True}, "resized(224)"),
        ({"num_bytes": 10**9}, "samples have 1,000 kB"),
        ({"is_columnar": False, "is_threaded": True}, "workers='process'"),
        ({"collates": True}, "collate_fn runs"),
        ({"is_remote": True}, "read_ahead_bytes (now 128 MiB) and connections (now 16)"),
        ({"waits": {**MODEST.waits, "99": 3.0}}, "one wait of a hundred takes 3.0 s"),
        ({"windows_read": 2.5, "sharing": "use 2 ranks"}, "each window is read 2.5 times: use 2 ranks"),
    ],
)
def test_each_piece_of_advice_has_its_condition(changes, told):
    busy = advice(MODEST)
    assert len(busy) == 1
    assert any(told in each for each in advice(replace(MODEST, **changes)))
    assert not changes or not any(told in each for each in busy)
    assert advice(replace(MODEST, **changes, wait_s=0.5)) == []


def slow(value, seconds):
    time.sleep(seconds)
    return value


def test_a_loader_that_is_slow_is_told_from_a_model_that_is(numbers):
    loader, begun = Loader(Dataset(numbers).map(lambda sample: slow(sample, 0.001)), 12), time.perf_counter()
    list(loader)
    taken_s = time.perf_counter() - begun
    found = debug.diagnose(loader)
    assert found.bottleneck == "loader"
    assert str(found).startswith("loader-bound: the training waits for batches ")
    assert any("more workers" in each for each in found.advice)
    assert 0.009 < found.figures.waits["50"] < found.figures.waits["100"] < taken_s
    loader = Loader(Dataset(numbers), 12)
    for _ in loader:
        time.sleep(0.1)
    found = debug.diagnose(loader)
    assert (found.bottleneck, found.advice) == ("model", ())
    assert str(found).startswith("compute-bound: the loader keeps up")
    assert found.figures.computes["50"] > 0.099
    values = json.loads(json.dumps(found.as_dict()))
    assert (values["batches"], values["samples"], values["iterations"]) == (9, 108, 1)
    assert values["samples_per_s"] == pytest.approx(108 / (values["wait_s"] + values["compute_s"]))


def test_a_diagnosis_knows_how_the_loader_is_set_up(numbers):
    dataset = mix({numbers: 1}).decode(resized(8))
    loader = Loader(dataset, 12, num_workers=2, workers="thread", prefetch_factor=3)
    assert str(debug.diagnose(loader)) == "nothing was delivered yet"
    for _ in range(2):
        list(loader)
    found = debug.diagnose(loader).figures
    assert (found.iterations, found.num_workers, found.is_threaded, found.prefetch_factor) == (2, 2, True, 3)
    assert (found.is_remote, found.is_cached, found.decodes_images, found.collates) == (False, False, False, False)
    assert debug.diagnose(Loader(Dataset(numbers).decode("pil"), 12)).figures.decodes_images
    assert found.first_wait_s <= found.wait_s


def test_a_diagnosis_of_an_audit_is_that_of_its_loader(numbers):
    with debug.audit(Loader(Dataset(numbers), 12)) as audited:
        list(audited)
        assert debug.diagnose(audited).figures.batches == 9


def test_a_loader_is_diagnosed_also_as_an_integration_has_it_and_nothing_else(numbers):
    opaque = OpaqueLoader(Loader(Dataset(numbers), 12))
    list(opaque)
    assert debug.diagnose(opaque).figures.batches == 9
    with pytest.raises(InputError, match=r"expected: a wdsplit\.Loader.*\n  found: list"):
        debug.diagnose([1, 2])


# The package


def test_importing_wdsplit_does_not_load_it():
    script = "import sys, wdsplit\nassert not any(name.startswith('wdsplit.debug') for name in sys.modules)"
    assert "wdsplit" in modules_loaded_by(script)


def test_without_torch_all_works_that_needs_no_other_rank(numbers, tmp_path):
    script = f"""
import sys
sys.modules["torch"] = None
import wdsplit
from wdsplit import debug
assert debug.set_seed(3, 1).libraries == ("python", "numpy")
with debug.audit(wdsplit.Loader(wdsplit.Dataset({numbers!r}), 12)) as audited, debug.LossLog({str(tmp_path)!r}) as log:
    for step, batch in enumerate(audited):
        log.log(step, 0.5)
assert audited.epochs[0].samples == 101, audited.epochs
assert debug.read_losses({str(tmp_path)!r}).losses.shape == (9, 1)
assert debug.diagnose(audited).figures.batches == 9
debug.barrier(1)
try:
    debug.param_hash({{}})
except wdsplit.MissingDependencyError as error:
    assert "torch is not installed" in str(error)
else:
    raise AssertionError
"""
    assert "wdsplit" in modules_loaded_by(script)


def readme_blocks():
    section = README.read_text().split("### Debugging\n")[1].split("\n### ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)]


def test_the_blocks_of_the_readme_run(tmp_path, monkeypatch):
    numbers_dataset(tmp_path / "data", 101, shards=7, lanes=4, window=4)
    (tmp_path / "data" / "out").rename(tmp_path / "data" / "train")
    monkeypatch.chdir(tmp_path)
    linear = torch.nn.Linear(1, 1)

    def train_step(batch):
        loss = linear(torch.as_tensor([[float(len(batch))]])).square().sum()
        linear.zero_grad()
        loss.backward()
        return loss

    names = {"make_model": lambda: linear, "train_step": train_step}
    assert len(readme_blocks()) >= 4
    for block in readme_blocks():
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "losses" / "rank-00000.jsonl").exists()
