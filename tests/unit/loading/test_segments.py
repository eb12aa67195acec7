from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.loading.reading import segments as module
from wdsplit.loading.reading.segments import MIN_GAP_BYTES, SPARE, ranges_of


def ranges(begins, ends):
    """Return the ranges of a single window."""
    _, *cuts = ranges_of(begins, ends, np.zeros(len(begins), np.int64))
    return list(zip(*cuts, strict=True))


@st.composite
def samples(draw):
    """Draw where some samples begin and end."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=12))
    begins, ends, place = [], [], draw(st.integers(0, 9))
    for size, gap in sizes:
        begins.append(place)
        ends.append(place + size)
        place += size + gap
    unit = draw(st.sampled_from([1, 512, 4096]))
    return np.array(begins) * unit, np.array(ends) * unit


@given(samples(), st.sampled_from([0, 1, 5000, MIN_GAP_BYTES]))
def test_ranges_hold_the_samples_and_the_gaps_that_may_be_read(drawn, min_gap):
    begins, ends = drawn
    with patch.object(module, "MIN_GAP_BYTES", min_gap):
        found = ranges(begins, ends)
    bytes_of_samples = int((ends - begins).sum())
    assert found[0][0] == begins[0] and found[-1][1] == ends[-1]
    cuts = [(end, begin) for (_, end), (begin, _) in pairwise(found)]
    apart = [(end, begin) for end, begin in zip(ends[:-1].tolist(), begins[1:].tolist(), strict=True)]
    assert set(cuts) <= set(apart)
    left_out = [begin - end for end, begin in cuts]
    read = (begins[1:] - ends[:-1]).tolist()
    for gap in left_out:
        read.remove(gap)
    spared = [gap for gap in read if gap >= min_gap]
    assert all(gap >= min_gap for gap in left_out)
    assert sum(spared) <= bytes_of_samples // SPARE
    if left_out:
        assert max(spared, default=0) <= min(left_out)
        assert sum(spared) + min(left_out) > bytes_of_samples // SPARE
