import json
import os
import re
import subprocess
import sys

import pytest

from paths import ROOT
from tables import DEADLINE_S

pytestmark = pytest.mark.xdist_group("jax tour")

NOTEBOOK = json.loads((ROOT / "examples" / "jax_tour.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]

RUN = """
import contextlib, io, json, sys

names, said = {"__name__": "__main__"}, []
for number, source in enumerate(json.load(sys.stdin)):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(source, f"cell {number}", "exec"), names)
    said.append(output.getvalue())
print(json.dumps([said, names["jax"].device_count()]))
"""


def run(*command, text="", **environ):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=ROOT,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ran():
    """Return what each cell printed, and how many devices there were."""
    sources = json.dumps(["".join(cell["source"]) for cell in CODE])
    return json.loads(run("-c", RUN, text=sources).splitlines()[-1])


def test_the_notebook_holds_what_it_claims_and_shows_what_it_prints(ran):
    said, num_devices = ran
    assert num_devices == 8
    assert said == ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in CODE]


def test_the_notebook_asserts_in_each_part():
    parts = "".join("".join(cell["source"]) + "\n" for cell in NOTEBOOK["cells"]).split("\n## ")[1:]
    assert [part.splitlines()[0] for part in parts if not re.search("^assert ", part, re.M)] == ["Data"]
    assert len(parts) == 6


def test_the_notebook_is_of_format_4_and_small():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        assert set(cell) - {"execution_count", "outputs"} == {"cell_type", "id", "metadata", "source"}
    assert all(output["output_type"] == "stream" for cell in CODE for output in cell["outputs"])
    assert (ROOT / "examples" / "jax_tour.ipynb").stat().st_size < 20_000


def test_the_benchmark_prints_a_row_for_each_mesh(tmp_path):
    options = ["--rows=32", "--batch-size=16", "--features=4", "--devices=1,2", "--rounds=1"]
    said = run("-m", "tools.bench.jax", *options, f"--output={tmp_path}")
    rows = [re.split(r" *\| *", line.strip("| ")) for line in said.splitlines() if line.startswith("|")]
    columns = ["arrays in memory", "Loader, device_put", "JaxLoader, prefetch 0", "JaxLoader, prefetch 2"]
    assert rows[0] == ["devices", "mesh", *columns, "the last one: x Loader, device_put"]
    assert [row[:2] for row in rows[2:]] == [["1", "(1)"], ["1", "(1, 1)"], ["2", "(2)"], ["2", "(1, 2)"]]
    for row in rows[2:]:
        *rates, ratio = (float(cell.replace(",", "")) for cell in row[2:])
        assert min(rates) > 0
        assert ratio == pytest.approx(rates[3] / rates[1], abs=0.02)
    assert list(tmp_path.iterdir()) == []
