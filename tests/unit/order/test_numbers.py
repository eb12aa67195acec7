import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orders import samples_of, units_of
from wdsplit.order.numbers import SampleNumbers
from wdsplit.order.units import KINDS

masks = st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=6)


@given(masks, st.sampled_from([None, *KINDS]), st.integers(0, 9), st.booleans())
def test_units_are_numbered_through_the_shards_and_found_by_their_samples(masks, kind, seed, is_packed):
    if kind is None:
        masks = [[True] * len(mask) for mask in masks]
    totals = np.array(list(map(len, masks)), np.int64)
    units = units_of([np.array(mask, np.bool_) for mask in masks], kind or "select", seed, is_packed)
    places = [(shard, each) for shard in range(len(masks)) for each in samples_of(units, shard)]
    numbers = SampleNumbers(totals, None if kind is None else units)
    assert len(numbers) == len(places)
    shard, sample, part = numbers.places(np.arange(len(places)))
    found = list(zip(shard.tolist(), sample.tolist(), strict=True))
    assert sorted(found) == places
    assert part.tolist() == [found[:number].count(place) for number, place in enumerate(found)]
    assert numbers.of(shard, sample).tolist() == [found.index(place) for place in found]
