"""What a start loads: each of these libraries takes as long as all that the start is for."""

import shutil
import sys

import numpy as np
import pytest

from loaded import loaded_after
from tables import outputs_of, start_process, write_table
from wdsplit.order.selection import Selection
from wdsplit.shards.files import read_manifest
from wdsplit.shards.views import write_view
from wdsplit.storage.local import LocalStorage

FIRST_BATCH = """
import torch
from wdsplit import Dataset, Loader
batches = iter(Loader(Dataset({path!r}, view={view!r}){stages}, batch_size=4))
next(batches)
"""
PROGRAM = """
sys.argv = ["wdsplit", *{arguments}]
from wdsplit.cli.__main__ import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
WORKERS = """
import sys
import pyarrow as pa
from wdsplit.engines.local import LocalEngine

def loads_pandas(number):
    pa.array([number])
    return "pandas" in sys.modules

if __name__ == "__main__":
    print(*LocalEngine(2).map(loads_pandas, [1, 2]))
"""
UNUSED = {"pandas", "fsspec", "botocore", "sqlite3", "rich", "wdsplit.storage.s3", "wdsplit.storage.fsspec_storage"}
UNUSED_IN_A_BATCH = UNUSED | {
    *("webdataset", "yaml", "pyarrow.compute", "pyarrow.dataset", "concurrent.futures.process"),
    *("wdsplit.conditions.parse", "wdsplit.indexing.tars", "wdsplit.views.choosing", "wdsplit.loading.reading.cache"),
}


@pytest.mark.slow
def test_the_first_batch_of_a_local_dataset_loads_only_what_it_needs_and_decoding_no_pandas(numbers, tmp_path):
    folder = shutil.copytree(numbers, tmp_path / "viewed")
    storage = LocalStorage(str(folder))
    manifest = read_manifest(storage)
    half = Selection.of_masks([np.arange(count) % 2 == 0 for count in manifest.shards.num_real])
    write_view(storage, manifest, "half", half, {})
    tuples = ".rename(label='cls').to_tuple('label')"
    cases = (None, tuples), ("half", tuples), (None, ".decode()")
    loaded, viewed, decoded = loaded_after(
        *(FIRST_BATCH.format(path=str(folder), view=view, stages=stages) for view, stages in cases)
    )
    assert "pyarrow.parquet" in loaded
    assert not (loaded | viewed) & UNUSED_IN_A_BATCH
    assert "webdataset" in decoded
    assert not decoded & {"pandas", "pyarrow.compute"}


def test_the_program_reads_and_converts_without_libraries_that_it_does_not_need(numbers, tmp_path):
    path = write_table(tmp_path / "rows.parquet", {"text": ["a", None, "c"], "label": [1, 2, 3]})
    convert = ["convert", path, str(tmp_path / "out"), "--jobs", "2", "--null", "empty"]
    commands = ["inspect", numbers], ["verify", numbers], convert
    loaded = loaded_after(*(PROGRAM.format(arguments=command) for command in commands))[-1]  # in one process
    assert (tmp_path / "out" / "wdsplit.json").exists()
    assert "pyarrow.compute" in loaded
    assert not loaded & (UNUSED | {"torch", "webdataset", "yaml", "concurrent.futures.process"})


def test_worker_processes_load_no_pandas(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WORKERS, "utf-8")
    assert outputs_of([start_process([sys.executable, script])]) == ["False False\n"]
