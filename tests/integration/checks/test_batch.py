"""`wdsplit.batch` and `wdsplit.batches` list exactly what loaders deliver."""

import itertools
import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wdsplit
from made_datasets import converted, images_table, numbers_dataset, sized_dataset
from model_runs import ModelRun
from tables import with_class_names
from wdsplit.checks import samples
from wdsplit.checks.samples import save_samples
from wdsplit.checks.states import read_state
from wdsplit.errors import InputError, OutputExistsError, StateError, TopologyError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.mix import mix

FIELDS = ("__position__", "__key__", "__pad__")


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    return sized_dataset(tmp_path_factory.mktemp("sized"), [30, 70, 5, 0, 41, 9, 2, 44], lanes=4, window=4)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return numbers_dataset(tmp_path_factory.mktemp("other"), 60, world_size=2, workers=2)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(60), key="name", world_size=2, workers=2)


def of_path(path, **options):
    return lambda rank, world_size: Dataset(path, rank=rank, world_size=world_size, **options)


def loaders_of(opened, world_size, batch_size, epoch=0, states=()):
    """Return the loader of each rank; with tail `uneven` each has a state of its own."""
    loaders = []
    for rank in range(world_size):
        loader = Loader(opened(rank, world_size).to_tuple(*FIELDS), batch_size)
        loader.set_epoch(epoch)
        if states:
            loader.load_state_dict(json.loads(json.dumps(states[rank % len(states)])))
        loaders.append(loader)
    return loaders


def delivered(loaders, num_steps=None):
    """Return the rows (position, key, pad, rank) of each step, of all ranks, by their positions."""
    ranks = [
        [
            [(*row, rank) for row in zip(positions.tolist(), keys, pads.tolist(), strict=True)]
            for positions, keys, pads in itertools.islice(loader, num_steps)
        ]
        for rank, loader in enumerate(loaders)
    ]
    return [sorted(itertools.chain(*parts)) for parts in itertools.zip_longest(*ranks, fillvalue=[])]


def listed(found):
    columns = found.positions.tolist(), found.keys.tolist(), found.pads.tolist(), found.ranks.tolist()
    return list(zip(*columns, strict=True))


topologies = st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 4, 7]))
"""Ranks, and batch size."""


