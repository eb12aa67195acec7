"""How objects show themselves: one line of text, and a table of HTML in which nothing of a dataset is markup."""

from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wdsplit
from made_datasets import numbers_dataset
from report_datasets import MARKUP, hostile
from wdsplit.checks.verify import Report
from wdsplit.errors import CorruptDataError, PipelineError
from wdsplit.notebook import STYLE, html_table

HARMLESS = {"div", "style", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
OF_CARDS = {"ul", "li", "dl", "dt", "dd", "small", "span", "audio", "img"}


class Elements(HTMLParser):
    """The elements of a page, their attributes and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def shown(value):
    """Return what a notebook shows, having checked that it can do no harm."""
    page = Elements(value._repr_html_())
    assert page.tags <= HARMLESS | OF_CARDS
    assert not [name for name in page.attributes if name.startswith("on") or name == "href"]
    return page.text


@pytest.fixture(scope="module")
def hostile_dataset(tmp_path_factory):
    return hostile(tmp_path_factory.mktemp("hostile") / MARKUP[2].replace("/", ""), 80)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return numbers_dataset(tmp_path_factory.mktemp("numbers"), 100)


def test_a_table_escapes_all_texts_shortens_them_and_keeps_its_style_under_that_of_jupyter():
    page = html_table("<b>", [("<i>", 12345), ("long", "x" * 1000), ("turned", "\u202e\x1b")], ("&", "'"))
    assert page.count("<b>") == page.count("<i>") == 0
    text = Elements(page).text
    assert "12,345" in text and "x" * 299 + "…" in text and "\\u202e\\u001b" in text
    assert "150 more rows are left out" in html_table("many", ((row, row) for row in range(200)))
    assert all(line.startswith(".wdsplit:not(#_) ") for line in STYLE.splitlines()[1:-1])


def test_nothing_of_a_hostile_dataset_is_markup(hostile_dataset):
    dataset = wdsplit.Dataset(hostile_dataset)
    assert MARKUP[0] in shown(dataset.manifest)
    preview = shown(dataset.preview(8))
    assert MARKUP[0] in preview
    assert "\u202e" not in preview
    for value in (dataset, wdsplit.Loader(dataset, 4), wdsplit.mix({hostile_dataset: 1}), wdsplit.report(dataset)):
        assert "<img src=x" in shown(value)


def test_a_hostile_plan_and_damage_are_shown_as_text(tmp_path, hostile_dataset):
    pq.write_table(pa.table({"<script>": ["a"]}), tmp_path / "in.parquet")
    plan = wdsplit.plan(str(tmp_path / "in.parquet"), wdsplit.ConvertOptions(mapping={"txt": "<script>"}))
    assert "<script>" in shown(plan)
    manifest = wdsplit.Dataset(hostile_dataset).manifest
    problem = CorruptDataError("wrong", place=MARKUP[0], expected="1", found="2")
    damaged = Report(manifest, (problem,), len(manifest.shards), manifest.num_samples)
    assert MARKUP[0] in shown(damaged)
    assert repr(damaged) == "<Report: ✗ 1 problem: 16 shards, 80 samples>"


def test_reprs_are_a_line(numbers, tmp_path):
    dataset = wdsplit.Dataset(numbers)
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "in.parquet")
    plan = wdsplit.plan(str(tmp_path / "in.parquet"), wdsplit.ConvertOptions(shards=3))
    found = [*map(repr, (dataset, plan, wdsplit.audit(numbers), wdsplit.verify(numbers), dataset.manifest))]
    assert not [line for line in found if "\n" in line or len(line) > 250]
    assert found[1].startswith("<Plan: 10 rows -> 3 shards of up to 4 samples")
    assert found[2].startswith("<AuditReport: all checks passed; ")
    assert found[3].startswith("<Report: ✓ ok: ")


def test_lists_of_what_is_stored_are_a_line_each_and_an_assignment_is_a_table(numbers):
    assert repr(wdsplit.list_versions(numbers)).startswith("(<Version 1: 100 samples in 16 shards, ")
    assert repr(wdsplit.EpochShardList(numbers)) == "<EpochShardList: 16 shards, seed 0, epoch 0>"
    text = shown(wdsplit.assign(numbers, 2, 2))
    assert "rankworkersamplesshards00" in text


def test_an_annotation_shows_its_columns_and_neither_its_folder_nor_its_inputs(tmp_path):
    dataset = numbers_dataset(tmp_path, 100)
    made = wdsplit.annotate(dataset, pa.table({"key": range(100), "<b>": range(100)}), key="key", name="scores")
    assert repr(made) == "<Annotation 'scores': <b>; rows for 100 of 100 samples>"
    text = shown(made)
    assert "<b> (int64)" in text and "for 100 of 100 samples" in text
    assert made.folder not in text


def test_a_loader_says_where_it_is_and_a_mixture_what_it_takes_of_each(numbers, hostile_dataset):
    loader = wdsplit.Loader(wdsplit.Dataset(numbers, rank=1, world_size=2), 10)
    batches = iter(loader)
    next(batches)
    for part in ("step 1 of 5, epoch 0", "1 of 2", "20 in all"):
        assert part in shown(loader)
    text = shown(wdsplit.mix({numbers: 30, hostile_dataset: 50}, num_samples=80))
    assert "30 an epoch, of 100" in text and "50 an epoch, of 80" in text


def test_what_inspect_returns_prints_neither_payloads_nor_encoded_types(numbers):
    found = wdsplit.inspect(numbers)
    assert repr(found) == "<Inspection: 100 samples in 16 shards; 0 views, 0 annotations>"
    assert "Datasetsamples100shards16, " in shown(found) and "clscls" in shown(found)


def test_an_error_of_a_batch_shows_no_frames_of_the_worker(numbers):
    dataset = wdsplit.Dataset(numbers).map(lambda sample: {"x": np.zeros(1 + sample["__position__"] % 2)})
    with pytest.raises(PipelineError, match="cannot be stacked") as caught:
        list(wdsplit.Loader(dataset, 10))
    assert len(caught.traceback) <= 4
