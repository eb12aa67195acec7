"""Tests that share what takes long to make, or what only one may use at a time, run in one process of pytest-xdist.

A file says so by `pytestmark = pytest.mark.xdist_group("name")`, for all of its tests. That mark is xdist's own, but
xdist 3.8 does nothing for it with pytest 9.2, where the id of a test cannot be changed any more.
"""

import functools
import re

from xdist.scheduler import LoadScopeScheduling


@functools.cache
def group_of(path):
    """Return the group that a file of tests names; None if it names none."""
    found = re.search(r"""\bpytest\.mark\.xdist_group\("([^"]+)"\)""", path.read_text(encoding="utf-8"))
    return found and found[1]


class GroupScheduling(LoadScopeScheduling):
    """Gives all tests of a group to one process, and all others one by one to whichever is idle."""

    def _split_scope(self, nodeid):
        return group_of(self.config.rootpath / nodeid.partition("::")[0]) or nodeid
