"""Write docs/reference/errors.md: each public error, raised by what raises it, with its cause and remedy.

python -m tools.make_error_page
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import wdsplit
from wdsplit import debug

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"
INTRODUCTION = """\
# Errors

All errors are a `wdsplit.WdsplitError`. Each says what is wrong, where, what was expected and found, and what to do.
The attributes `cause`, `place`, `expected`, `found`, `remedy`, `url`, `key` and `offset` hold the parts. Each is also
the builtin error that a caller expects.

Remedies name the options of commands. The keywords in Python have the same names, with `_` for `-`: `--overwrite` is
`overwrite=True`.

This page is made by running the code that it shows (`python -m tools.make_error_page`).
"""


@dataclass(frozen=True)
class Case:
    """How to raise an error, and what users should know.

    Attributes:
        error: The class.
        code: What raises it.
        advice: What it means, and what to do.
    """

    error: type[Exception]
    code: str
    advice: str


CASES = (
    Case(
        wdsplit.InputError,
        'wdsplit.Loader(wdsplit.Dataset("data/train"), batch_size=0)',
        "An option, an argument or an input table is invalid. Nothing was written.",
    ),
    Case(
        wdsplit.DatasetNotFoundError,
        'wdsplit.Dataset("data/trian")',
        "Check the path. An unfinished conversion has no manifest yet: finish it with "
        "`wdsplit.convert(..., resume=True)`.",
    ),
    Case(
        wdsplit.OutputExistsError,
        'wdsplit.convert(["raw.parquet"], "data/train")',
        "`wdsplit.convert(..., overwrite=True)` replaces the dataset; `resume=True` finishes a conversion that "
        "stopped.",
    ),
    Case(
        wdsplit.SampleNotFoundError,
        'wdsplit.Dataset("data/train").sample("cat7")',
        "Keys are those in the tar, or those of the table before they were escaped. `wdsplit.inspect` shows some.",
    ),
    Case(
        wdsplit.CorruptDataError,
        'list(wdsplit.Dataset("data/damaged", shuffle=False))',
        "`wdsplit.verify` lists all damaged shards. Copy or convert them again, or train with "
        '[`on_bad_sample="substitute"`](../bad-samples.md).',
    ),
    Case(
        wdsplit.StorageError,
        'wdsplit.report("data/train", "missing/report.html")',
        "The operating system or the store refused to read or write. Here the folder does not exist.",
    ),
    Case(
        wdsplit.UnansweredError,
        'wdsplit.Dataset("https://data.invalid/train", storage_options={"deadline_s": 0.1})',
        "Temporary: the store gave no valid answer within `deadline_s`. See [Retries](../streaming.md#retries).",
    ),
    Case(
        wdsplit.TopologyError,
        'wdsplit.Dataset("data/train", rank=4, world_size=4)',
        "[Launchers](../multi-node.md#where-rank-and-world-size-come-from) shows where rank and world size come from.",
    ),
    Case(
        wdsplit.StateError,
        'state = wdsplit.Loader(wdsplit.Dataset("data/val"), 2).state_dict()\n'
        'wdsplit.Loader(wdsplit.Dataset("data/train"), 2).load_state_dict(state)',
        "A state belongs to one dataset, seed and view. [Resume](../resume.md) lists what may change.",
    ),
    Case(
        wdsplit.UnsizedError,
        'len(wdsplit.Dataset("data/train"))',
        "`len(loader)` is the number of steps. `dataset.source.num_samples` is the number of samples.",
    ),
    Case(
        wdsplit.PipelineError,
        'list(wdsplit.Loader(wdsplit.Dataset("data/train", shuffle=False).map(lambda sample: None), 2))',
        "A stage gave no sample, or several. Choose samples with a [view](../views.md), or convert with `where=...`.",
    ),
    Case(
        wdsplit.MissingDependencyError,
        'wdsplit.Dataset("s3://bucket/train")',
        "Install the extra that it names.",
    ),
    Case(
        wdsplit.ConvertError,
        'wdsplit.commit_shares("train.plan")',
        "The conversion is not complete. What was written is kept: call `wdsplit.convert_share` for the "
        "missing shares.",
    ),
    Case(
        debug.CheckError,
        "model = torch.nn.Linear(2, 1)\n"
        "model.weight.grad = torch.full((1, 2), torch.nan)\n"
        "debug.check_same_gradients(model)",
        "Ranks differ where they must agree, or a value is not finite. See [Debug a training](../debugging.md).",
    ),
)


@contextmanager
def prepared() -> Iterator[None]:
    """Work in a new folder with what the cases need."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            table = pa.table(
                {"key": ["cat1", "cat2", "dog1", "dog2"], "label": [0, 0, 1, 1], "text": ["a", "b", "c", "d"]}
            )
            pq.write_table(table, "raw.parquet")
            options = wdsplit.ConvertOptions(shards=2, lanes=2, window=4, key="key", jobs=1)
            for name in ("train", "damaged"):
                wdsplit.convert(["raw.parquet"], f"data/{name}", options)
            pq.write_table(table.slice(1), "val.parquet")
            wdsplit.convert(["val.parquet"], "data/val", options)
            os.truncate("data/damaged/000001.tar", 1000)
            wdsplit.plan_shares("raw.parquet", "data/shared", "train.plan", options)
            yield
        finally:
            os.chdir(before)


@contextmanager
def without(module: str) -> Iterator[None]:
    """Let a module be one that is not installed."""
    known = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if known is not None:
            sys.modules[module] = known


def raised(case: Case) -> Exception:
    """Return the error that a case raises."""
    with without("botocore") if case.error is wdsplit.MissingDependencyError else nullcontext():
        try:
            exec(case.code, {"wdsplit": wdsplit, "debug": debug, "torch": torch})
        except case.error as error:
            return error
    raise AssertionError(f"no {case.error.__name__}: {case.code}")


def page() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION]
    with prepared():
        folder = os.getcwd()
        for case in CASES:
            error = raised(case)
            assert type(error) is case.error, error
            bases = ", ".join(f"`{base.__name__}`" for base in case.error.__bases__ if base is not wdsplit.WdsplitError)
            shown = str(error).replace(f"{folder}/", "")
            parts += [
                f"## {case.error.__name__}\n",
                f"{case.error.__doc__} It is also: {bases}.\n",
                f"```python\n{case.code}\n```\n",
                f"```text\n{case.error.__name__}: {shown}\n```\n",
                f"{case.advice}\n",
            ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
