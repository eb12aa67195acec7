import numpy as np

from wdsplit.loading.reading.block import Block, Pending, as_objects


def test_samples_of_many_bytes_are_made_a_few_at_a_time():
    """Their memory is used again: a block of Pending payloads is never in memory as a whole."""
    reads = []

    class Zeros:
        def read(self, offset, num_bytes):
            reads.append(offset)
            return bytes(num_bytes)

    fields = {"bin": as_objects([Pending(Zeros(), row, 800_000) for row in range(8)])}
    strings, ones = as_objects(["x"] * 8), np.ones(8, np.int64)
    samples = Block(strings, strings, ones, ones > 1, ones * 800_000, fields).samples()
    next(samples)
    assert len(reads) < 3
    assert len(list(samples)) == 7
    assert reads == list(range(8))
