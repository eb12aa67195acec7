"""What type checkers and editors know of a dataset after its stages."""

import re

import pytest

mypy = pytest.importorskip("mypy.api", reason="needs mypy: pip install 'wdsplit[check]'")

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


def test_a_dataset_is_one_after_each_stage(tmp_path):
    stages = STAGES.split("\n")[1:-1]
    lines = [f'reveal_type(wdsplit.Dataset("train").{stage.strip()})' for stage in stages]
    lines.append('reveal_type(wdsplit.mix({"a": 1}).decode().shuffle(1).map(print).to_tuple("jpg"))')
    (tmp_path / "program.py").write_text("\n".join(["import wdsplit", *lines]))
    said, errors, _ = mypy.run(["--cache-dir", str(tmp_path / "cache"), str(tmp_path / "program.py")])
    assert errors == ""
    types = re.findall(r'Revealed type is "([^"]*)"', said)
    assert types == ["wdsplit.loading.dataset.Dataset"] * len(lines), said
