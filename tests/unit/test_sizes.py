import pytest

from wdsplit.errors import InputError
from wdsplit.sizes import parse_size


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        (1, 1),
        ("200GB", 200 * 10**9),
        (" 1.5 TiB ", 3 * 2**39),
        ("10k", 10_000),
        ("512", 512),
        ("7 b", 7),
        ("2MiB", 2**21),
    ],
)
def test_sizes_are_bytes_or_texts(size, num_bytes):
    assert parse_size(size) == num_bytes


@pytest.mark.parametrize("size", [0, -1, "", "0GB", "-1GB", "many", "1XB", 1.5, True, "0.1b", "9" * 400, "1 GB 2"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(InputError, match="size"):
        parse_size(size)
