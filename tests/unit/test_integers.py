import numpy as np
import pytest

from wdsplit.errors import InputError
from wdsplit.integers import at_least, whole


def test_integers_of_any_kind_become_ints():
    for value in (3, np.int64(3), np.uint8(3)):
        assert type(whole(value)) is int and at_least(3, "keep", value) == 3


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_what_is_no_integer_or_too_small_is_refused(value):
    with pytest.raises(InputError, match="invalid keep") as caught:
        at_least(1, "keep", value, also=", or a name")
    assert (caught.value.expected, caught.value.found) == ("an integer of at least 1, or a name", repr(value))
