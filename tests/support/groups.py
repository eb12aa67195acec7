"""Tests that share what takes long to make, or what only one may use at a time, run in one process of pytest-xdist.

Those are the tests of a file that makes something for all of them, or uses a server. Files that share something say so
by `pytestmark = pytest.mark.xdist_group("name")`. That mark is xdist's own, but xdist 3.8 does nothing for it with
pytest 9.2, where the id of a test cannot be changed any more.
"""

import functools
import re

from xdist.scheduler import LoadScopeScheduling

SHARED = re.compile(r"""scope="(module|session)"|\b(bucket|place|s3_server|web)["),]""")
"""What a file makes for all of its tests, and fixtures whose server is started for a file."""


@functools.cache
def group_of(path):
    """Return the group that a file of tests names, or the file if its tests share something; else None.

    Tests of the system tier take so long that they are shared out one by one, unless their file names a group.
    """
    text = path.read_text(encoding="utf-8")
    named = re.search(r"""\bpytest\.mark\.xdist_group\("([^"]+)"\)""", text)
    if named or path.parent.name == "system":
        return named and named[1]
    return str(path) if SHARED.search(text) else None


class GroupScheduling(LoadScopeScheduling):
    """Gives all tests of a group to one process, and all others one by one to whichever is idle.

    Groups with many tests come first, so that single tests are left for the end, when processes wait for one another.
    """

    def _split_scope(self, nodeid):
        return group_of(self.config.rootpath / nodeid.partition("::")[0]) or nodeid
