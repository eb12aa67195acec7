"""`Dataset.preview`: samples of a folder, of tars and of a mixture, with and without the libraries of the report."""

from pathlib import Path

import pytest

import wdsplit
from made_datasets import numbers_dataset
from report_datasets import images, without_libraries
from wdsplit.errors import InputError
from wdsplit.loading.stages.image_files import imported


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"), 300, shuffle=True)


def test_a_preview_shows_seeded_samples_as_they_are_stored(pictures):
    dataset = wdsplit.Dataset(pictures).decode("pil").to_tuple("jpg", "cls")
    found = dataset.preview(5)
    assert repr(found) == repr(wdsplit.Dataset(pictures).preview(5)) != repr(dataset.preview(5, seed=1))
    names = dataset.manifest.class_names["cls"]
    for card in found.cards:
        sample = dataset.sample(card.key)
        assert card.label == names[int(sample["cls"])]
        assert f"24 x 16 JPEG, {len(sample['jpg'])} B" in card.items[0].text
        assert f"{card.key}  {card.label}  jpg: {card.items[0].text}" in repr(found).splitlines()
    assert found._repr_html_().count("data:image/jpeg;base64,") == 5


def test_tars_and_mixtures_have_previews(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tars = sorted(map(str, Path(pictures).glob("*.tar")))
    assert len(wdsplit.Dataset(tars).preview(4).cards) == 4
    numbers = numbers_dataset(tmp_path, 300)
    mixed = wdsplit.mix({pictures: 1, numbers: 1}).preview(6)
    assert {item.field for card in mixed.cards for item in card.items} == {"jpg", "txt"}


def test_without_the_libraries_of_the_report_there_are_lines(pictures):
    dataset = wdsplit.Dataset(pictures)
    with without_libraries("PIL", "jinja2", "vl_convert"):
        imported.cache_clear()
        found = dataset.preview(3)
        assert found._repr_html_() is None
    assert repr(found).count("to see it: pip install 'wdsplit[report]'") == 3


def test_a_number_that_cannot_be_meant_is_refused(pictures):
    for n in (-1, 201, 1.5, True, "3"):
        with pytest.raises(InputError, match="invalid number of samples"):
            wdsplit.Dataset(pictures).preview(n)
    assert wdsplit.Dataset(pictures).preview(0).cards == ()
