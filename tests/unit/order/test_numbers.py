import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.order.numbers import SampleNumbers
from wdsplit.order.selection import Selection

masks = st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=6)


@given(masks, st.booleans())
def test_samples_are_numbered_through_the_shards_and_found_by_their_numbers(masks, has_selection):
    if not has_selection:
        masks = [[True] * len(mask) for mask in masks]
    places = [(shard, place) for shard, mask in enumerate(masks) for place, chosen in enumerate(mask) if chosen]
    selection = Selection.of_masks([np.array(mask, np.bool_) for mask in masks]) if has_selection else None
    numbers = SampleNumbers(np.array(list(map(len, masks)), np.int64), selection)
    assert len(numbers) == len(places)
    shard, sample = numbers.places(np.arange(len(places)))
    assert list(zip(shard.tolist(), sample.tolist(), strict=True)) == places
    assert numbers.of(shard, sample).tolist() == list(range(len(places)))
