"""The command line, run in this process."""

import contextlib
import io
import json
from typing import NamedTuple

import pytest

from tables import FULL_PROCESS_BYTES, without_progress
from wdsplit.cli.main import main
from wdsplit.engines import local


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def run(*arguments) -> Ended:
    """Run a command, which starts no processes for the small tables of tests, as for those of users."""
    said = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_PROCESS_BYTES", FULL_PROCESS_BYTES)
        with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]), pytest.raises(SystemExit) as end:
            main([*map(str, arguments)])
    out, err = (stream.buffer.getvalue().decode() for stream in said)
    return Ended(end.value.code or 0, out, without_progress(err))


def done(*arguments) -> Ended:
    """Run a command that must succeed without a word of complaint."""
    ended = run(*arguments)
    assert (ended.code, ended.err) == (0, "")
    return ended


def refused(code, *arguments) -> str:
    """Run a command that must fail with a code; return its message."""
    ended = run(*arguments)
    assert (ended.code, ended.out) == (code, "")
    return ended.err
