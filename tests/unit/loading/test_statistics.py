import dataclasses

from wdsplit.loading.statistics import Statistics

EARLIER = Statistics(
    10, 100, 4000, 3, 9, 1.0, 4.0, 200, fetched_bytes=600, retries=2, epoch=1, position=300, bad_samples=1
)
LATER = Statistics(
    16, 160, 12_000, 7, 20, 4.0, 6.0, 400, fetched_bytes=1600, retries=5, epoch=2, position=480, rank=3, bad_samples=4
)


# Scalars


def test_rates_and_shares_are_those_since_earlier_statistics_and_all_else_is_as_it_is_now():
    assert LATER.scalars(EARLIER) == {
        "samples_per_s": 60 / 5,
        "bytes_per_s": (12_000 * 160 // 400 - 4000 * 100 // 200) / 5,
        "fetched_bytes_per_s": 1000 / 5,
        "wait_share": 3 / 5,
        "retries": 5.0,
        "bad_samples": 4.0,
        "epoch": 2.0,
        "position": 480.0,
    }
    assert all(type(value) is float for value in LATER.scalars(EARLIER).values())
    assert LATER.scalars(prefix="wdsplit/")["wdsplit/epoch"] == 2


def test_the_bottleneck_is_the_loader_if_it_is_waited_for_more_than_a_tenth_of_the_time():
    for wait_s, compute_s, bottleneck, told in ((0.9, 9.1, "model", "keeps up"), (1.1, 8.9, "loader", "more workers")):
        made = dataclasses.replace(LATER, wait_s=wait_s, compute_s=compute_s)
        assert made.bottleneck == bottleneck and told in str(made)


def test_no_rate_is_infinite_or_negative():
    assert LATER.scalars(LATER)["samples_per_s"] == LATER.scalars(LATER)["wait_share"] == 0.0
    smaller_samples = dataclasses.replace(EARLIER, samples_made=300, num_bytes=5000, wait_s=2.0)
    assert smaller_samples.scalars(EARLIER)["bytes_per_s"] == 0.0
