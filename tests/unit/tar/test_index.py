import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tars import archives
from wdsplit.errors import CorruptDataError
from wdsplit.tar.index import dump_index, parse_index


def packed(*offsets):
    return np.array(offsets, "<u8").tobytes()


@given(archives())
def test_parse_is_the_inverse_of_dump(built):
    data = dump_index(built.offsets)
    offsets = parse_index(data, len(built.samples), len(built.data))
    assert offsets.dtype == np.int64
    assert offsets.tolist() == built.offsets.tolist()


def test_the_format_is_little_endian_uint64_with_one_entry_more_than_samples():
    assert dump_index(np.array([0, 1024, 0x10200])) == bytes(8) + b"\0\4" + bytes(6) + b"\0\2\1" + bytes(5)


@pytest.mark.parametrize("length", [0, 7, 8, 15, 17, 24, 32])
def test_an_index_of_a_wrong_length_is_refused(length):
    with pytest.raises(CorruptDataError, match="invalid length") as caught:
        parse_index(bytes(length), 1, 10_240)
    assert "16 bytes" in caught.value.expected
    assert f"{length} bytes" in caught.value.found


@pytest.mark.parametrize(
    "offsets",
    [
        (512, 1024, 2048),
        (0, 1024, 1024),
        (0, 2048, 1024),
        (0, 1000, 2048),
        (0, 1024, 2049),
        (0, 1024, 10_752),
        (0, 1024, 2**64 - 512),
        (0, 2**64 - 512, 1024),
        (0, 2**63 - 512, 2**63),
    ],
)
def test_offsets_that_cannot_be_are_refused(offsets):
    with pytest.raises(CorruptDataError, match="invalid offsets") as caught:
        parse_index(packed(*offsets), 2, 10_240)
    assert "at most 10240" in caught.value.expected


@given(st.lists(st.integers(0, 2**55 - 1).map(lambda block: 512 * block) | st.integers(0, 2**64 - 1), max_size=4))
@example([2**63 - 512, 2**63])
@example([512, 1024])
def test_what_is_accepted_always_rises_from_0_in_blocks_and_stays_in_the_shard(rest):
    try:
        offsets = parse_index(packed(0, *rest), len(rest), 10_240).tolist()
    except CorruptDataError:
        return
    assert offsets == sorted(set(offsets)) == [0, *rest]
    assert offsets[-1] <= 10_240
    assert all(offset % 512 == 0 for offset in offsets)
