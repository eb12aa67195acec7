"""The public names; docs/reference/python.md lists them too, and tests/unit/test_docs.py compares both."""

import importlib
import importlib.metadata
import importlib.resources
import inspect
import logging
import pkgutil
import subprocess
import sys

import pytest

import wdsplit
from tables import write_table


def test_public_names_are_sorted_and_each_can_be_imported_also_by_a_star():
    assert sorted(wdsplit.__all__) == wdsplit.__all__ == dir(wdsplit)
    assert [getattr(wdsplit, name).__name__ for name in wdsplit.__all__] == wdsplit.__all__
    names = {}
    exec("from wdsplit import *", names)
    assert sorted(names.keys() - {"__builtins__"}) == wdsplit.__all__
    errors = [getattr(wdsplit, name) for name in wdsplit.__all__ if name.endswith("Error")]
    assert all(issubclass(error, wdsplit.WdsplitError) for error in errors)
    with pytest.raises(AttributeError, match="'wdsplit' has no attribute 'WebDataset'"):
        _ = wdsplit.WebDataset


def test_no_module_takes_the_place_of_a_public_name_whatever_was_imported():
    for module in pkgutil.iter_modules(wdsplit.__path__):
        importlib.import_module(f"wdsplit.{module.name}")
    assert [name for name in wdsplit.__all__ if inspect.ismodule(getattr(wdsplit, name))] == []


def test_the_package_has_its_version_and_says_that_it_is_typed():
    assert wdsplit.__version__ == importlib.metadata.version("wdsplit")
    assert (importlib.resources.files(wdsplit) / "py.typed").is_file()


@pytest.mark.slow
def test_importing_leaves_logging_to_the_program_and_one_that_configures_none_sees_warnings(tmp_path):
    for split in ("train", "test"):
        write_table(tmp_path / f"{split}.parquet", {"n": [1]})
    script = f"""
import logging, wdsplit
ours = logging.getLogger("wdsplit")
print(*[type(handler).__name__ for handler in ours.handlers], ours.level, ours.propagate, logging.root.handlers)
wdsplit.plan({str(tmp_path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [str(logging.NOTSET), "True", "[]"])
    assert "tables of several splits" in done.stderr
