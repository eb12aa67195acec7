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


def sizes_of(plan):
    """Return the samples of each shard, pads included."""
    return [plan.rows(shard)[1] - plan.rows(shard)[0] + plan.num_pads_of(shard) for shard in range(plan.num_shards)]


@given(plans())
def test_every_row_goes_to_exactly_one_shard_and_what_is_dropped_is_the_end(plan):
    bounds = [plan.rows(shard) for shard in range(plan.num_shards)]
    rows = [row for first, stop in bounds for row in range(first, stop)]
    assert rows == list(range(plan.num_samples))
    assert plan.num_samples + plan.num_dropped == plan.num_rows
    assert plan.summary()["dropped"] == plan.num_dropped
    if plan.options.pad != "drop":
        assert plan.num_dropped == 0


@given(plans())
def test_the_shards_are_balanced_and_equal_unless_they_may_differ(plan):
    sizes = sizes_of(plan)
    assert max(sizes) - min(sizes) <= (1 if plan.options.pad == "none" else 0)
    assert min(sizes) >= 1


@given(plans())
def test_the_pads_are_counted_and_repeat_rows_that_are_written(plan):
    ranges = [pads for shard in range(plan.num_shards) for pads in plan.pads(shard)]
    repeated = [row for first, stop in ranges for row in range(first, stop)]
    assert len(repeated) == plan.num_pads == plan.summary()["pads"]
    assert all(0 <= row < plan.num_rows for row in repeated)
    if plan.options.pad != "repeat":
        assert not repeated


@given(plans())
def test_a_shard_repeats_its_own_first_row(plan):
    for shard in range(plan.num_shards):
        first, stop = plan.rows(shard)
        assert len(plan.pads(shard)) == plan.num_pads_of(shard) <= 1
        for begin, end in plan.pads(shard):
            assert end == begin + 1
            assert begin == first if first < stop else begin in range(plan.num_rows)


@given(plans())
def test_the_number_of_shards_is_a_multiple_of_the_readers(plan):
    assert plan.num_shards % plan.options.readers == 0
    assert plan.options.readers == plan.options.world_size * max(1, plan.options.workers)


@given(st.integers(1, 5000), st.integers(1, 6), st.integers(1, 40), pads)
def test_lanes_that_are_given_are_kept_and_leave_the_shards_a_multiple_of_the_readers(rows, world_size, lanes, pad):
    assume(pad == "repeat" or world_size <= rows)
    plan = plan_of(rows, world_size=world_size, lanes=lanes, pad=pad, allow_pads=True)
    assert plan.lanes == lanes
    assert plan.num_shards % world_size == 0


@given(st.integers(1, 3000), st.integers(1, 500), st.integers(1, 8), pads)
def test_samples_per_shard_is_kept_to_unless_pads_are_forbidden_and_the_readers_need_fewer_shards(
    rows, most, world_size, pad
):
    assume(pad == "repeat" or world_size <= rows)
    plan = plan_of(rows, samples_per_shard=most, world_size=world_size, pad=pad)
    if pad == "repeat" or plan.num_shards * most >= rows:
        assert max(sizes_of(plan)) <= most


@given(st.integers(1, 10**8), st.integers(1, 10**12), st.integers(1, 300), st.integers(0, 8))
def test_by_default_the_lanes_are_whole_shards_and_at_least_16(num_rows, data_bytes, world_size, workers):
    plan = plan_of_size(num_rows, data_bytes, world_size=world_size, workers=workers, allow_pads=True)
    assert plan.lanes >= MIN_LANES
    assert plan.num_shards % plan.lanes == 0
    assert plan.lanes % plan.options.readers == 0


def plan_of_size(num_rows, data_bytes, **options):
    return make_plan(table_of(input_file(num_rows, data_bytes=data_bytes)), FIELDS, None, PlanOptions(**options))


@pytest.mark.parametrize(
    ("num_rows", "sample_bytes", "lanes"),
    [
        (1, 100, 16),
        (1_000, 100_000, 16),
        (4_800, 100_000, 48),
        (5_000, 10_000, 48),
        (9_600, 100_000, 96),
        (19_199, 100_000, 96),
        (19_200, 100_000, 192),
        (60_000, 300, 48),
        (400_000, 300, 192),
        (1_000_000_000, 100_000, 192),
        (2_000, 100_000_000, 16),
    ],
)
def test_the_default_lanes_are_192_or_as_many_as_leave_each_shard_100_samples_and_1_mib(num_rows, sample_bytes, lanes):
    assert plan_of_size(num_rows, num_rows * sample_bytes).lanes == lanes


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96])
def test_a_forgotten_world_size_costs_the_usual_topologies_nothing(readers):
    plan = plan_of_size(320_000, 32_000_000_000)
    counts = np.array([stop - first for first, stop in map(plan.rows, range(plan.num_shards))])
    order = EpochOrder(counts, OrderOptions(0, True, plan.lanes, plan.window, "pad"), 0)
    assert Trace(order, readers, 1).read_amplification == 1.0


