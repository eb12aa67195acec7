"""What stages draw does not depend on ranks, workers and resumes."""

import pytest

from draws import KINDS, drawing, draws
from wdsplit.loading.loader import Loader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_the_same_on_any_topology_and_after_a_resume(numbers, kind):
    whole = draws(Loader(drawing(numbers, kind), 12))
    assert len(whole) == 108
    assert draws(Loader(drawing(numbers, kind), 12, num_workers=2)) == whole
    assert draws(*(Loader(drawing(numbers, kind, (rank, 3)), 4) for rank in range(3))) == whole
    if kind != "global":
        assert draws(Loader(drawing(numbers, kind), 12, num_workers=3, workers="thread")) == whole
    loader = Loader(drawing(numbers, kind), 12, num_workers=1)
    batches = iter(loader)
    seen = draws([next(batches) for _ in range(4)])
    rest = Loader(drawing(numbers, kind), 6)
    rest.load_state_dict(loader.state_dict())
    remaining = draws(rest)
    assert not seen.keys() & remaining.keys()
    assert seen | remaining == {position: whole[position] for position in seen | remaining}
