"""`--view` and `--where` of the commands that take a dataset, and the Python functions behind them."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

import wdsplit
from commands import run
from made_datasets import converted
from made_views import store_view, view_of
from report_datasets import facts_of
from wdsplit.errors import InputError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.mix import mix

NUM_ROWS = 240
CATS = [row for row in range(NUM_ROWS) if row % 4 == 1]
LATE = list(range(200, NUM_ROWS))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a dataset of 240 rows of 4 classes in 8 shards of 30, with a view "cats" of class 1, one "late"."""
    table = pa.table(
        {
            "cls": [row % 4 for row in range(NUM_ROWS)],
            "score": [row / NUM_ROWS for row in range(NUM_ROWS)],
            "txt": [f"row {row}" for row in range(NUM_ROWS)],
        }
    )
    path = converted(tmp_path_factory.mktemp("viewed"), table, shards=8, pad="none", lanes=4, window=5)
    store_view(path, "cats", CATS)
    store_view(path, "late", LATE)
    return path


COMMANDS = [
    ("audit", "--world-size", 2, "--batch-size", 6),
    ("audit", "--world-size", 2, "--workers", 1, "--batch-size", 6, "--read"),
    ("inspect",),
    ("assign", "--world-size", 2),
    ("bench", "--batch-size", 6),
    ("verify",),
    ("report", "-o", "page.html"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command)))
def test_every_command_takes_a_view_and_a_condition_and_refuses_wrong_ones(path, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    name, *others = command
    code, out, err = run(name, path, *others, "--view", "cats", "--where", "score >= 0.5")
    assert code == 0, err
    assert "FAILED" not in out
    assert "30 samples" in out or name in ("assign", "verify") or "30 of 30 keys read" in out
    for wrong, said in ((("--view", "cast"), "did you mean 'cats'?"), (("--where", "scor > 1"), "score")):
        code, _, err = run(name, path, *others, *wrong)
        assert code == 2
        assert said in err and "Traceback" not in err


def test_inspect_counts_what_is_in_the_view(path):
    shown = run("bench", path, "--batch-size", 10, "--view", "cats", "--json").json
    assert (shown["samples"], shown["view"]) == (60, "cats")
    _, out, _ = run("inspect", path, "--view", "cats", "--samples", 2)
    assert f"{path}: view cats: 60 of 240 samples" in out
    assert "exact: all 60 samples" in out
    assert "row 1\n" in out and "row 5\n" in out and "row 2\n" not in out
    found = wdsplit.inspect(path, view="cats", where="score >= 0.5")
    assert (found.num_samples, found.manifest.num_samples, found.view) == (30, 240, "cats and score >= 0.5")
    assert found.contents.num_read == 30
    (cls,) = [field for field in found.contents.fields if field.name == "cls"]
    assert cls.classes == {"1": 30}
    assert [sample["txt"] for sample in found.first_samples] == [b"row 121", b"row 125", b"row 129"]
    code, _, err = run("inspect", path, "--view", "cats", "--sample", 3)
    assert code == 2 and "--view: not allowed with --sample" in err
    shown = run("inspect", path, "--view", "cats", "--json").json
    assert {"view": "cats", "stored": 240, "samples": 60}.items() <= shown.items()


def test_assign_says_who_reads_the_view(path):
    found = wdsplit.assign(path, 2, 2, batch_size=5, view="late")
    assert {shard for reader in found.readers for shard in reader.shards} == {6, 7}
    assert sum(reader.samples for reader in found.readers) == 40 + found.pads
    by_epoch = {0: "late", 3: None}
    assert wdsplit.assign(path, epoch=2, view=by_epoch) == wdsplit.assign(path, epoch=2, view="late")
    assert wdsplit.assign(path, epoch=3, view=by_epoch) == wdsplit.assign(path, epoch=3)


def test_an_audit_of_a_view_is_of_its_samples_in_each_epoch(path):
    options = wdsplit.AuditOptions(2, 1, 6, epochs=2, view={0: "cats", 1: "late"}, read=True)
    report = wdsplit.audit(path, options)
    assert report.held
    once = [finding.evidence for finding in report.findings if finding.promise == "exactly once"]
    assert [text.split(":")[0] for text in once] == ["60 samples", "40 samples"]
    read = [finding.evidence for finding in report.findings if finding.promise == "exactly once, read"]
    assert [text.split(" keys")[0] for text in read] == ["60 of 60", "40 of 40"]
    given = wdsplit.audit(path, replace(options, view=view_of(path, range(7)), epochs=1))
    assert given.held


def test_verify_checks_only_the_shards_that_the_view_reads(path, tmp_path):
    report = wdsplit.verify(path, view="late")
    assert (report.num_shards, report.num_samples, report.problems) == (2, 60, ())
    assert repr(report) == "<Report: ✓ ok: 2 shards, 60 samples>"
    _, out, _ = run("verify", path, "--view", "late")
    assert "ok: 2 shards of the view, of 8 shards, 240 samples" in out
    damaged = shutil.copytree(path, tmp_path / "damaged")
    (damaged / "000002.tar").write_bytes(b"")
    assert wdsplit.verify(str(damaged)).problems
    assert not wdsplit.verify(str(damaged), view="late").problems
    assert wdsplit.verify(str(damaged), where="score < 0.3").problems


def test_a_report_is_one_of_the_view_and_says_so(path, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = run("report", path, "-o", page, "--view", "cats")
    assert code == 0
    assert "60 samples in the view, of 240 samples" in out
    assert "view cats" in page.read_text()
    facts = facts_of(path, view="cats", where="score >= 0.5", samples=200)
    assert facts.name == f"{path}, view cats and score >= 0.5"
    assert facts.num_samples == facts.num_scanned == 30
    texts = {item.text for card in facts.cards for item in card.items if item.field == "txt"}
    assert texts == {f"row {row}" for row in CATS if row >= 120}


def test_a_report_of_an_open_dataset_or_a_mixture_has_its_views(path, tmp_path):
    dataset = Dataset(path, rank=0, world_size=1, view={0: "late", 1: None})
    other = converted(tmp_path, pa.table({"cls": [7] * 20, "txt": ["other"] * 20}), shards=2, lanes=2)
    mixture = mix(repeat={path: 1, other: 1}, view={path: "cats"}, rank=0, world_size=1)
    for source, name, expected in (
        (dataset, f"{path}, view late", {str(each): 10 for each in range(4)}),
        (mixture, f"{path}: cats", {"1": 60, "7": 20}),
    ):
        facts = facts_of(source)
        assert dict(zip(facts.labels.names, facts.labels.counts.tolist(), strict=True)) == expected
        assert (facts.num_samples, name in facts.name) == (sum(expected.values()), True)
    with pytest.raises(InputError, match="an open dataset cannot be changed"):
        wdsplit.report(dataset, options=wdsplit.ReportOptions(view="cats"))
    preview = dataset.preview(200)
    assert len(preview.cards) == 40 and "view late" in repr(preview)
    facts = facts_of(path, view="late", max_read=30_000)
    assert 0 < facts.num_scanned < facts.num_samples == 40
    assert {row >= 200 for row in map(int, facts.keys.values())} <= {True}
