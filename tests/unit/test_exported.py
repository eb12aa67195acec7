import importlib.metadata
import importlib.resources
import inspect
import logging
import pkgutil
import subprocess
import sys

import pytest

import wdsplit

PUBLIC = [
    "AnnotateOptions",
    "AuditOptions",
    "Cluster",
    "ConvertError",
    "ConvertOptions",
    "CorruptDataError",
    "Dataset",
    "DatasetNotFoundError",
    "EpochShardList",
    "IndexOptions",
    "InputError",
    "Loader",
    "MapOptions",
    "MissingDependencyError",
    "Monitor",
    "OutputExistsError",
    "PipelineError",
    "RayEngine",
    "Report",
    "ReportOptions",
    "SampleNotFoundError",
    "Samples",
    "StateError",
    "StorageError",
    "Topology",
    "TopologyError",
    "UnansweredError",
    "UnsizedError",
    "View",
    "WdsplitError",
    "annotate",
    "assign",
    "audit",
    "batch",
    "batches",
    "bench",
    "commit_shares",
    "convert",
    "convert_share",
    "convert_splits",
    "croissant",
    "decode_field",
    "decode_sample_stage",
    "detect_rank",
    "drop_annotation",
    "drop_view",
    "erase",
    "gc",
    "index_tars",
    "inspect",
    "list_annotations",
    "list_versions",
    "list_views",
    "make_view",
    "map_samples",
    "mix",
    "plan",
    "plan_shares",
    "report",
    "resized",
    "to_device",
    "unescape_key",
    "verify",
]
"""What users build on: a name that is changed or removed here breaks their programs, and goes into the CHANGELOG."""


def output_of(script):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_the_public_names_are_these_and_sorted():
    assert wdsplit.__all__ == PUBLIC
    assert sorted(wdsplit.__all__) == wdsplit.__all__


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_imported_and_is_listed(name):
    assert getattr(wdsplit, name).__name__ == name
    assert name in dir(wdsplit)


def test_no_module_takes_the_place_of_a_public_name_whatever_was_imported():
    for module in pkgutil.iter_modules(wdsplit.__path__):
        importlib.import_module(f"wdsplit.{module.name}")
    assert [name for name in wdsplit.__all__ if inspect.ismodule(getattr(wdsplit, name))] == []


def test_a_star_import_brings_the_public_names_and_no_others():
    names = {}
    exec("from wdsplit import *", names)
    assert sorted(names.keys() - {"__builtins__"}) == PUBLIC


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="'wdsplit' has no attribute 'WebDataset'"):
        _ = wdsplit.WebDataset


def test_every_public_error_can_be_caught_by_the_one_root():
    errors = [getattr(wdsplit, name) for name in PUBLIC if name.endswith("Error")]
    assert len(errors) == 14
    assert all(issubclass(error, wdsplit.WdsplitError) for error in errors)


def test_the_version_is_that_of_the_installed_package():
    assert wdsplit.__version__ == importlib.metadata.version("wdsplit")


def test_type_checkers_find_the_marker_that_the_package_is_typed():
    assert (importlib.resources.files(wdsplit) / "py.typed").is_file()


def test_importing_leaves_logging_to_the_program():
    script = """
import logging, wdsplit
ours = logging.getLogger("wdsplit")
print(*[type(handler).__name__ for handler in ours.handlers], ours.level, ours.propagate, logging.root.handlers)
"""
    assert output_of(script) == [str(logging.NOTSET), "True", "[]"]


def test_a_program_that_configures_no_logging_sees_warnings(numbers):
    script = f"import wdsplit; list(wdsplit.Loader(wdsplit.Dataset({numbers!r}, tail='drop'), 1000))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "there are no batches" in run.stderr