@pytest.mark.parametrize(("readers", "lanes"), [(5, 195), (7, 196), (40, 200), (192, 192), (256, 256), (512, 512)])
def test_odd_and_large_jobs_get_the_next_multiple_of_their_readers(readers, lanes):
    assert plan_of_size(320_000, 32_000_000_000, world_size=readers).lanes == lanes


@given(st.integers(1, 10**8), st.integers(1, 10**7))
def test_pads_are_at_most_1_percent_of_the_samples_or_fewer_than_16_unless_shards_have_few_samples(num_rows, size):
    plan = plan_of_size(num_rows, num_rows * size)
    most = max(15, num_rows // 100) if plan.max_samples >= 100 else max(15, plan.num_shards - 1)
    assert plan.num_pads <= most


@pytest.mark.parametrize(
    ("shards", "world_size", "lanes"),
    [(96, 32, 32), (8, 1, 8), (48, 1, 16), (24, 8, 24), (100, 4, 16), (20, 1, 16), (10, 1, 10)],
)
def test_for_a_given_number_of_shards_the_lanes_divide_it_where_they_can(shards, world_size, lanes):
    assert plan_of(10_000, shards=shards, world_size=world_size).lanes == lanes


@pytest.mark.parametrize(
    ("shards", "lanes"), [(32, 32), (64, 64), (96, 96), (100, 96), (128, 128), (384, 192), (1000, 192), (1024, 128)]
)
def test_much_data_in_a_given_number_of_shards_gets_up_to_192_lanes(shards, lanes):
    assert plan_of_size(10**6, 10**11, shards=shards).lanes == lanes


def test_too_few_shards_for_the_readers_are_refused_with_the_smallest_number_that_will_do():
    with pytest.raises(InputError, match="not a multiple") as caught:
        plan_of(100, shards=3, world_size=2, workers=4)
    assert caught.value.expected == "a multiple of 8, such as 8"


@pytest.mark.parametrize("pad", ["drop", "none"])
@pytest.mark.parametrize("options", [{"shards": 12}, {"world_size": 12}, {"world_size": 3, "workers": 4}])
def test_more_shards_than_rows_are_refused_where_no_pads_may_fill_them(pad, options):
    with pytest.raises(InputError, match=f"more shards than rows.*--pad {pad}") as caught:
        plan_of(11, pad=pad, **options)
    assert "11" in caught.value.expected
    assert "12" in caught.value.found
    assert "--pad repeat" in caught.value.remedy


@pytest.mark.parametrize("pad", ["drop", "none"])
def test_where_no_pads_may_fill_them_a_small_table_gets_as_many_shards_as_it_can_fill(pad):
    plan = plan_of(11, pad=pad, world_size=2)
    assert plan.num_shards == plan.lanes == 10


def test_a_table_without_rows_is_refused_by_name():
    with pytest.raises(InputError, match="no rows") as caught:
        make_plan(table_of(*(input_file(0, path=f"{i}.parquet") for i in range(5))), FIELDS, None, PlanOptions())
    assert caught.value.place == "0.parquet, 1.parquet, 2.parquet, and 2 more"


def test_all_contradictions_of_the_options_are_reported_together():
    with pytest.raises(InputError) as caught:
        PlanOptions(world_size=0, workers=-1, shards=0, samples_per_shard=5, lanes=0, window=-3, pad="x", null="y")
    for text in (
        "world_size = 0",
        "workers = -1",
        "shards = 0",
        "lanes = 0",
        "window = -3",
        "shards and samples_per_shard contradict",
        "pad = 'x'",
        "null = 'y'",
        "repeat, drop, none",
        "error, omit, empty",
    ):
        assert text in caught.value.found


@pytest.mark.parametrize(
    "chosen",
    [
        {"shards": 4, "shard_size": 10},
        {"samples_per_shard": 4, "shard_size": 10},
        {"shards": 1, "samples_per_shard": 4, "shard_size": 10},
    ],
)
def test_two_sizings_contradict_each_other(chosen):
    with pytest.raises(InputError) as caught:
        PlanOptions(**chosen)
    assert all(name in caught.value.found for name in chosen)


BASE = plan_of(100, 4, shards=4)


@pytest.mark.parametrize(
    "other",
    [
        plan_of(101, 4, shards=4),
        plan_of(100, 5, shards=4),
        plan_of(100, 4, shards=5),
        plan_of(100, 4, shards=4, key="name"),
        plan_of(100, 4, shards=4, pad="none"),
        plan_of(100, 4, shards=4, null="omit"),
        plan_of(100, 4, shards=4, lanes=2),
        plan_of(100, 4, shards=4, window=7),
        plan_of(100, 4, shards=4, shuffle=False),
        plan_of(100, 4, shards=4, fields=(Field("cls", "other", "integer", "int64"),)),
        plan_of(100, 4, shards=4, fields=(Field("txt", "label", "integer", "int64"),)),
        make_plan(table_of(input_file(100, 4, footer="01")), FIELDS, None, PlanOptions(shards=4)),
        make_plan(table_of(input_file(100, 4, path="other.parquet")), FIELDS, None, PlanOptions(shards=4)),
    ],
)
def test_the_hash_changes_with_what_decides_the_bytes(other):
    assert other.hash != BASE.hash


@pytest.mark.parametrize(("kind", "shuffled"), [("parquet", True), ("csv", True), ("tar", False)])
def test_rows_of_tables_are_shuffled_and_samples_of_tars_keep_their_order_unless_asked_otherwise(kind, shuffled):
    table = table_of(dataclasses.replace(input_file(100), format=kind))
    plans = {given: make_plan(table, FIELDS, None, PlanOptions(shuffle=given)) for given in (None, True, False)}
    assert {given: plan.options.shuffle for given, plan in plans.items()} == {None: shuffled, True: True, False: False}
    assert plans[None] == plans[shuffled]
    assert plans[None].hash == plans[shuffled].hash != plans[not shuffled].hash


@pytest.mark.parametrize(
    "other",
    [
        plan_of(100, 4, shards=4),
        plan_of(100, 4, samples_per_shard=25),
        plan_of(100, 4, shards=4, world_size=2, workers=2),
        make_plan(table_of(input_file(100, 4, path="/elsewhere/part.parquet")), FIELDS, None, PlanOptions(shards=4)),
    ],
)
def test_the_hash_does_not_change_with_how_the_plan_was_asked_for_or_where_the_files_lie(other):
    assert other.hash == BASE.hash


def test_the_hash_depends_on_the_order_of_the_files():
    files = [input_file(10, path="a.parquet"), input_file(10, path="b.parquet")]
    one, other = (make_plan(table_of(*order), FIELDS, None, PlanOptions(shards=2)) for order in (files, files[::-1]))
    assert one.hash != other.hash


def test_a_plan_goes_to_another_process_as_it_is():
    copy = pickle.loads(pickle.dumps(BASE))
    assert copy == BASE
    assert copy.hash == BASE.hash


def test_the_summary_says_what_was_decided():
    summary = plan_of(10, shards=4, key="name").summary()
    wanted = {"inputs": 1, "rows": 10, "shards": 4, "samples_per_shard": 3, "pads": 2, "dropped": 0, "key": "name"}
    assert {name: summary[name] for name in wanted} == wanted
    assert summary["fields"] == [dataclasses.asdict(field) for field in FIELDS]


@given(plans(), st.integers(1, 9))
def test_every_job_has_something_to_do_while_there_are_shards_enough(plan, jobs):
    assert 1 <= task_shards(plan, jobs, plan.num_shards) <= -(-plan.num_shards // jobs)


def test_shards_that_are_smaller_than_row_groups_share_a_task_so_that_little_is_read_twice():
    assert task_shards(plan_of(1000, 1, shards=100), 4, 100) == 25
    assert task_shards(plan_of(1000, 1000, shards=4), 4, 4) == 1


def test_a_million_shards_of_100_000_files_can_be_planned():
    plan = make_plan(table_of(*[input_file(100, 10)] * 100_000), FIELDS, None, PlanOptions(shards=1_000_000))
    assert plan.rows(999_999) == (9_999_990, 10_000_000)
    assert plan.num_pads == 0


@given(st.integers(0, 2**60), st.integers(1, 2**40), st.integers(1, 1000))
def test_the_windows_of_192_lanes_hold_at_most_256_mib_unless_samples_are_larger(num_bytes, num_samples, lanes):
    window, sample_bytes = default_window(num_bytes, num_samples, lanes), num_bytes // num_samples
    assert 1 <= window <= 1024
    if window > 1:
        assert min(lanes, 192) * window * sample_bytes <= 2**28
        assert window * sample_bytes <= 2**23
    if window < 1024:
        assert (window + 1) * sample_bytes > min(2**23, 2**28 // min(lanes, 192))


@pytest.mark.parametrize(
    ("num_bytes", "num_samples", "lanes", "window"),
    [
        (0, 0, 16, 1024),
        (10**6, 10**3, 192, 1024),
        (10**5, 1, 16, 83),
        (10**5, 1, 48, 55),
        (10**5, 1, 96, 27),
        (10**5, 1, 192, 13),
        (10**5, 1, 512, 13),
        (10**7, 1, 192, 1),
    ],
)
def test_the_default_window_by_the_size_of_samples_and_the_lanes(num_bytes, num_samples, lanes, window):
    assert default_window(num_bytes, num_samples, lanes) == window


FAR_MORE = [{"world_size": 1_000_000}, {"world_size": 401}, {"world_size": 51, "workers": 8}, {"shards": 401}]


@pytest.mark.parametrize("options", [*FAR_MORE, {"lanes": 401}], ids=str)
def test_more_than_ten_shards_for_each_row_are_made_only_where_pads_are_allowed(options):
    with pytest.raises(InputError, match="nearly all samples would be pads") as caught:
        plan_of(40, **options)
    assert caught.value.expected == "at most 400 shards for 40 rows"
    assert "--allow-pads" in caught.value.remedy
    allowed = plan_of(40, **options, allow_pads=True)
    assert allowed.num_pads == allowed.num_shards - 40


def test_more_shards_than_a_manifest_may_have_are_refused():
    with pytest.raises(InputError, match="too many shards"):
        plan_of(10**9, shards=2**24 + 1)
