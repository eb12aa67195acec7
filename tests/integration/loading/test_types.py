"""What type checkers and editors know of datasets after their stages, and of samples."""

import re

import pytest

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
"""
DATASETS = dict.fromkeys(
    [
        *(f'wdsplit.Dataset("train").{stage.strip()}' for stage in STAGES.split("\n")[1:-1]),
        'wdsplit.mix({"a": 1}).decode().shuffle(1).map(print).to_tuple("jpg")',
    ],
    "Dataset",
)
SAMPLES = {
    'wdsplit.Samples("train")': "Samples",
    'wdsplit.Samples("train").decode("pil").map(print).to_tuple("jpg", "cls")': "Samples",
    'wdsplit.Samples("train")[3:5]': "Samples",
    'wdsplit.Samples("train")[3]': "Any",
    'wdsplit.Samples("train")["key"]': "Any",
    'DataLoader(wdsplit.Samples("train"), batch_size=4)': "DataLoader[dict[str, Any]]",
}


def program(folder, *lines):
    """Write a program that begins with some lines, and asks for the types of datasets; return its path."""
    path = folder / "program.py"
    path.write_text("\n".join(["import wdsplit", *lines, *(f"reveal_type({made})" for made in DATASETS)]))
    return path


@pytest.mark.lint
def test_datasets_and_samples_are_what_they_are_after_each_stage_to_mypy(tmp_path):
    mypy = pytest.importorskip("mypy.api", reason="needs mypy: pip install 'wdsplit[check]'")
    imports = ["from typing import Any", "from torch.utils.data import DataLoader, Dataset"]
    given = 'given: Dataset[dict[str, Any]] = wdsplit.Samples("train")'
    path = program(tmp_path, *imports, given, *(f"reveal_type({made})" for made in SAMPLES))
    said, errors, status = mypy.run(["--cache-dir", str(tmp_path / "cache"), str(path)])
    assert (errors, status) == ("", 0), said
    types = re.findall(r'Revealed type is "([^"]*)"', said)
    assert types.count("wdsplit.loading.dataset.Dataset") == len(DATASETS)
    assert [re.sub(r"\b(\w+\.)+", "", each) for each in types] == [*SAMPLES.values(), *DATASETS.values()]
