import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from made_datasets import numbers_dataset
from torchruns import torchrun


@dataclass(frozen=True)
class Job:
    """What the two ranks of a job reported (debug_worker.py), and the folder that they wrote to."""

    ranks: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """Run the job of two ranks, once for all tests."""
    folder = tmp_path_factory.mktemp("job")
    path = numbers_dataset(folder / "numbers", 101, shards=7, lanes=4, window=4)
    ended = torchrun(2, "debug_worker.py", path, folder / "out", out=folder / "out")
    assert ended.returncode == 0, ended.output
    return Job([json.loads((folder / "out" / f"{rank}.json").read_text()) for rank in range(2)], folder / "out")
