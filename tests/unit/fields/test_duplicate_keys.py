import pyarrow as pa

from wdsplit.fields.duplicate_keys import find_duplicate_keys
from wdsplit.fields.keys import hash_keys


def keys_of(text):
    return pa.array(text.split(), pa.large_string())


def duplicates(*batches, hashes=None):
    """Return the duplicate keys of batches that are given as words, and how often the keys were read."""
    reads = []

    def read_keys(suspects):
        reads.append(suspects)
        for number, batch in enumerate(batches):
            yield keys_of(batch), f"batch {number}"

    found = list(find_duplicate_keys(hashes or [hash_keys(keys_of(batch)) for batch in batches], read_keys))
    return [tuple(one) for one in found], len(reads)


def test_each_further_place_of_a_key_is_found_with_its_first():
    found, reads = duplicates("a b c", "d b", "b e a")
    assert found == [("b", "batch 0", "batch 1"), ("b", "batch 0", "batch 2"), ("a", "batch 0", "batch 2")]
    assert reads == 1


def test_keys_are_not_read_where_all_hashes_differ():
    assert duplicates("a b c", "d e", "") == ([], 0)
    assert duplicates() == ([], 0)


def test_equal_hashes_of_different_keys_are_no_duplicates():
    hashes = [hash_keys(keys_of("a b c a"))]
    assert duplicates("a b c", hashes=hashes) == ([], 1)
