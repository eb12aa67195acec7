"""`wdsplit.bench`: a loader measured by a program."""

import pytest

import wdsplit
from wdsplit.errors import InputError


def test_a_loader_with_stages_of_ones_own_is_measured(whole_lanes):
    dataset = wdsplit.Dataset(whole_lanes).map(lambda sample: {"key": sample["__key__"]})
    calls = []
    result = wdsplit.bench(
        wdsplit.Loader(dataset, 10, collate_fn=list), epochs=2, progress=lambda *counts: calls.append(counts)
    )
    assert (result.batches, result.samples, result.read_amplification) == (20, 200, 1.0)
    assert result.samples_per_s == pytest.approx(200 / result.seconds)
    assert result.bytes_per_s == pytest.approx(result.num_bytes / result.seconds)
    assert calls == [(number, 20, 10 * number) for number in range(1, 21)]


def test_what_was_delivered_before_does_not_count_and_a_resumed_epoch_says_nothing_of_the_readings(whole_lanes):
    loader = wdsplit.Loader(wdsplit.Dataset(whole_lanes), 24)
    wdsplit.bench(loader)
    result = wdsplit.bench(loader)
    assert (result.batches, result.samples, result.windows_read, result.read_amplification) == (4, 96, 48, 1.0)
    next(iter(loader))
    resumed = wdsplit.Loader(wdsplit.Dataset(whole_lanes), 24)
    resumed.load_state_dict(loader.state_dict())
    result = wdsplit.bench(resumed)
    assert (result.batches, result.samples, result.read_amplification) == (3, 72, None)


def test_a_mixture_is_measured_without_the_readings_of_a_window(whole_lanes, numbers):
    dataset = wdsplit.mix({whole_lanes: 0.5, numbers: 0.5}).to_tuple("txt")
    result = wdsplit.bench(wdsplit.Loader(dataset, 20))
    assert result.samples >= 197 and result.read_amplification is None


@pytest.mark.parametrize("argument", [{"epochs": 0}, {"seconds": 0}, {"step_s": -1}], ids=str)
def test_arguments_out_of_range_are_refused(whole_lanes, argument):
    with pytest.raises(InputError, match="invalid bench arguments"):
        wdsplit.bench(wdsplit.Loader(wdsplit.Dataset(whole_lanes), 24), **argument)
