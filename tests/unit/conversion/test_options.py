import dataclasses

import pytest

from wdsplit.conversion.plan.options import ConvertOptions, IndexOptions, PlanOptions, attribute_texts
from wdsplit.errors import InputError


@pytest.mark.parametrize("options", [ConvertOptions, IndexOptions])
def test_each_option_has_a_text_that_ends_with_a_full_stop(options):
    texts = attribute_texts(options)
    assert list(texts) == [one.name for one in dataclasses.fields(options)]
    assert [text for text in texts.values() if not text.endswith(".")] == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"overwrite": True, "resume": True}, "overwrite and resume contradict each other"),
        ({"key": "id", "number_keys": True}, "key and number_keys contradict each other"),
        ({"shards": 4, "samples_per_shard": 4}, "shards and samples_per_shard contradict each other"),
        ({"samples_per_shard": 4, "shard_size": 10}, "samples_per_shard and shard_size contradict each other"),
        ({"jobs": 0}, "jobs = 0: expected at least 1"),
        ({"jobs": None}, "jobs = None: expected an integer"),
        ({"limit": 0}, "limit = 0"),
        ({"columns": "label"}, "columns = 'label': expected a sequence of names"),
        ({"split_by": "user"}, "split_by needs splits"),
        ({"splits": {"a/b": 1.0}}, "split 'a/b'"),
        ({"splits": {"Val": 0.2, "train": 0.6, "val": 0.2}}, "splits 'Val' and 'val' differ only in case"),
    ],
)
def test_options_that_contradict_or_exceed_their_bounds_are_refused(changes, found):
    with pytest.raises(InputError, match="invalid options") as caught:
        ConvertOptions(**changes)
    assert found in caught.value.found


def test_all_problems_are_reported_together():
    with pytest.raises(InputError, match="invalid options") as caught:
        PlanOptions(
            world_size=0, workers=-1, shards=0, shard_size=5, lanes=10**30, window=-3, seed="1", pad="x", null="y"
        )
    assert caught.value.found.split("; ") == [
        "world_size = 0: expected at least 1",
        "workers = -1: expected at least 0",
        "shards = 0: expected at least 1",
        "lanes = 1000000000000000000000000000000: expected at most 1048576",
        "window = -3: expected at least 1",
        "pad = 'x': expected one of repeat, drop, none",
        "null = 'y': expected one of error, omit, empty",
        "seed = '1': expected an integer",
        "shards and shard_size contradict each other: give one",
    ]