@settings(max_examples=settings.default.max_examples // 3)
@given(topologies, st.sampled_from(["pad", "drop", "uneven"]), st.booleans(), st.integers(0, 5), st.integers(1, 9))
def test_each_step_is_what_the_loaders_of_all_ranks_deliver(sized, topology, tail, shuffle, epoch, lanes):
    options = {"tail": tail, "shuffle": shuffle, "lanes": lanes, "seed": 3, "window": 5}
    steps = delivered(loaders_of(of_path(sized, **options), *topology, epoch))
    world_size, batch_size = topology
    numbers = range(0, len(steps), 1 + len(steps) // 6)
    found = wdsplit.batches(sized, numbers, epoch=epoch, world_size=world_size, batch_size=batch_size, **options)
    assert [listed(each) for each in found] == [steps[number] for number in numbers]
    assert [(each.epoch, each.step, each.num_steps) for each in found] == [
        (epoch, number, len(steps)) for number in numbers
    ]


class Run:
    """The loaders of all ranks in lockstep, which are skipped and resumed together."""

    def __init__(self, opened, topology, state=None, epoch=0):
        self.opened, self.topology = opened, topology
        self.loaders = loaders_of(opened, *topology, epoch, [] if state is None else [state])
        self.iterators = []

    @property
    def state(self):
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]

    def take(self):
        """Return the number of the next step, and its rows."""
        self.iterators = self.iterators or [loader.enumerate() for loader in self.loaders]
        try:
            steps = [next(iterator) for iterator in self.iterators]
        except StopIteration:
            self.iterators = []
            return self.take()
        assert len({number for number, _ in steps}) == 1
        return steps[0][0], delivered([[batch] for _, batch in steps])[0]

    def skip(self, first, last):
        for loader in self.loaders:
            loader.skip(first, last)


@settings(max_examples=settings.default.max_examples // 3)
@given(topologies, st.sampled_from(["pad", "drop"]), st.data())
def test_skips_and_resumes_are_those_of_a_plain_model_for_the_loader_and_for_batch(sized, topology, tail, data):
    opened = of_path(sized, tail=tail)
    model = ModelRun(201, topology[0] * topology[1], tail)
    run = Run(opened, topology)
    for action in data.draw(st.lists(st.sampled_from(["take", "skip", "resume"]), min_size=3, max_size=9)):
        ranks, size = run.topology
        how = {"world_size": ranks, "batch_size": size}
        if action == "take":
            for _ in range(data.draw(st.integers(1, 9))):
                number, positions = model.take()
                step, rows = run.take()
                assert (step, [row[0] for row in rows]) == (number, positions)
        elif action == "skip":
            behind = [number for epoch, number, _ in model.delivered if epoch == model.epoch]
            begin = min([*behind[-3:], *model.due(), model.num_steps - 1])
            first = data.draw(st.integers(begin, min(begin + 6, model.num_steps - 1)))
            last = data.draw(st.integers(first, min(first + 4, model.num_steps - 1)))
            numbers = [number for number in model.due() if first <= number <= last]
            shown = wdsplit.batches(sized, numbers, state=run.state, epoch=model.epoch, tail=tail, **how)
            assert [each.positions.tolist() for each in shown] == [model.due()[number] for number in numbers]
            if model.skip(first, last):
                run.skip(first, last)
            else:
                with pytest.raises(InputError, match="already delivered"):
                    run.skip(first, last)
        else:
            state = run.state
            topology = data.draw(topologies)
            model.resume(topology[0] * topology[1])
            run = Run(opened, topology, state)
        assert_listed_as_modelled(sized, run, model)


def assert_listed_as_modelled(sized, run, model):
    """Compare the loader's counts, the steps to come and the last ones with the model."""
    due, state = model.due(), run.state
    assert (state["epoch"], state["position"]) == (model.epoch, model.position)
    assert {loader.step for loader in run.loaders} == {min(due, default=model.num_steps)}
    how = {"state": state, "world_size": run.topology[0], "batch_size": run.topology[1]}
    numbers = sorted(due)[:: 1 + len(due) // 4]
    shown = wdsplit.batches(sized, numbers, epoch=model.epoch, tail=model.tail, **how)
    assert [each.positions.tolist() for each in shown] == [due[number] for number in numbers]
    assert not any(each.is_skipped for each in shown)
    known = [step for step in model.delivered if step[0] >= state["epoch"] - 1]
    last = [(each.epoch, each.step, each.positions.tolist()) for each in wdsplit.batches(sized, last=7, **how)]
    assert last == known[-7:]


@settings(max_examples=settings.default.max_examples // 4)
@given(topologies, st.sampled_from(["pad", "drop", "uneven"]), st.integers(0, 60), st.integers(1, 12))
def test_the_last_steps_before_a_state_are_those_that_were_delivered_last(sized, topology, tail, taken, last):
    opened = of_path(sized, tail=tail)
    loaders = loaders_of(opened, *topology, 2)
    steps = [delivered(loaders)]
    taken = min(taken, min(map(len, loaders)) - 1)
    steps.append(delivered(loaders, taken))
    for rank, loader in enumerate(loaders):
        found = wdsplit.batches(sized, last=last, state=loader.state_dict(), world_size=topology[0])
        expected = list(itertools.chain(*steps))
        if tail == "uneven":  # the state is that of a rank
            expected = [[row for row in step if row[3] == rank] for step in expected]
            expected = [step for step in expected if step]
        assert [listed(each) for each in found] == expected[-last:]


def test_no_step_is_listed_before_a_state_that_nobody_saw(sized):
    loader = loaders_of(of_path(sized), 1, 12, epoch=3)[0]
    delivered([loader], 2)
    with pytest.raises(InputError, match="another size") as error:
        wdsplit.batches(sized, last=9, state=loader.state_dict(), batch_size=5)
    assert error.value.expected == "batch_size x world_size = 12, the global batch of the state"
    resumed = loaders_of(of_path(sized), 1, 5, states=[loader.state_dict()])[0]
    number = resumed.step
    delivered([resumed], 2)
    state = resumed.state_dict()
    assert [each.step for each in wdsplit.batches(sized, last=9, state=state)] == [number, number + 1]
    with pytest.raises(InputError, match="no such step") as error:
        wdsplit.batch(sized, number - 1, state=state)
    assert error.value.expected == "a step after position 24, where the global batch changed"


def test_a_mixture_says_which_dataset_each_sample_is_from(sized, other, tmp_path):
    def opened(rank, world_size):
        return mix({sized: 0.4, other: 0.6}, num_samples=100, seed=4, rank=rank, world_size=world_size)

    steps = delivered(loaders_of(opened, 2, 8, 1))
    found = wdsplit.batches(opened(0, 1), range(len(steps)), epoch=1, world_size=2, batch_size=8)
    assert [listed(each) for each in found] == steps
    samples = [sample for each in found for sample in each.samples()]
    sources = [source for each in found for source in each.sources]
    plain = [sample for loader in [opened(0, 1)] for sample in [loader.set_epoch(1), *loader][1:]]
    assert [sample["__key__"] for sample in samples[:100]] == [sample["__key__"] for sample in plain[:100]]
    assert sources[:100] == [sample["__source__"] for sample in plain[:100]]
    loader = loaders_of(opened, 1, 16, 1)[0]
    delivered([loader], 3)
    (last,) = wdsplit.batches(opened(0, 1), last=1, state=loader.state_dict())
    assert last.positions.tolist() == list(range(32, 48))
    once = wdsplit.batch(mix(repeat={sized: 1, other: 2}, rank=0, world_size=1), 0, batch_size=321)
    once.save(tmp_path)
    assert [len(list((tmp_path / number).glob("*.cls"))) for number in "01"] == [201, 60], "a folder for each dataset"


def test_a_view_is_that_of_the_state_also_where_the_epoch_before_had_another(other):
    dataset = of_path(other, where="cls < 40")
    loader = loaders_of(dataset, 1, 5)[0]
    steps = delivered([loader], 4)
    for opened, options in ((dataset(0, 1), {}), (other, {"where": "cls < 40"})):
        found = wdsplit.batches(opened, last=3, state=loader.state_dict(), **options)
        assert [listed(each) for each in found] == steps[1:]
        assert {int(label) < 40 for each in found for label in each.labels} == {True}
    with pytest.raises(StateError, match="another view"):
        wdsplit.batches(other, last=3, state=loader.state_dict())
    changing = Dataset(other, view={1: {"where": "cls < 40"}}, rank=0, world_size=1)
    loader = Loader(changing.to_tuple(*FIELDS), 6)
    delivered([loader])
    steps = delivered([loader], 2)
    found = wdsplit.batches(other, last=2, state=loader.state_dict(), where="cls < 40")
    assert [listed(each) for each in found] == steps
    with pytest.raises(StateError, match="another view") as error:
        wdsplit.batches(other, last=3, state=loader.state_dict(), where="cls < 40")
    assert "epoch 0" in error.value.expected


@pytest.mark.parametrize(("kind", "name"), [("repeat", "__repeat__"), ("expand", "__part__")])
def test_copies_and_parts_of_samples_have_their_numbers(other, kind, name):
    options = {kind: "cls", "where": "cls < 9"}
    loader = Loader(Dataset(other, rank=0, world_size=1, **options).to_tuple("__key__", name), 8)
    for step, (keys, parts) in enumerate(loader):
        seen = wdsplit.batch(other, step, batch_size=8, **options)
        assert [*zip(seen.keys.tolist(), seen.parts.tolist(), strict=True)] == [*zip(keys, parts.tolist(), strict=True)]


def test_keys_shards_and_classes_are_those_of_the_samples(images):
    found = wdsplit.batch(images, 1, batch_size=8, world_size=2)
    samples = list(found.samples())
    assert found.labels.tolist() == [sample["cls"].decode() for sample in samples]
    assert found.keys.tolist() == [sample["__key__"] for sample in samples]
    assert [f"{images}/{path}" for path in found.shards] == [sample["__url__"] for sample in samples]
    assert found.positions.tolist() == [sample["__position__"] for sample in samples]
    assert set(found.sources) == {images}
    manifest = Dataset(images).manifest
    places = {shard.path: int(manifest.shards.num_real[:index].sum()) for index, shard in enumerate(manifest.shards)}
    numbers = [places[path] + number for path, number in zip(found.shards, found.numbers.tolist(), strict=True)]
    assert [Dataset(images).sample(number)["__key__"] for number in numbers] == found.keys.tolist()
    with pytest.raises(TopologyError, match="rank and world_size contradict"):
        found.of_rank(5)
    own = found.of_rank(1)
    assert (own.ranks.tolist(), own.keys.tolist()) == ([1] * 8, found.keys[1::2].tolist())


# Payloads


def test_payloads_are_saved_under_keys_and_fields(images, tmp_path):
    found = wdsplit.batch(images, 3, batch_size=16)  # 60 samples: the last step has pads
    assert found.pads.sum() == 4
    written = found.save(tmp_path / "seen")
    assert {path: Path(path).read_bytes() for path in written} == {
        f"{tmp_path}/seen/{sample['__key__']}.{field}": sample[field]
        for sample in found.samples()
        for field in ("png", "cls", "txt", "npy", "json")
    }
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == len(written)
    with pytest.raises(OutputExistsError):
        found.save(tmp_path / "seen")
    assert found.save(tmp_path / "seen", overwrite=True) == written


@pytest.mark.parametrize("key", ["../evil", "a/../../evil", "/evil", "a//b", "./x", ".."])
def test_no_key_leads_out_of_the_folder(tmp_path, key):
    (written,) = save_samples([{"__key__": key, "txt": b"x"}], tmp_path / "inside")
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert str(file) == written and (tmp_path / "inside").resolve() in file.resolve().parents


# States in files


@pytest.fixture(scope="module")
def state(sized):
    loader = loaders_of(of_path(sized), 2, 6)[0]
    delivered([loader], 5)
    return loader.state_dict()


@pytest.mark.parametrize("suffix", ["json", "pt"])
def test_a_state_is_found_wherever_it_is_in_a_checkpoint(sized, state, tmp_path, suffix):
    def saved(content):
        path = tmp_path / f"checkpoint.{suffix}"
        if suffix == "json":
            path.write_text(json.dumps(content))
        else:
            model = {} if content is state else {"model": torch.nn.Linear(3, 3).state_dict()}
            torch.save({**model, **content}, path)
        return str(path)

    assert read_state(saved(state)) == state
    assert read_state(saved({"step": 3, "loops": [{"loader": state}, {"other": 1}]})) == state
    assert read_state(saved({"rank0": {"loader": state}, "rank1": {"loader": state}})) == state
    assert [each.step for each in wdsplit.batches(sized, last=2, state=saved({"loader": state}))] == [3, 4]
    several = saved({"train": state, "val": {"loader": {**state, "epoch": 4}}})
    with pytest.raises(StateError, match="several states") as error:
        read_state(several)
    assert error.value.found == "train, val.loader"
    with pytest.raises(StateError, match="no state of a loader") as error:
        read_state(saved({"model": [1, 2], "epoch": 4}))
    assert error.value.found == "a dict of model, epoch"


def test_files_without_a_checkpoint_are_refused_and_no_code_of_one_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    torch.save({"loader": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(StateError, match="weights_only"):
        read_state(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "ran").exists()
    for content in (b"", b"{", b"PK\x03\x04 no archive", b"\x80\x04nothing"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(StateError, match="neither JSON nor a checkpoint"):
            read_state(tmp_path / "file")


# What is refused


def test_a_state_of_another_dataset_and_what_is_no_state_are_refused(sized, other, state):
    for named in (state, state | {"view": "cats", "view_fingerprint": "1" * 32}):
        with pytest.raises(StateError, match="the state is of another dataset") as error:
            wdsplit.batches(other, last=3, state=named)
        assert state["fingerprint"] in error.value.found and error.value.place == other
    for values in ({}, {"epoch": 1}, 5, ["x"]):
        with pytest.raises(StateError, match="not the state of a loader"):
            wdsplit.batches(sized, last=1, state=values)


def test_what_cannot_be_listed_is_refused(sized):
    for arguments, cause in (
        ({"steps": [0]}, "the batch size is unknown"),
        ({"batch_size": 4}, "cannot tell which steps"),
        ({"batch_size": 4, "last": 3}, "cannot tell which steps"),
        ({"steps": [100], "batch_size": 4}, "no such step"),
        ({"steps": [-1], "batch_size": 4}, "invalid step"),
        ({"steps": [0], "batch_size": 0}, "invalid batch_size"),
        ({"steps": [0], "batch_size": 2**21}, "too many samples"),
        ({"steps": [0], "batch_size": 4, "epoch": -1}, "invalid epoch"),
        ({"steps": [0], "batch_size": 4, "world_size": 1.5}, "invalid world_size"),
    ):
        with pytest.raises(InputError, match=cause):
            wdsplit.batches(sized, **arguments)


def test_the_state_may_know_the_topology(sized, state):
    assert state["global_batch"] == 12
    for arguments, ranks in (({}, {0}), ({"world_size": 3}, {0, 1, 2}), ({"batch_size": 6}, {0, 1})):
        (found,) = wdsplit.batches(sized, last=1, state=state, **arguments)
        assert (len(found), set(found.ranks.tolist())) == (12, ranks)
    with pytest.raises(InputError, match="batch size is unknown"):
        wdsplit.batches(sized, last=1, state=state, world_size=5)


def test_keys_of_a_bucket_are_read_without_the_payloads(fault_proxy, bucket, tmp_path, monkeypatch):
    """From the tables, or from the headers of the samples."""
    rows = range(60)
    columns = {"name": [f"a/b.{row}" for row in rows], "bin": [bytes([row]) * 100_000 for row in rows]}
    table = with_class_names(pa.table({**columns, "kind": [row % 7 for row in rows]}), "kind", "abcdefg")
    path = converted(tmp_path, table, key="name", shards=6)
    url, local = bucket.put(path), wdsplit.batches(path, [1, 2], batch_size=8)
    for has_tables in (True, False):
        if not has_tables:
            monkeypatch.setattr(samples, "_ROWS_PER_SAMPLE", 0)
        before = len(fault_proxy.exchanges)
        remote = wdsplit.batches(url, [1, 2], batch_size=8)
        exchanges = fault_proxy.exchanges[before:]
        assert [each.keys.tolist() for each in remote] == [each.keys.tolist() for each in local]
        assert [each.labels.tolist() for each in remote] == [each.labels.tolist() for each in local]
        assert set("abcdefg") >= set(remote[0].labels)
        assert sum(exchange.bytes_sent for exchange in exchanges) < 100_000
        assert any(".tar.parquet" in exchange.request.path for exchange in exchanges) == has_tables
        assert any(exchange.request.path.split("?")[0].endswith(".tar") for exchange in exchanges) != has_tables
    assert [sample["bin"] for sample in remote[0].samples()] == [sample["bin"] for sample in local[0].samples()]
