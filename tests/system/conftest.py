"""What the system tests share; all of them are slow."""

from pathlib import Path

import pytest

from example_runs import SMALL, make_digits, run


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
