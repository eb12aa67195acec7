"""The loader's promises for random shards, options, ranks, workers and interruptions; workers are threads.

Real torchrun jobs and worker processes are in test_acceptance.py; the arithmetic alone is in test_split.py.
"""

import itertools
import json
import shutil
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from made_datasets import deliveries, delivering, expected_epoch, interleaved, real_rows, sized_dataset
from made_views import Rows, expected_view, parted_view, view_of
from orders import GROUPINGS
from torchruns import delivered
from wdsplit.errors import CorruptDataError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.mix import mix
from wdsplit.order.units import KINDS
from wdsplit.shards.manifest import shard_path
from wdsplit.shards.places import read_places
from wdsplit.storage.opening import open_storage

few_examples = settings(max_examples=settings.default.max_examples // 3)
fewer_examples = settings(max_examples=settings.default.max_examples // 4)

wild = st.lists(st.sampled_from([0, 1, 1, 2, 5, 9, 30, 70]), min_size=1, max_size=9)
equal = st.builds(lambda size, count: [size] * count, st.sampled_from([1, 4, 9]), st.integers(1, 12))
alike = st.lists(st.sampled_from([200, 201]), min_size=2, max_size=4)
sizes = wild | equal | alike
"""Samples of each shard; lanes are cut again, hold whole shards, or hold whole shards that are not quite alike."""

seeds = st.sampled_from([0, 1, 2**63 - 1])
epochs = st.integers(0, 30)
readers = st.tuples(st.sampled_from([1, 2, 3, 4, 5, 8]), st.integers(0, 3), st.sampled_from([1, 4, 7, 15]))
readers = readers.filter(lambda drawn: drawn[0] * max(1, drawn[1]) <= 12)
"""Ranks, threads of each, and batch size; of more readers there are examples."""

legs = st.lists(st.tuples(readers, st.integers(0, 6)), min_size=1, max_size=3)
"""Who reads, and for how many steps; the last ones read to the end."""

PADDED = {"seed": 0, "shuffle": True, "tail": "pad", "window": 3}


@st.composite
def orders(draw, tails=("pad", "drop")):
    """Draw what the order of a dataset depends on."""
    return {
        "seed": draw(seeds),
        "shuffle": draw(st.booleans()),
        "tail": draw(st.sampled_from(tails)),
        "lanes": draw(st.integers(1, 12)),
        "window": draw(st.sampled_from([1, 3, 8, 100])),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return what gives the dataset whose shards have some sizes."""
    paths = {}

    def path_of(counts):
        key = tuple(counts)
        if key not in paths:
            paths[key] = sized_dataset(tmp_path_factory.mktemp("sized"), counts, lanes=4, window=4)
        return paths[key]

    return path_of


@st.composite
def views(draw, counts):
    """Draw the rows of a view of shards of some sizes: none, one, one a shard, every third, most, or any.

    Each comes once, or up to three times.
    """
    total, seed = sum(counts), draw(st.integers(0, 99))
    random = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["none", "one", "one a shard", "every third", "99.9 %", "half", "all"]))
    if kind == "one a shard":
        ends = np.cumsum(counts).tolist()
        rows = [end - 1 - int(random.integers(count)) for end, count in zip(ends, counts, strict=True) if count]
        return several_times(rows, draw(st.sampled_from(KINDS)), random)
    chosen = {
        "none": np.zeros(total, np.bool_),
        "one": np.arange(total) == random.integers(max(1, total)),
        "every third": np.arange(total) % 3 == 0,
        "99.9 %": random.random(total) < 0.999,
        "half": random.random(total) < 0.5,
        "all": np.ones(total, np.bool_),
    }[kind]
    return several_times(np.flatnonzero(chosen).tolist(), draw(st.sampled_from(KINDS)), random)


def several_times(rows, kind, random):
    """Return rows, up to three times each unless they are selected only."""
    times = np.ones(len(rows), int) if kind == "select" else random.integers(1, 4, len(rows))
    return Rows(np.repeat(np.array(rows, int), times).tolist(), kind)


def loaders_of(opened, readers, epoch, states=(), **options):
    """Return the loader of each rank, in the epoch or where the states say; `opened` makes the dataset of a rank."""
    world_size, num_workers, batch_size = readers
    loaders = []
    for rank in range(world_size):
        dataset = opened(rank=rank, world_size=world_size)
        loader = Loader(dataset, batch_size, num_workers=num_workers, workers="thread", **options)
        loader.set_epoch(epoch)
        if states:
            loader.load_state_dict(json.loads(json.dumps(states[rank % len(states)])))
        loaders.append(loader)
    return loaders


def one_length(loaders):
    """Return the steps of an epoch, which all ranks know beforehand, in every epoch the same."""
    lengths = {len(loader) for loader in loaders}
    before = loaders[0].epoch
    for epoch in (*range(5), before):
        loaders[0].set_epoch(epoch)
        lengths.add(len(loaders[0]))
    assert len(lengths) == 1
    return lengths.pop()


def run_legs(opened, legs, epoch, of_batch, has_views=False, **options):
    """Return what is delivered when the readers of each leg go on where those before stopped: positions 0, 1, 2, ...

    Epochs of a dataset that has views may differ in their steps.
    """
    seen, state = [], None
    for number, (readers, num_steps) in enumerate(legs):
        loaders = loaders_of(opened, readers, epoch, **options)
        length = len(loaders[0]) if has_views else one_length(loaders)
        for loader in loaders if state else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        is_last = number == len(legs) - 1
        steps = list(itertools.islice(zip(*loaders, strict=True), None if is_last else num_steps))
        batches = [interleaved([of_batch(part) for part in parts]) for parts in steps]
        assert all(len(batch) == readers[0] * readers[2] for batch in batches)
        assert len(batches) == length if is_last and not seen else len(batches) <= length
        seen += delivered(batches)
        assert [position for position, *_ in seen] == list(range(len(seen)))
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(state == states[0] for state in states)
        state = states[0]
        if state["epoch"] > epoch:
            assert state["position"] == 0
            return seen
        assert state["position"] == len(seen)
    assert not length
    return seen


def agrees(found, expected):
    """Tell whether deliveries are those of the reference, which cannot name what pads a lane without samples."""
    return found == [each if own[1] is None and each[2] else own for each, own in zip(found, expected, strict=True)]


@few_examples
@given(sizes, orders(), epochs, legs)
@example([70], PADDED | {"lanes": 5}, 1, [((8, 3, 9), 1)])
@example([201, 200, 201, 200], PADDED | {"lanes": 2}, 0, [((2, 2, 1), 2)])
@example([2, 1], PADDED | {"lanes": 12}, 0, [((5, 2, 2), 1)] * 2)
def test_readers_that_follow_one_another_deliver_the_order_and_each_sample_once(made, counts, order, epoch, legs):
    """Whoever reads: the positions lead to the same samples."""
    path = made(counts)
    seen = run_legs(lambda **world: delivering(Dataset(path, **order, **world)), legs, epoch, deliveries)
    if sum(counts):
        assert agrees(seen, list(itertools.islice(expected_epoch(path, epoch, **order), len(seen))))
    rows = real_rows(seen)
    if order["tail"] == "pad":
        assert rows == list(range(sum(counts)))
    else:
        assert len(rows) == len(set(rows)) == len(seen)


def destroy(path, order, position):
    """Overwrite the windows of which all samples lie below a position; return whether there are any."""
    dataset = Dataset(path, **order)
    located = dataset.order().locate(np.arange(position))
    taken = Counter(zip(located.shard.tolist(), (located.sample // order["window"]).tolist(), strict=True))
    any_destroyed = False
    for (shard, window), count in taken.items():
        num_samples = int(dataset.manifest.shards.num_real[shard])
        first = window * order["window"]
        end = min(first + order["window"], num_samples)
        if count == end - first:
            tar = shard_path(shard)
            storage, manifest = open_storage(str(path)), dataset.manifest
            offsets = read_places(storage, manifest.shards[shard], manifest.field_names).offsets()
            with open(f"{path}/{tar}", "r+b") as file:
                file.seek(int(offsets[first]))
                file.write(b"\xff" * int(offsets[end] - offsets[first]))
            any_destroyed = True
    return any_destroyed


@fewer_examples
@given(sizes, orders(tails=["drop"]), readers, readers, st.integers(1, 12))
def test_resuming_does_not_read_again_what_was_consumed(
    made, tmp_path_factory, counts, order, before, after, num_steps
):
    """The windows that were consumed are destroyed before the job resumes; without the state, that is noticed."""
    source = made(counts)

    def opened(path, **world):
        return delivering(Dataset(path, **order, **world))

    first = loaders_of(lambda **world: opened(source, **world), before, 0)[0]
    assume(num_steps < len(first))
    for _ in itertools.islice(first, num_steps):
        pass
    state = first.state_dict()
    path = shutil.copytree(source, tmp_path_factory.mktemp("destroyed") / "copy")
    assume(destroy(path, order, state["position"]))
    loaders = loaders_of(lambda **world: opened(path, **world), after, 0, [state])
    rest = delivered(interleaved([deliveries(part) for part in parts]) for parts in zip(*loaders, strict=True))
    expected = itertools.islice(expected_epoch(source, **order), state["position"], state["position"] + len(rest))
    assert rest == list(expected)
    with pytest.raises(CorruptDataError):
        list(Loader(opened(path, rank=0, world_size=1), 1))


# Views


@st.composite
def viewed(draw):
    """Draw the sizes of shards, and the views of them that the epochs 0, 1 and 2 have; None for all rows."""
    counts = draw(sizes)
    return counts, [draw(st.none() | views(counts)) for _ in range(3)]


def rows_or_all(rows, counts):
    return range(sum(counts)) if rows is None else rows


@few_examples
@given(viewed(), orders(), st.integers(0, 2), legs, st.booleans())
@example(([70], [[3], None, []]), PADDED | {"lanes": 5}, 0, [((8, 3, 9), 1)], False)
@example(([201, 200], [list(range(0, 401, 3))] * 3), PADDED | {"lanes": 2}, 1, [((2, 2, 1), 2), ((3, 1, 4), 1)], True)
def test_views_by_epoch_keep_all_promises_on_readers_that_follow_one_another(
    made, viewed, order, epoch, legs, by_parts
):
    """A view against a list comprehension: what each epoch gives is what the whole gives, but for other rows."""
    counts, by_epoch = viewed
    path = made(counts)
    chosen_of = parted_view if by_parts else view_of
    chosen = {
        each: rows if rows is None else chosen_of(path, rows, f"view-{each}") for each, rows in enumerate(by_epoch)
    }
    rows = rows_or_all(by_epoch[epoch], counts)

    def opened(**world):
        return delivering(Dataset(path, view=chosen, **order, **world))

    seen = run_legs(opened, legs, epoch, deliveries, has_views=True)
    if rows:
        expected = expected_view(path, rows, epoch, **order)
        assert agrees(seen, list(itertools.islice(expected, len(seen))))
    found = real_rows(seen)
    if order["tail"] == "pad":
        assert found == list(rows)
    else:
        assert Counter(found) <= Counter(rows) and len(found) == len(seen)


@pytest.mark.parametrize("has_view", [False, True])
@settings(max_examples=settings.default.max_examples // 5)
@given(viewed(), orders(tails=["uneven"]), epochs, readers, st.integers(0, 4), st.integers(0, 3))
def test_uneven_ranks_deliver_each_sample_once_and_each_goes_on_from_its_own_state(
    made, has_view, viewed, order, epoch, readers, num_steps, other_workers
):
    counts, (rows, *_) = viewed
    path, rows = made(counts), rows_or_all(rows if has_view else None, counts)
    view = view_of(path, rows) if has_view else None

    def opened(**world):
        return delivering(Dataset(path, view=view, **order, **world))

    whole = [[deliveries(batch) for batch in loader] for loader in loaders_of(opened, readers, epoch)]
    first = loaders_of(opened, readers, epoch)
    assert [len(loader) for loader in first] == [len(batches) for batches in whole]
    batches = [[deliveries(batch) for batch in itertools.islice(loader, num_steps)] for loader in first]
    states = [loader.state_dict() for loader in first]
    rest = loaders_of(opened, (readers[0], other_workers, readers[2]), epoch, states)
    for rank, loader in enumerate(rest):
        if states[rank]["epoch"] == epoch and len(whole[rank]):
            batches[rank] += [deliveries(batch) for batch in loader]
    assert batches == whole
    found = delivered(delivered(whole))
    assert sorted(row for _, row, _ in found) == list(rows)
    assert not any(pad for _, _, pad in found)


# Packs and groups


def formed_deliveries(units):
    """Return (position, rows, pads) of each pack or group of a batch that was not collated."""
    made = [tuple(zip(*unit, strict=True)) for unit in units]
    assert all(len(set(positions)) == 1 for positions, _, _ in made)
    return [(positions[0], rows, pads) for positions, rows, pads in made]


@pytest.mark.parametrize("form", ["packs", *GROUPINGS])
@fewer_examples
@given(st.data(), orders(), epochs, legs, st.booleans())
def test_readers_of_units_that_follow_one_another_deliver_the_order_and_each_sample_as_often_as_it_is_due(
    made, form, data, order, epoch, legs, is_mixed
):
    counts = data.draw(sizes)
    path, rows = made(counts), data.draw(views(counts).filter(len))
    rows.form = form
    view = view_of(path, rows)
    if form in GROUPINGS:  # each is a whole batch
        legs = [((world_size, num_workers, 1), num_steps) for (world_size, num_workers, _), num_steps in legs]

    def opened(**world):
        if not is_mixed:
            return delivering(Dataset(path, view=view, **order, **world))
        own = {name: value for name, value in order.items() if name != "window"}
        return delivering(mix(repeat={path: 1}, view=view, **own, **world))

    seen = run_legs(opened, legs, epoch, formed_deliveries, collate_fn=list)
    if not is_mixed:
        delivered = [(position, each, pads[0]) for position, each, pads in seen]
        assert agrees(delivered, list(itertools.islice(expected_view(path, rows, epoch, **order), len(seen))))
    located = opened(rank=0, world_size=1).order(epoch).locate(np.arange(len(seen)))
    assert located.pad.tolist() == [pad for _, _, pads in seen for pad in pads]
    found = Counter(row for _, *each in seen for row, pad in zip(*each, strict=True) if not pad)
    assert found == Counter(rows) if order["tail"] == "pad" else found <= Counter(rows)


# Mixtures


def mixed_deliveries(batch):
    """Return (position, (source, row), pad) of each sample."""
    positions, sources, rows, pads = batch
    named = zip(sources, rows.tolist(), strict=True)
    return list(zip(positions.tolist(), named, pads.tolist(), strict=True))


@st.composite
def mixtures(draw):
    """Draw the sizes of the sources' shards, how they are mixed, and their counts an epoch, up to one."""
    sources = draw(st.lists((wild | equal).filter(sum), min_size=2, max_size=3, unique_by=tuple))
    totals = [sum(counts) for counts in sources]
    if draw(st.booleans()):
        shares = draw(st.lists(st.integers(1, 5), min_size=len(sources), max_size=len(sources)))
        num_samples = draw(st.integers(20, 90))
        wanted = [num_samples * share / sum(shares) for share in shares]
        return sources, {"weights": shares, "num_samples": num_samples}, wanted
    shares = [draw(st.sampled_from([0.5, 1, 1.75] if total > 1 else [1, 3])) for total in totals]
    return sources, {"repeat": shares}, [share * total for share, total in zip(shares, totals, strict=True)]


@st.composite
def schedules(draw):
    """Draw the same with weights that change within the first epochs; a source's counts are left to the unit tests."""
    sources = draw(st.lists((wild | equal).filter(sum), min_size=2, max_size=3, unique_by=tuple))
    weights = st.lists(st.integers(1, 5), min_size=len(sources), max_size=len(sources))
    positions = [0, *itertools.accumulate(draw(st.lists(st.integers(30, 120), max_size=3)))]
    shares = {
        "schedule": [(position, draw(weights)) for position in positions],
        "num_samples": draw(st.integers(40, 90)),
    }
    return sources, shares, None


def mixed(made, sources, shares, **options):
    """Return a mixture of datasets as deliveries."""

    def named(given):
        return dict(zip(map(made, sources), given, strict=True))

    if "schedule" in shares:
        by_path = shares | {"schedule": [(position, named(given)) for position, given in shares["schedule"]]}
    else:
        by_path = {kind: named(given) if isinstance(given, list) else given for kind, given in shares.items()}
    return mix(**by_path, **options).decode().to_tuple("__position__", "__source__", "cls", "__pad__")


@st.composite
def mixed_orders(draw):
    order = draw(orders())
    del order["window"]
    return order


@fewer_examples
@given(mixtures() | schedules(), mixed_orders(), epochs, legs)
def test_readers_of_a_mixture_that_follow_one_another_deliver_what_one_reader_does(made, mixture, order, epoch, legs):
    sources, shares, _ = mixture

    def opened(**world):
        return mixed(made, sources, shares, **order, **world)

    seen = run_legs(opened, legs, epoch, mixed_deliveries)
    alone = Loader(mixed(made, sources, shares, **order | {"tail": "pad"}, rank=0, world_size=1), 50)
    alone.set_epoch(epoch)
    expected = [delivery for delivery in delivered(map(mixed_deliveries, alone)) if not delivery[2]]
    real = [delivery for delivery in seen if not delivery[2]]
    assert real == expected[: len(real)]
    assert len(real) == (len(expected) if order["tail"] == "pad" else len(seen))
    assert {row for _, row, pad in seen if pad} <= {row for _, row, _ in expected}


@few_examples
@given(mixtures() | schedules(), mixed_orders(), st.sampled_from([(1, 0, 15), (3, 0, 4)]))
def test_epochs_of_a_mixture_have_the_counts_asked_for_and_use_each_source_up_before_it_begins_anew(
    made, mixture, order, readers
):
    sources, shares, wanted = mixture
    loaders = loaders_of(lambda **world: mixed(made, sources, shares, **order | {"tail": "pad"}, **world), readers, 0)
    one_length(loaders)
    seen, counts = Counter(), []
    for epoch in range(4):
        parts = [delivered(map(mixed_deliveries, loader)) for loader in loaders]
        assert {loader.epoch for loader in loaders} == {epoch + 1}
        rows = [row for part in parts for _, row, pad in part if not pad]
        seen.update(rows)
        by_source = Counter(source for source, _ in rows)
        counts.append([by_source[made(source)] for source in sources])
        for source in sources:
            often = [seen[made(source), row] for row in range(sum(source))]
            assert max(often) - min(often) <= 1
    if wanted is None:
        assert {sum(count) for count in counts} == {shares["num_samples"]}
    else:
        assert all(count == counts[0] for count in counts)
        assert all(abs(count - asked) < 1 for count, asked in zip(counts[0], wanted, strict=True))
    assert seen.total() == sum(map(sum, counts)) and {source for source, _ in seen} <= set(map(made, sources))


@fewer_examples
@given(st.data(), mixed_orders(), st.integers(0, 2), legs)
def test_an_epoch_of_a_mixture_of_views_has_the_samples_of_the_views_on_readers_that_follow_one_another(
    made, data, order, epoch, legs
):
    sources = data.draw(st.lists((wild | equal).filter(sum), min_size=2, max_size=3, unique_by=tuple))
    chosen = [[data.draw(st.none() | views(counts).filter(len)) for _ in range(3)] for counts in sources]
    paths = list(map(made, sources))
    by_epoch = {
        path: {each: rows and view_of(path, rows) for each, rows in enumerate(own)}
        for path, own in zip(paths, chosen, strict=True)
    }

    def opened(**world):
        mixture = mix(repeat=dict.fromkeys(paths, 1), view=by_epoch, **order, **world)
        return mixture.decode().to_tuple("__position__", "__source__", "cls", "__pad__")

    seen = run_legs(opened, legs, epoch, mixed_deliveries, has_views=True)
    found = sorted(row for _, row, pad in seen if not pad)
    expected = sorted(
        (path, row)
        for path, own, counts in zip(paths, chosen, sources, strict=True)
        for row in rows_or_all(own[epoch], counts)
    )
    if order["tail"] == "pad":
        assert found == expected
    else:
        assert Counter(found) <= Counter(expected) and len(found) == len(seen)
