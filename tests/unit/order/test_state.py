import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orders import TAILS, options
from wdsplit.errors import StateError
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.split import World
from wdsplit.order.state import State, ViewMark, dump_state, parse_state, refuse_other_view

FINGERPRINT = "0123456789abcdef"

marks = st.none() | st.builds(ViewMark, name=st.text(), fingerprint=st.text())
states = st.builds(State, epoch=st.integers(0, 10**6), position=st.integers(0, 2**62 - 1), view=marks)
all_options = st.builds(
    OrderOptions,
    seed=st.integers(0, 2**63 - 1),
    shuffle=st.booleans(),
    lanes=st.integers(1, 10**6),
    window=st.integers(1, 10**6),
    tail=st.sampled_from(TAILS),
)


def dumped(**changes):
    values = {**dump_state(State(3, 4096), FINGERPRINT, options(), World()), **changes}
    return {name: value for name, value in values.items() if value is not ...}


@given(states, all_options, st.text())
def test_parse_is_the_inverse_of_dump_through_json(state, options, fingerprint):
    values = json.loads(json.dumps(dump_state(state, fingerprint, options, World(1, 2))))
    assert values == dump_state(state, fingerprint, options, World(1, 2))
    assert parse_state(values, fingerprint, options, World(1, 2)) == state
    if options.tail != "uneven":
        assert parse_state(values, fingerprint, options, World(4, 8)) == state, "it belongs to no rank"


@pytest.mark.parametrize("world", [World(0, 2), World(1, 3)])
def test_an_uneven_state_belongs_to_its_rank_and_world_size(world):
    values = dump_state(State(3, 4096), FINGERPRINT, options(tail="uneven"), World(1, 2))
    assert parse_state(values, FINGERPRINT, options(tail="uneven"), World(1, 2)) == State(3, 4096)
    with pytest.raises(StateError, match=r"rank|world_size") as caught:
        parse_state(values, FINGERPRINT, options(tail="uneven"), world)
    assert "each rank its own state" in caught.value.remedy


def test_a_state_is_a_small_dict_of_plain_values_and_says_nothing_of_the_world():
    assert dumped() == {
        "version": 1,
        "epoch": 3,
        "position": 4096,
        "fingerprint": FINGERPRINT,
        "seed": 0,
        "shuffle": True,
        "lanes": 4,
        "window": 4,
        "tail": "pad",
    }


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("version", 2),
        ("fingerprint", "f" * 16),
        ("seed", 1),
        ("shuffle", False),
        ("lanes", 8),
        ("window", 5),
        ("tail", "drop"),
        ("epoch", -1),
        ("epoch", 1.0),
        ("epoch", True),
        ("position", -1),
        ("position", "4096"),
        ("position", None),
        ("epoch", 2**62),
        ("position", 2**62),
    ],
)
def test_a_value_that_differs_is_named_with_both_sides(name, other):
    with pytest.raises(StateError) as caught:
        parse_state(dumped(**{name: other}), FINGERPRINT, options(), World())
    assert caught.value.found.startswith(f"{name}: {other!r} in the state")
    assert ";" not in caught.value.found
    assert "seed, shuffle, lanes, window, tail" in caught.value.remedy


def test_all_differences_are_named_at_once():
    with pytest.raises(StateError) as caught:
        parse_state({}, FINGERPRINT, options(), World())
    assert [difference.split(":")[0] for difference in caught.value.found.split("; ")] == list(dumped())


@pytest.mark.parametrize("values", [None, [], "state", 4096])
def test_what_is_no_dict_is_refused(values):
    with pytest.raises(StateError, match="not a state dict"):
        parse_state(values, FINGERPRINT, options(), World())


def test_views_are_compared_by_their_fingerprints_and_named_in_the_error():
    easy, same, other = ViewMark("easy", "1" * 32), ViewMark("score > 0.5", "1" * 32), ViewMark("easy", "2" * 32)
    refuse_other_view(easy, same, 3)
    refuse_other_view(None, None, 3)
    for found, here, remedy in (
        (easy, None, "view='easy'"),
        (None, easy, "all samples, without view="),
        (easy, other, "overwritten since"),
        (same, other, "the same view=, where=, keys= and exclude="),
    ):
        with pytest.raises(StateError, match="another view") as caught:
            refuse_other_view(found, here, 3, "data/train")
        assert remedy in caught.value.remedy
        assert caught.value.place == "data/train" and "epoch 3" in caught.value.expected
