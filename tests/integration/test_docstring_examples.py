"""Each public function, class and method has an example in its docstring, which runs.

An example is the indented code of a docstring, above its arguments. It runs in a folder with datasets, as a page of the
documentation does, and prints what its comments behind `print(...)` say.
"""

import contextlib
import dataclasses
import inspect
import io
import re
import shutil
import textwrap
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset as wds
from PIL import Image

import wdsplit
from tables import FULL_PROCESS_BYTES
from wdsplit.engines import local
from wdsplit.loading.dataset import _INTERNALS

pytestmark = pytest.mark.xdist_group("docstring_examples")

OF_ENGINES = {"RayEngine.map", "RayEngine.warn_if_stalled"}
"""Conversions call these, not users."""
NOT_RUN = {"RayEngine", "RayEngine.close"}
"""They need a cluster; tests/system/test_ray_engine.py uses one."""
BEFORE = {"convert_share": ["plan_shares"], "commit_shares": ["plan_shares", "convert_share"]}
"""Examples that go on with the files of others."""

SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$", re.M)
CODE = re.compile(r"(?:^(?:    .*)?\n)+", re.M)
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.M)


def code_of(documented):
    """Return the example of a docstring; empty if it has none."""
    text = SECTION.split(inspect.cleandoc(documented.__doc__ or ""))[0] + "\n"
    return "\n".join(map(textwrap.dedent, CODE.findall(text))).strip()


def methods_of(kind):
    """Return the methods of a class that wdsplit defines for users, by their full names."""
    found = {}
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        function = getattr(method, "__func__", method)
        is_ours = inspect.isfunction(function) and function.__module__.startswith("wdsplit.")
        if is_ours and function.__name__ == name and not name.startswith("_") and name not in _INTERNALS:
            found[f"{kind.__name__}.{name}"] = function
    return found


def documented():
    """Return all that needs an example, by name: public functions, classes, and the methods of these."""
    found = {}
    for name in wdsplit.__all__:
        public = getattr(wdsplit, name)
        is_class = inspect.isclass(public)
        if is_class and issubclass(public, Exception):
            continue  # docs/reference/errors.md shows each as it is raised
        if not dataclasses.is_dataclass(public):
            found[name] = public
        found |= methods_of(public) if is_class else {}
    return {name: each for name, each in found.items() if name not in OF_ENGINES}


DOCUMENTED = documented()


def image_bytes(row):
    file = io.BytesIO()
    Image.new("RGB", (256, 200), (row, 0, 0)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder with the tables, datasets and the checkpoint that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    rows = range(64)
    table = pa.table({"jpg": list(map(image_bytes, rows)), "cls": rows, "json": [{"row": row} for row in rows]})
    (folder / "raw").mkdir()
    pq.write_table(table, folder / "raw" / "digits.parquet")
    scores = pa.table({"id": rows, "score": np.linspace(0, 1, len(rows))})
    pq.write_table(scores, folder / "scores.parquet")
    options = wdsplit.ConvertOptions(shards=8, lanes=4, window=4)
    for name in ("train", "test", "a", "b"):
        wdsplit.convert(table, folder / "data" / name, options)
    wdsplit.make_view(folder / "data" / "train", "easy", where="cls < 32")
    wdsplit.annotate(folder / "data" / "train", scores.rename_columns(["id", "quality"]), key="id", name="quality")
    (folder / "tars").mkdir()
    for tar in (folder / "data" / "a").glob("*.tar"):
        shutil.copy(tar, folder / "tars")
    loader = loader_of(folder)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    torch.save({"loader": loader.state_dict(), "model": {}}, folder / "checkpoint.pt")
    return folder


def loader_of(folder):
    return wdsplit.Loader(wdsplit.Dataset(str(folder / "data" / "train")).decode("torchrgb", only="jpg cls"), 8)


def names_for(folder):
    """Return what the examples take for given."""
    loader = loader_of(folder)
    return {
        "wdsplit": wdsplit,
        "torch": torch,
        "wds": wds,
        "wandb": SimpleNamespace(log=lambda scalars, step: None),
        "dataset": wdsplit.Dataset("data/train"),
        "frame": pq.read_table("scores.parquet").rename_columns(["id", "more"]),
        "loader": loader,
        "model": torch.nn.Linear(1, 1),
        "samples": wdsplit.Samples("data/train"),
        "shards": wdsplit.EpochShardList("data/train"),
        "train_step": lambda *batch: None,
    }


def run_example(name, code, names):
    """Run an example; what it prints must be what it says."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, f"example of {name}", "exec"), names)
    shown = PRINTED.findall(code)
    assert not shown or out.getvalue().splitlines() == shown


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its tars open
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with few processors
@pytest.mark.parametrize("name", [*DOCUMENTED, "wdsplit"])
def test_what_users_call_has_an_example_that_runs(name, prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "_PROCESS_BYTES", FULL_PROCESS_BYTES)  # as users have it: no processes for so little
    names = names_for(tmp_path)
    if name == "wdsplit":  # which begins with a table
        shutil.rmtree("data")
    for other in BEFORE.get(name, []):
        run_example(other, code_of(DOCUMENTED[other]), names)
    if name == "convert":
        names["samples"] = [(Image.new("RGB", (8, 8)), row) for row in range(3)]
    code = code_of(DOCUMENTED.get(name, wdsplit))
    assert code, f"{name} has no example"
    if name in NOT_RUN:
        compile(code, f"example of {name}", "exec")
    else:
        run_example(name, code, names)


def test_what_a_module_lists_is_what_is_public():
    assert dir(wdsplit) == sorted(wdsplit.__all__)


def test_a_missing_and_a_wrong_example_are_noticed():
    def without():
        """Return nothing."""

    def wrong():
        """Return nothing.

            print(1 + 1)  # 3

        Args:
            none: There are none.
        """

    assert code_of(without) == ""
    assert code_of(wrong) == "print(1 + 1)  # 3"
    with pytest.raises(AssertionError):
        run_example("wrong", code_of(wrong), {})
