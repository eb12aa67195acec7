"""With the lowest versions that pyproject.toml names, a table gives the same bytes, and they verify.

`make test-lowest` installs those versions into an environment of their own, and names its Python.
"""

import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from paths import ROOT
from tables import DEADLINE_S, files_below, mixed_table, write_files

LOWEST = os.environ.get("LOWEST_PYTHON")

pytestmark = pytest.mark.skipif(LOWEST is None, reason="needs the lowest versions: make test-lowest")


def wdsplit(python, *arguments):
    """Run a command of this checkout with the libraries of an environment; return what it prints."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(ROOT)}
    command = [python, "-m", "wdsplit.cli", *map(str, arguments)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def shards_and_sidecars(folder):
    """Return the bytes of all files but the manifest's and tables, into which pyarrow writes its own version."""
    names = [name for name in files_below(folder) if not name.endswith(".parquet") and name != "wdsplit.json"]
    return {name: (folder / name).read_bytes() for name in names}


def tables(folder):
    """Return all tables of a dataset: of its shards, and of their samples."""
    return {path.name: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Return a folder of parquet files with columns of many types and empty files in between."""
    folder = tmp_path_factory.mktemp("raw")
    write_files(folder, mixed_table(300), [40, 0, 70], 16)
    return folder


@pytest.mark.parametrize(
    "options",
    [["--no-shuffle"], ["--seed=3"], ["--where=label >= 40 and caption != 'caption 50 é'", "--emit=wids,dali,energon"]],
    ids=["plain", "shuffled", "selected"],
)
def test_the_lowest_versions_write_the_same_bytes_and_verify_them(raw, tmp_path, options):
    newest, lowest = tmp_path / "newest", tmp_path / "lowest"
    for python, output in ((sys.executable, newest), (LOWEST, lowest)):
        wdsplit(python, "convert", raw, output, "--shards=8", "--world-size=2", "--jobs=2", *options)
    assert shards_and_sidecars(lowest) == shards_and_sidecars(newest)
    assert tables(lowest) == tables(newest)
    wdsplit(LOWEST, "verify", newest)
    wdsplit(LOWEST, "audit", newest, "--world-size=2", "--workers=2")


def test_the_lowest_versions_write_a_report(raw, tmp_path):
    wdsplit(sys.executable, "convert", raw, tmp_path / "data", "--shards=8")
    assert "300 samples" in wdsplit(LOWEST, "report", tmp_path / "data", "-o", tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_manifest_that_is_nested_too_deeply_is_refused(raw, tmp_path):
    """The parsers of older versions end the process."""
    wdsplit(LOWEST, "convert", raw, tmp_path / "out", "--shards=2")
    header, nested = tmp_path / "out" / "wdsplit.json", b"[" * 200_000 + b"]" * 200_000
    header.write_bytes(header.read_bytes().replace(b'"provenance": {', b'"provenance": {"x": %b, ' % nested, 1))
    with pytest.raises(AssertionError, match=r"wdsplit.json cannot be read\n(.*\n)*.*found: invalid JSON"):
        wdsplit(LOWEST, "inspect", tmp_path / "out")
