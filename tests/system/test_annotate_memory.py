import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import wdsplit
from made_datasets import keys_dataset
from tables import start_script
from wdsplit.shards.annotations import read_annotation
from wdsplit.shards.files import read_manifest
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.local import LocalStorage

NUM_ROWS, SHARDS = 2_000_000, 40
MEMORY = 512 * 1024**2

ANNOTATE = """
import json, re, sys
from pathlib import Path
import pyarrow.dataset
import wdsplit

def peak_bytes():
    return 1024 * int(re.search(r"VmHWM: *\\t* *(\\d+) kB", Path("/proc/self/status").read_text())[1])

data, scores, memory = sys.argv[1], sys.argv[2], int(sys.argv[3])
wdsplit.annotate, wdsplit.AnnotateOptions
options = wdsplit.AnnotateOptions(memory=memory, jobs=2)
made = wdsplit.annotate(data, scores, "key", "scores", options)
print(json.dumps([peak_bytes(), made.num_missing]))
"""


def keys_of(numbers):
    return pc.binary_join_element_wise("sample", pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0"), "-")


def test_two_million_rows_are_joined_in_the_memory_that_is_given(tmp_path):
    """Rows and keys have 600 MB, which are sorted, joined and put into another order."""
    chance = np.random.default_rng(0)
    order = chance.permutation(NUM_ROWS)
    keys_dataset(tmp_path / "data", keys_of(chance.permutation(NUM_ROWS)), SHARDS)
    texts = pc.utf8_lpad(pa.array(order).cast(pa.string()), 200, "x")
    table = pa.table({"key": keys_of(order), "score": order / 7, "text": texts})
    path = tmp_path / "scores.parquet"
    pq.write_table(table, path, row_group_size=20_000, use_dictionary=False)
    del table, texts
    process = start_script(ANNOTATE, str(tmp_path / "data"), str(path), str(MEMORY))
    output, said = process.communicate()
    assert process.returncode == 0, said
    peak, num_missing = json.loads(output)
    assert num_missing == 0
    assert peak < MEMORY
    check_rows(tmp_path / "data", [0, SHARDS - 1])


def check_rows(data, numbers):
    storage, annotation = LocalStorage(str(data)), wdsplit.list_annotations(data)["scores"]
    shards = read_manifest(storage).shards
    for number in numbers:
        keys = read_samples(storage, shards[number], ["__key__"]).column(0).to_pylist()
        expected = [int(re.sub(r"\D", "", key)) for key in keys]
        found = read_annotation(storage, annotation, shards[number])
        assert found.column("score").to_pylist() == [number / 7 for number in expected]
        assert [int(text.lstrip("x")) for text in found.column("text").to_pylist()] == expected
