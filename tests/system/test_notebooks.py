"""The notebooks in examples/ run, and show what they hold."""

import json
import re

import pytest

from paths import EXAMPLES
from tools.run_notebooks import outputs_of

LARGEST = {"tour": 60_000, "jax_tour": 20_000}
GALLERY = 160_000
NOTEBOOKS = sorted(EXAMPLES.rglob("*.ipynb"))
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def text_of(outputs):
    """Return what cells have printed and shown as text, without sizes: libraries of images compress differently."""
    text = [output.get("text") or output["data"].get("text/plain", []) for output in outputs]
    return [re.sub(r"[\d.]+ (B|kB|MB)", "SIZE", "".join(lines)) for lines in text]


@by_name
def test_a_notebook_shows_what_it_holds(path):
    notebook = read(path)
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    ran = outputs_of(notebook)
    assert list(map(text_of, ran)) == list(map(text_of, stored))
    assert [[list(each.get("data", ())) for each in cell] for cell in ran] == [
        [list(each.get("data", ())) for each in cell] for cell in stored
    ]


@by_name
def test_a_notebook_is_of_format_4_and_small(path):
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert set(cell) - {"execution_count", "outputs"} == {"cell_type", "id", "metadata", "source"}
    assert path.stat().st_size < LARGEST.get(path.stem, GALLERY)


def test_the_tour_of_jax_asserts_in_each_part():
    cells = read(EXAMPLES / "jax_tour.ipynb")["cells"]
    parts = "".join("".join(cell["source"]) + "\n" for cell in cells).split("\n## ")[1:]
    assert [part.splitlines()[0] for part in parts if not re.search("^assert ", part, re.M)] == ["Data"]
    assert len(parts) == 6
