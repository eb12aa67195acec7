"""What the system tests share; all of them are slow."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from example_runs import SMALL, make_digits, run
from tables import write_table


def pytest_collection_modifyitems(items):
    """Mark all tests of this folder as slow."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """Return the datasets of digits to train the examples on and to test them with."""
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def by_ddp(digits, tmp_path_factory):
    """Return what examples/train_ddp.py prints in a run that nothing interrupts."""
    return run("train_ddp.py", *digits, *SMALL, out=tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """Return a table whose groups of rows, and whose shards, do not end where row groups end."""
    chance, num_rows = np.random.default_rng(0), 2000
    columns = {
        "bin": pa.array([chance.bytes(300) for _ in range(num_rows)]),
        "label": np.arange(num_rows),
        "group": chance.integers(0, 300, num_rows),
    }
    return write_table(tmp_path_factory.mktemp("table") / "in.parquet", columns, rows_per_group=50)
