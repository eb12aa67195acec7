"""Checks that run together in a process of their own: a library's settings hold for a process, and starting it is slow.

A file of checks has functions `check_...(path)` of a dataset. `names_in` and `outcomes` are for the tests.
"""

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def names_in(script):
    """Return the names of the checks of a file, without running it."""
    return re.findall(r"^def (check_\w+)\(", (HERE / script).read_text(encoding="utf-8"), re.M)


def outcomes(script, path, without=(), **environ):
    """Run the checks of a file on a dataset, as if some libraries were not installed.

    Return for each what went wrong: nothing, or a traceback.
    """
    command = [sys.executable, __file__, str(HERE / script), path, *without]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, **environ})
    if done.returncode:
        return dict.fromkeys(names_in(script), done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == names_in(script)
    return found


def documented_block(page, mention):
    """Return the first Python block of a page of docs/ that mentions something."""
    text = (HERE.parent.parent / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    return next(block for block in blocks if mention in block)


def main(script, path, *without):
    """Run all checks of a file; print their outcomes."""
    sys.modules.update(dict.fromkeys(without))
    found = {}
    for name, check in runpy.run_path(script).items():
        if name.startswith("check_"):
            found[name] = ""
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    check(path)
                except (Exception, pytest.fail.Exception):
                    found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
