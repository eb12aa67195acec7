"""`examples/tour.ipynb` runs, and shows what it holds."""

import json
import os
import re
import subprocess
import sys

import pytest

from paths import EXAMPLES

NOTEBOOK = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]

RUN = """
import ast, contextlib, io, json, sys

names, shown = {"__name__": "__main__"}, []
for number, source in enumerate(json.load(sys.stdin)):
    tree, value = ast.parse(source), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    html = getattr(value, "_repr_html_", lambda: None)()
    shown.append([output.getvalue(), "" if value is None else repr(value), html])
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return for each cell what it printed, and its last value as text and HTML."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        input=json.dumps(["".join(cell["source"]) for cell in CODE]),
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("tour"))},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def without_sizes(text):
    """Libraries of images compress differently."""
    return re.sub(r"[\d.]+ (B|kB|MB)", "SIZE", text)


def stored(cell, kind):
    found = [output["data"].get(kind, []) for output in cell["outputs"] if "data" in output]
    return "".join(line for lines in found for line in lines)


@pytest.mark.slow
def test_the_notebook_shows_what_it_holds(ran):
    for cell, (said, text, html) in zip(CODE, ran, strict=True):
        assert said == "".join(line for output in cell["outputs"] for line in output.get("text", []))
        assert without_sizes(text) == without_sizes(stored(cell, "text/plain"))
        assert bool(html) == bool(stored(cell, "text/html"))
    assert sum(bool(html) for _, _, html in ran) == 9


def test_the_notebook_is_of_format_4_and_small():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    assert (EXAMPLES / "tour.ipynb").stat().st_size < 60_000
