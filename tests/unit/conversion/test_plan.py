import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tables import input_file, table_of
from wdsplit.conversion.plan.options import PADS, PlanOptions
from wdsplit.conversion.plan.plan import make_plan, task_shards
from wdsplit.errors import InputError
from wdsplit.order.defaults import MIN_LANES, default_window
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.trace import Trace
from wdsplit.shards.manifest import Field
from wdsplit.tables.table import Selection

FIELDS = (Field("cls", "label", "integer", "int64"),)

pads = st.sampled_from(PADS)


def plan_of(num_rows, num_groups=1, key=None, fields=FIELDS, **options):
    return make_plan(table_of(input_file(num_rows, num_groups)), fields, key, PlanOptions(**options))


@st.composite
def plans(draw):
    """Draw a plan in which no option contradicts another."""
    num_rows = draw(st.integers(1, 3000))
    world_size, workers = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    readers = world_size * max(1, workers)
    pad = draw(pads)
    assume(pad == "repeat" or readers <= num_rows)
    sizing = draw(st.sampled_from(["shards", "samples_per_shard", "shard_size", None]))
    value = None
    if sizing == "shards":
        value = readers * draw(st.integers(1, 40 if pad == "repeat" else max(1, min(40, num_rows // readers))))
    elif sizing is not None:
        value = draw(st.integers(1, 5000))
    chosen = {sizing: value} if sizing else {}
    options = PlanOptions(world_size=world_size, workers=workers, pad=pad, allow_pads=True, **chosen)
    cuts = sorted(draw(st.lists(st.integers(0, num_rows), max_size=4)))
    counts = [stop - first for first, stop in zip([0, *cuts], [*cuts, num_rows], strict=True)]
    groups = draw(st.integers(1, 5))
    return make_plan(
        table_of(*(input_file(count, groups, f"{i}.parquet") for i, count in enumerate(counts))), FIELDS, None, options
    )


@given(plans())
def test_every_row_goes_to_one_of_equal_shards_that_have_a_pad_at_most(plan):
    """What is dropped is the end of the table, and only shards without pads may differ, by one sample."""
    bounds = [plan.rows(shard) for shard in range(plan.num_shards)]
    assert [row for first, stop in bounds for row in range(first, stop)] == list(range(plan.num_samples))
    assert plan.num_samples + plan.num_dropped == plan.num_rows
    assert plan.summary()["dropped"] == plan.num_dropped
    assert plan.options.pad == "drop" or plan.num_dropped == 0
    num_pads, sizes = 0, []
    for shard, (first, stop) in enumerate(bounds):
        assert 0 <= plan.num_pads_of(shard) <= (plan.options.pad == "repeat")
        num_pads += plan.num_pads_of(shard)
        sizes.append(stop - first + plan.num_pads_of(shard))
    assert num_pads == plan.num_pads == plan.summary()["pads"]
    assert max(sizes) - min(sizes) <= (plan.options.pad == "none")
    assert min(sizes) >= 1
    assert plan.num_shards % plan.options.readers == 0
    assert plan.options.readers == plan.options.world_size * max(1, plan.options.workers)


@given(st.integers(1, 3000), st.integers(1, 500), st.integers(1, 8), st.integers(1, 40), pads)
def test_samples_per_shard_and_lanes_are_kept_to(rows, most, world_size, lanes, pad):
    """Unless pads are forbidden, and the readers need fewer shards."""
    assume(pad == "repeat" or world_size <= rows)
    plan = plan_of(rows, samples_per_shard=most, world_size=world_size, pad=pad)
    if pad == "repeat" or plan.num_shards * most >= rows:
        assert plan.max_samples <= most
    plan = plan_of(rows, world_size=world_size, lanes=lanes, pad=pad, allow_pads=True)
    assert plan.lanes == lanes
    assert plan.num_shards % world_size == 0


@given(st.integers(1, 10**8), st.integers(1, 10**12), st.integers(1, 300), st.integers(0, 8))
def test_by_default_the_lanes_are_whole_shards_and_at_least_16(num_rows, data_bytes, world_size, workers):
    plan = plan_of_size(num_rows, data_bytes, world_size=world_size, workers=workers, allow_pads=True)
    assert plan.lanes >= MIN_LANES
    assert plan.num_shards % plan.lanes == plan.lanes % plan.options.readers == 0


@given(st.integers(1, 10**8), st.integers(1, 10**7))
def test_pads_are_at_most_1_percent_of_the_samples_or_fewer_than_16_unless_shards_have_few_samples(num_rows, size):
    plan = plan_of_size(num_rows, num_rows * size)
    most = max(15, num_rows // 100) if plan.max_samples >= 100 else max(15, plan.num_shards - 1)
    assert plan.num_pads <= most


def plan_of_size(num_rows, data_bytes, **options):
    return make_plan(table_of(input_file(num_rows, data_bytes=data_bytes)), FIELDS, None, PlanOptions(**options))


@pytest.mark.parametrize(
    ("num_rows", "sample_bytes", "options", "lanes"),
    [
        *((rows, 100_000, {}, lanes) for rows, lanes in ((1_000, 16), (4_800, 48), (9_600, 96), (19_199, 96))),
        *((rows, 100_000, {}, 192) for rows in (19_200, 1_000_000_000)),
        (1, 100, {}, 16),
        (5_000, 10_000, {}, 48),
        (60_000, 300, {}, 48),
        (400_000, 300, {}, 192),
        (2_000, 100_000_000, {}, 16),
        *(
            (320_000, 100_000, {"world_size": readers}, lanes)
            for readers, lanes in ((5, 195), (7, 196), (40, 200), (192, 192), (256, 256), (512, 512))
        ),
        *(
            (10_000, 0.1, {"shards": shards, "world_size": world_size}, lanes)
            for shards, world_size, lanes in (
                (96, 32, 32), (8, 1, 8), (48, 1, 16), (24, 8, 24), (100, 4, 16), (20, 1, 16), (10, 1, 10)
            )
        ),
        *(
            (10**6, 10**5, {"shards": shards}, lanes)
            for shards, lanes in (
                (32, 32), (64, 64), (96, 96), (100, 96), (128, 128), (384, 192), (1000, 192), (1024, 128)
            )
        ),
    ],
)  # fmt: skip
def test_the_default_lanes_are_192_or_as_many_as_leave_each_shard_100_samples_and_1_mib(
    num_rows, sample_bytes, options, lanes
):
    """Or the next multiple of the readers; where the shards are given, lanes divide them if they can."""
    assert plan_of_size(num_rows, int(num_rows * sample_bytes), **options).lanes == lanes


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96])
def test_a_forgotten_world_size_costs_the_usual_topologies_nothing(readers):
    plan = plan_of_size(320_000, 32_000_000_000)
    counts = np.array([stop - first for first, stop in map(plan.rows, range(plan.num_shards))])
    order = EpochOrder(counts, OrderOptions(0, True, plan.lanes, plan.window, "pad"), 0)
    assert Trace(order, readers, 1).read_amplification == 1.0


def test_too_few_and_too_many_shards_are_refused():
    with pytest.raises(InputError, match="not a multiple") as caught:
        plan_of(100, shards=3, world_size=2, workers=4)
    assert caught.value.expected == "a multiple of 8, such as 8"
    with pytest.raises(InputError, match="too many shards"):
        plan_of(10**9, shards=2**24 + 1)


@pytest.mark.parametrize("pad", ["drop", "none"])
def test_more_shards_than_rows_are_refused_where_no_pads_may_fill_them(pad):
    for options in ({"shards": 12}, {"world_size": 12}, {"world_size": 3, "workers": 4}):
        with pytest.raises(InputError, match=f"more shards than rows.*--pad {pad}") as caught:
            plan_of(11, pad=pad, **options)
        assert "11" in caught.value.expected and "12" in caught.value.found
    plan = plan_of(11, pad=pad, world_size=2)
    assert plan.num_shards == plan.lanes == 10, "as many as a small table can fill"


def test_a_table_without_rows_is_refused_by_name():
    with pytest.raises(InputError, match="no rows") as caught:
        make_plan(table_of(*(input_file(0, path=f"{i}.parquet") for i in range(5))), FIELDS, None, PlanOptions())
    assert caught.value.place == "0.parquet, 1.parquet, 2.parquet, and 2 more"


def plan_of_files(*files, **options):
    return make_plan(table_of(*files), FIELDS, None, PlanOptions(**options))


BASE = plan_of(100, 4, shards=4)
SELECTED = dataclasses.replace(table_of(input_file(100, 4)), selection=Selection("label >= 0"))
CHANGES = {"key": "name", "pad": "none", "null": "omit", "lanes": 2, "window": 7, "shuffle": False, "keep": ("x",)}
FILES = [input_file(10, path="a.parquet"), input_file(10, path="b.parquet")]


@pytest.mark.parametrize(
    "other",
    [
        plan_of(101, 4, shards=4),
        plan_of(100, 5, shards=4),
        plan_of(100, 4, shards=5),
        *(plan_of(100, 4, shards=4, **{name: value}) for name, value in CHANGES.items()),
        plan_of(100, 4, shards=4, fields=(Field("cls", "other", "integer", "int64"),)),
        plan_of(100, 4, shards=4, fields=(Field("txt", "label", "integer", "int64"),)),
        plan_of_files(input_file(100, 4, footer="01"), shards=4),
        make_plan(SELECTED, FIELDS, None, PlanOptions(shards=4)),
        plan_of_files(input_file(100, 4, path="other.parquet"), shards=4),
    ],
)
def test_the_hash_changes_with_what_decides_the_bytes(other):
    assert other.hash != BASE.hash
    assert plan_of_files(*FILES, shards=2).hash != plan_of_files(*FILES[::-1], shards=2).hash


@pytest.mark.parametrize(
    "other",
    [
        plan_of(100, 4, samples_per_shard=25),
        plan_of(100, 4, shards=4, world_size=2, workers=2),
        plan_of_files(input_file(100, 4, path="/elsewhere/part.parquet"), shards=4),
        pickle.loads(pickle.dumps(BASE)),
    ],
)
def test_the_hash_does_not_change_with_how_the_plan_was_asked_for_or_where_the_files_lie(other):
    assert other.hash == BASE.hash


@pytest.mark.parametrize(("kind", "shuffled"), [("parquet", True), ("csv", True), ("tar", False)])
def test_rows_of_tables_are_shuffled_and_samples_of_tars_keep_their_order_unless_asked_otherwise(kind, shuffled):
    table = table_of(dataclasses.replace(input_file(100), format=kind))
    plans = {given: make_plan(table, FIELDS, None, PlanOptions(shuffle=given)) for given in (None, True, False)}
    assert {given: plan.options.shuffle for given, plan in plans.items()} == {None: shuffled, True: True, False: False}
    assert plans[None] == plans[shuffled]
    assert plans[None].hash == plans[shuffled].hash != plans[not shuffled].hash


@given(plans(), st.integers(1, 9))
def test_every_job_has_something_to_do_while_there_are_shards_enough(plan, jobs):
    """Shards that are smaller than row groups share a task, so that little is read twice."""
    assert 1 <= task_shards(plan, jobs, plan.num_shards) <= -(-plan.num_shards // jobs)
    assert task_shards(plan_of(1000, 1, shards=100), 4, 100) == 25
    assert task_shards(plan_of(1000, 1000, shards=4), 4, 4) == 1


@given(st.integers(0, 2**60), st.integers(1, 2**40), st.integers(1, 1000))
def test_the_windows_of_192_lanes_hold_at_most_256_mib_unless_samples_are_larger(num_bytes, num_samples, lanes):
    assert default_window(0, 0, 16) == 1024
    window, sample_bytes = default_window(num_bytes, num_samples, lanes), num_bytes // num_samples
    assert 1 <= window <= 1024
    if window > 1:
        assert min(lanes, 192) * window * sample_bytes <= 2**28
        assert window * sample_bytes <= 2**23
    if window < 1024:
        assert (window + 1) * sample_bytes > min(2**23, 2**28 // min(lanes, 192))


@pytest.mark.parametrize(
    "options",
    [{"world_size": 1_000_000}, {"world_size": 401}, {"world_size": 51, "workers": 8}, {"shards": 401}, {"lanes": 401}],
    ids=str,
)
def test_more_than_ten_shards_for_each_row_are_made_only_where_pads_are_allowed(options):
    with pytest.raises(InputError, match="nearly all samples would be pads") as caught:
        plan_of(40, **options)
    assert caught.value.expected == "at most 400 shards for 40 rows"
    allowed = plan_of(40, **options, allow_pads=True)
    assert allowed.num_pads == allowed.num_shards - 40
