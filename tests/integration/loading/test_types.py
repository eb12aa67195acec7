"""What type checkers and editors know of a dataset after its stages."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wdsplit

STAGES = """
    compose(print)
    decode("pil")
    map(print)
    map_dict(jpg=print)
    map_random(print)
    map_tuple(print)
    rename(image="jpg")
    select(bool)
    shuffle(10)
    slice(10)
    to_tuple("jpg", "cls")
    batched(4)
    with_length(4)
"""


def program(folder):
    """Write a program that asks for the type after each stage; return its path, and how many types it asks for."""
    stages = STAGES.split("\n")[1:-1]
    lines = [f'reveal_type(wdsplit.Dataset("train").{stage.strip()})' for stage in stages]
    lines.append('reveal_type(wdsplit.mix({"a": 1}).decode().shuffle(1).map(print).to_tuple("jpg"))')
    path = folder / "program.py"
    path.write_text("\n".join(["import wdsplit", *lines]))
    return path, len(lines)


@pytest.mark.lint
def test_a_dataset_is_one_after_each_stage_to_mypy(tmp_path):
    mypy = pytest.importorskip("mypy.api", reason="needs mypy: pip install 'wdsplit[check]'")
    path, count = program(tmp_path)
    said, errors, _ = mypy.run(["--cache-dir", str(tmp_path / "cache"), str(path)])
    assert errors == ""
    types = re.findall(r'Revealed type is "([^"]*)"', said)
    assert types == ["wdsplit.loading.dataset.Dataset"] * count, said


SAMPLES = {
    'wdsplit.Samples("train")': "Samples",
    'wdsplit.Samples("train").decode("pil").map(print).to_tuple("jpg", "cls")': "Samples",
    'wdsplit.Samples("train")[3:5]': "Samples",
    'wdsplit.Samples("train")[3]': "Any",
    'wdsplit.Samples("train")["key"]': "Any",
    'DataLoader(wdsplit.Samples("train"), batch_size=4)': "DataLoader[dict[str, Any]]",
}


@pytest.mark.lint
def test_samples_are_a_map_style_dataset_to_mypy(tmp_path):
    mypy = pytest.importorskip("mypy.api", reason="needs mypy: pip install 'wdsplit[check]'")
    lines = ["import wdsplit", "from torch.utils.data import DataLoader, Dataset"]
    lines += [f"reveal_type({expression})" for expression in SAMPLES]
    lines += ["from typing import Any", 'given: Dataset[dict[str, Any]] = wdsplit.Samples("train")']
    (tmp_path / "program.py").write_text("\n".join(lines))
    said, errors, status = mypy.run(["--cache-dir", str(tmp_path / "cache"), str(tmp_path / "program.py")])
    assert (errors, status) == ("", 0), said
    types = re.findall(r'Revealed type is "([^"]*)"', said)
    assert [re.sub(r"\b(\w+\.)+", "", each) for each in types] == list(SAMPLES.values())


@pytest.mark.slow
def test_a_dataset_is_one_after_each_stage_to_pyright(tmp_path):
    pytest.importorskip("pyright", reason="needs pyright: pip install 'wdsplit[tests-all]'")
    path, count = program(tmp_path)
    settings = {"extraPaths": [str(Path(wdsplit.__file__).parents[1])], "include": [path.name]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot fetch its program: {done.stderr[-200:]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    types = [re.search(r'is "([^"]*)"$', each["message"])[1] for each in found if each["severity"] == "information"]
    assert types == ["Dataset"] * count, found
