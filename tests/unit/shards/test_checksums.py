from dataclasses import replace

import numpy as np
import pytest

from wdsplit.errors import CorruptDataError
from wdsplit.shards.checksums import checksums_bytes, checksums_path, dump_checksums, parse_checksums, sample_checksums
from wdsplit.shards.manifest import Shard

SHARD = Shard("000003.tar", 3, 1, 20_480, "xxh3_128:00")
SAMPLES = [b"a", b"", bytes(1000)]


def test_what_was_written_is_read():
    checksums = sample_checksums(SAMPLES)
    data = dump_checksums(checksums, SHARD)
    assert len(data) == checksums_bytes(SHARD) == 32
    assert parse_checksums(data, SHARD).tolist() == checksums.tolist()
    assert checksums_path(SHARD.path) == "000003.tar.sums"


def test_the_checksums_are_the_same_for_ever():
    assert sample_checksums(SAMPLES).tolist() == [16629034431890738719, 3244421341483603138, 2648655755868985484]
    assert dump_checksums(np.zeros(0, np.uint64), Shard("a.tar", 0, 0, 10_240, "x")).hex() == "11cdb280646cf0ea"


@pytest.mark.parametrize("place", range(32))
def test_a_changed_byte_is_noticed(place):
    data = bytearray(dump_checksums(sample_checksums(SAMPLES), SHARD))
    data[place] ^= 1
    with pytest.raises(CorruptDataError, match="--emit checksums"):
        parse_checksums(bytes(data), SHARD)


@pytest.mark.parametrize("changes", [{"checksum": "xxh3_128:01"}, {"num_samples": 2}])
def test_those_of_another_shard_are_refused(changes):
    with pytest.raises(CorruptDataError, match="do not belong"):
        parse_checksums(dump_checksums(sample_checksums(SAMPLES), SHARD), replace(SHARD, **changes))
