"""Each piece of advice has its condition."""

from dataclasses import replace

import pytest

from wdsplit.debug import Diagnosis

MODEST = Diagnosis(
    batches=100,
    samples=1000,
    num_bytes=10**6,
    iterations=1,
    wait_s=5.0,
    compute_s=5.0,
    first_wait_s=0.1,
    waits={"50": 0.05, "90": 0.06, "99": 0.07, "100": 0.08},
    computes={"50": 0.05, "90": 0.06, "99": 0.07, "100": 0.08},
    num_workers=4,
    num_processors=4,
    prefetch_factor=2,
    is_threaded=False,
    is_persistent=True,
    is_remote=False,
    is_cached=False,
    read_ahead_bytes=2**27,
    connections=16,
    decodes_images=False,
    is_columnar=True,
    collates=False,
    windows_read=1.0,
    sharing=None,
)
"""A loader that is too slow, and of which nothing is to be said but that the processors are busy."""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "4 workers keep all 4 processors busy"),
        ({"num_workers": 0}, "more workers (now num_workers=0): this machine has 4 processors"),
        ({"first_wait_s": 4.0, "iterations": 3, "is_persistent": False}, "persistent_workers=True"),
        ({"decodes_images": True}, "resized(224)"),
        ({"num_bytes": 10**9}, "samples have 1,000 kB"),
        ({"is_columnar": False, "is_threaded": True}, "workers='process'"),
        ({"collates": True}, "collate_fn runs"),
        ({"is_remote": True}, "read_ahead_bytes (now 128 MiB) and connections (now 16)"),
        ({"waits": {**MODEST.waits, "99": 3.0}}, "one wait of a hundred takes 3.0 s"),
        ({"windows_read": 2.5, "sharing": "use 2 ranks"}, "each window is read 2.5 times: use 2 ranks"),
    ],
)
def test_each_piece_of_advice_has_its_condition(changes, text):
    changed = replace(MODEST, **changes)
    assert len(MODEST.advice) == 1
    assert any(text in each for each in changed.advice)
    assert not changes or not any(text in each for each in MODEST.advice)
    assert replace(changed, wait_s=0.5).advice == ()
