"""The kinds of workers that a loader can have, as its arguments, and tests that run with each."""

import pytest

KINDS = {
    "none": {},
    "processes": {"num_workers": 2},
    "persistent processes": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 2, "workers": "thread"},
}
every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
