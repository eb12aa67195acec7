"""Each piece of advice has its condition."""

import pytest

from wdsplit import resized
from wdsplit.debug.diagnosis import advice_for
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

BUSY = "4 workers keep all 4 processors busy"


@pytest.mark.parametrize(
    ("decoding", "options", "restart_share", "texts"),
    [
        ((), {"num_workers": 4}, 0.0, [BUSY]),
        ((), {}, 0.9, ["more workers (now num_workers=0): this machine has 4 processors"]),
        ((), {"num_workers": 4}, 0.9, ["(persistent_workers=True)", BUSY]),
        ((), {"num_workers": 4, "persistent_workers": True}, 0.9, [BUSY]),
        (("pil",), {"num_workers": 4}, 0.0, [BUSY, "resized(224)"]),
        ((resized(8),), {"num_workers": 4}, 0.0, [BUSY]),
    ],
)
def test_each_piece_of_advice_has_its_condition(numbers, decoding, options, restart_share, texts):
    dataset = Dataset(numbers)
    loader = Loader(dataset.decode(*decoding) if decoding else dataset, 12, **options)
    advice = list(advice_for(loader, restart_share, 4))
    assert len(advice) == len(texts)
    assert [text for text, each in zip(texts, advice, strict=True) if text not in each] == []


def test_own_stages_in_threads_are_advised_to_go_to_processes(numbers):
    loader = Loader(Dataset(numbers).map(lambda sample: sample), 12, num_workers=4, workers="thread")
    assert [each for each in advice_for(loader, 0.0, 4) if "workers='process'" in each]


def test_shards_far_away_are_advised_to_be_kept_near(numbers, monkeypatch):
    loader = Loader(Dataset(numbers), 12, num_workers=4)
    monkeypatch.setattr(type(loader.dataset.source.storage()), "has_latency", True)
    [_, advice] = advice_for(loader, 0.0, 4)
    assert "read_ahead_bytes (now its default) and connections (now 64)" in advice
