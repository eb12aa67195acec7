"""Both ways through the stages, by columns and sample by sample, told apart by nothing but their speed."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alike import alike
from made_datasets import converted
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.stages.columns import Rename, ToTuple, requested_fields

FIELDS = ["txt", "dat", "cls"]
NAMES = [*FIELDS, "__key__", "__url__", "__position__", "__pad__", "none", "a", "b"]


@pytest.fixture(scope="session")
def ragged(tmp_path_factory):
    """Return a dataset of 31 samples: all have txt, some of them empty; dat and cls are missing here and there."""
    rows = range(31)
    table = pa.table(
        {
            "txt": ["ä" * (row % 4) for row in rows],
            "dat": pa.array([None if row in (3, 20) else bytes(row) for row in rows], pa.binary()),
            "cls": [None if row > 25 else row for row in rows],
        }
    )
    mapping = {"txt": "txt", "dat": "dat", "cls": "cls"}
    return converted(tmp_path_factory.mktemp("ragged"), table, mapping=mapping, shards=3, null="omit", lanes=2)


def unchanged(sample):
    return sample


def outcome(dataset):
    """Return the batches up to an error, and the error's type."""
    batches, error = [], None
    try:
        for batch in Loader(dataset, 4):
            batches.append(batch)
    except (ValueError, RuntimeError, AssertionError) as raised:
        error = type(raised)
    return batches, error


def staged(path, stages):
    dataset = Dataset(path, rank=0, world_size=1)
    for stage in stages:
        dataset = dataset.rename(**stage) if isinstance(stage, dict) else dataset.to_tuple(*stage)
    return dataset


renames = st.dictionaries(st.sampled_from(["a", "b", "txt", "dat", "__key__"]), st.sampled_from(NAMES), max_size=3)
tuples = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4)


@given(st.lists(renames, max_size=3), tuples | st.none())
def test_columns_give_the_batches_and_errors_that_samples_one_by_one_give(ragged, renames, names):
    stages = [*renames, *([] if names is None else [names])]
    dataset = staged(ragged, stages)
    assert dataset.column_stages() is not None
    assert dataset.map(unchanged).column_stages() is None
    assert alike(outcome(dataset), outcome(dataset.map(unchanged)))


def test_a_missing_field_names_a_sample_that_lacks_it(ragged):
    lacking = {sample["__key__"] for sample in Dataset(ragged) if "dat" not in sample}
    with pytest.raises(ValueError, match="dat") as caught:
        list(Loader(staged(ragged, [["dat"]]), 4))
    assert any(f"sample '{key}' of" in note for key in lacking for note in caught.value.__notes__)
    assert any("wdsplit inspect" in note for note in caught.value.__notes__)


def test_only_columns_that_are_wanted_are_read():
    assert requested_fields([]) is None
    assert requested_fields([ToTuple(("a", "b"))]) == ("a", "b")
    assert requested_fields([Rename({"a": "b"}), ToTuple(("a",))]) is None
