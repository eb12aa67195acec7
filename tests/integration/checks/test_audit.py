import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import wdsplit.checks.audit
import wdsplit.checks.classes
import wdsplit.loading.loader
from commands import done, run
from made_datasets import converted, numbers_dataset
from made_views import Rows, store_view
from wdsplit.checks.audit import AuditOptions, audit
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.loading.loader import Loader
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps, worker_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

PROMISES = ["equal steps", "same batches", "exactly once", "resume"]
READ_PROMISES = ["same batches, read", "exactly once, read", "resume, read"]

TWO_RANKS = AuditOptions(world_size=2, num_workers=2, batch_size=5)
TWO_READING_RANKS = AuditOptions(world_size=2, batch_size=5, read=True)

TOPOLOGIES = [(1, 0, 1), (1, 3, 7), (2, 2, 5), (4, 1, 8), (5, 3, 3)]
"""World size, workers and batch size: those that divide 4 and 12 lanes, and those that do not."""


def findings(path, options=TWO_RANKS):
    """Return what an audit finds of the promises; how well batches are mixed is none."""
    return [finding for finding in audit(path, options).findings if finding.figure is None]


def promises(found):
    return [finding.promise for finding in found]


def broken(path, options=TWO_RANKS):
    """Return the promises that an audit finds broken."""
    return promises(finding for finding in findings(path, options) if not finding.held)


def numbers_in(text):
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


# All is well


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize(("dataset", "shuffle"), [("numbers", True), ("whole_lanes", True), ("numbers", False)])
def test_all_promises_hold_for_topologies(request, dataset, tail, shuffle):
    """With an uneven tail it is only that each sample comes once."""
    path, promised = request.getfixturevalue(dataset), ["exactly once"] if tail == "uneven" else PROMISES
    for topology in TOPOLOGIES:
        found = findings(path, AuditOptions(*topology, epochs=2, seed=3, shuffle=shuffle, tail=tail))
        expected = [(epoch, promise, True) for epoch in (0, 1) for promise in promised]
        assert [(each.epoch, each.promise, each.held) for each in found] == expected, topology


@pytest.mark.parametrize(
    ("dataset", "num_workers", "tail", "shuffle"), [("numbers", 2, "pad", True), ("whole_lanes", 0, "drop", False)]
)
def test_what_the_loaders_read_keeps_the_promises(request, dataset, tail, shuffle, num_workers, caplog):
    options = AuditOptions(2, num_workers, 5, shuffle=shuffle, tail=tail, read=True)
    found = findings(request.getfixturevalue(dataset), options)
    assert promises(found) == PROMISES + READ_PROMISES
    assert [finding for finding in found if not finding.held] == []
    assert "3 ranks" not in caplog.text, "advice is about the numbers of the user"


def test_the_evidence_has_the_right_figures(numbers):
    evidence = {finding.promise: finding.evidence for finding in findings(numbers, TWO_READING_RANKS)}
    assert numbers_in(evidence["equal steps"]) == [11]
    assert numbers_in(evidence["same batches"])[0] == 110
    assert numbers_in(evidence["exactly once"]) == [101, 101, 0, 0, 9]
    assert evidence["resume"].startswith("stopped after 1, 5, 10 steps, resumed on 3 ranks")
    assert numbers_in(evidence["same batches, read"])[0] == 110
    assert numbers_in(evidence["exactly once, read"]) == [101, 101, 9]
    assert evidence["resume, read"].startswith("stopped after 5 of 11 steps, resumed on 3 ranks")


def test_a_dataset_of_one_step_can_be_audited_and_a_damaged_shard_is_an_error_when_it_is_read(tmp_path):
    path = numbers_dataset(tmp_path, 3, shards=2)
    assert broken(path, AuditOptions(2, 0, 64, read=True)) == []
    (Path(path) / "000001.tar").write_bytes(b"")
    with pytest.raises(CorruptDataError, match=r"000001\.tar"):
        findings(path, TWO_READING_RANKS)


def test_options_that_cannot_be_are_refused_by_name():
    wrong = {"world_size": (0, 2**20 + 1), "num_workers": (-1, 2**20 + 1), "batch_size": (0, 2**26 + 1), "epochs": (0,)}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(InputError, match=name):
            AuditOptions(**{name: value})


def next_worker(positions, world_size, num_workers):
    """Name the next worker."""
    return (worker_of(positions, world_size, num_workers) + 1) % num_workers


def repeating(order, located, positions):
    """Give position 1 the sample of position 0."""
    first = order.original(np.zeros(1, np.int64))
    swapped = positions == 1
    return replace(
        located,
        shard=np.where(swapped, first.shard, located.shard),
        sample=np.where(swapped, first.sample, located.sample),
    )


def hiding(order, located, positions):
    """Call a sample a pad that is none."""
    return replace(located, pad=located.pad | (positions == 1))


def unflagged(order, located, positions):
    """Call no pad a pad."""
    return replace(located, pad=np.zeros_like(located.pad))


@pytest.mark.parametrize("is_drawn", [False, True])
@pytest.mark.parametrize("wrong", [repeating, hiding, unflagged], ids=lambda wrong: wrong.__name__)
def test_an_order_that_does_not_give_each_sample_once_is_found(request, numbers, monkeypatch, wrong, is_drawn):
    if is_drawn:
        request.getfixturevalue("drawn")
    locate = EpochOrder.locate
    monkeypatch.setattr(EpochOrder, "original", locate, raising=False)
    monkeypatch.setattr(EpochOrder, "locate", lambda order, at: wrong(order, locate(order, at), at))
    assert broken(numbers) == ["exactly once"]
    if wrong is repeating:
        assert broken(numbers, replace(TWO_RANKS, tail="uneven")) == ["exactly once"]
        assert broken(numbers, replace(TWO_RANKS, tail="drop")) == ["exactly once"]


# A very large epoch


@pytest.fixture
def drawn(monkeypatch):
    """Take an epoch of more than 50 positions for a very large one."""
    monkeypatch.setattr(wdsplit.checks.audit, "_MAX_POSITIONS", 50)


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
def test_of_a_very_large_epoch_some_positions_are_drawn(numbers, whole_lanes, drawn, tail):
    for path, topology in ((numbers, (1, 0, 1)), (numbers, (5, 3, 3)), (whole_lanes, (3, 2, 4))):
        found = findings(path, AuditOptions(*topology, tail=tail))
        assert promises(found) == (["exactly once"] if tail == "uneven" else PROMISES)
        assert [finding for finding in found if not finding.held] == []
        assert all("drawn" in finding.evidence for finding in found if finding.promise != "equal steps")


def test_few_packs_of_many_samples_are_a_very_large_epoch(numbers, drawn, tmp_path):
    path = str(shutil.copytree(numbers, tmp_path / "packed"))
    store_view(path, "packs", Rows(range(101), form="packs"))
    found = findings(path, replace(TWO_RANKS, view="packs"))
    assert [(finding.promise, finding.held) for finding in found] == [(promise, True) for promise in PROMISES]
    assert re.search("drawn of [1-4][0-9]:", found[2].evidence)


def test_a_sample_of_a_very_large_epoch_that_comes_twice_or_never_is_found(numbers, drawn, monkeypatch):
    """Positions 2 and 3 have the same sample, so that another one has no position."""
    visits = EpochOrder.visits
    monkeypatch.setattr(EpochOrder, "visits", lambda order, at: visits(order, np.where(at == 3, 2, at)))
    (finding,) = (each for each in findings(numbers) if not each.held)
    assert finding.promise == "exactly once"
    assert numbers_in(finding.evidence) == [101, 101, 1, 101, 1]


def test_wrong_steps_of_a_very_large_epoch_are_found(numbers, drawn, monkeypatch):
    monkeypatch.setattr(wdsplit.checks.audit, "Steps", lying_steps("ranks that read the same"))
    assert {"same batches", "resume"} <= set(broken(numbers))


# The audit can fail: each kind of lie, of the positions and of what loaders read


LIES = {
    "position - 5": lambda position: position - 5,
    "nothing after a resume": lambda steps, is_resumed: [] if is_resumed else steps,
    "a dropped batch": lambda steps, is_resumed: steps[:1] + steps[2:],
    "a dropped batch after a resume": lambda steps, is_resumed: steps[1:] if is_resumed else steps,
    "a repeated sample": None,
    "a swapped worker": None,
}
STEP_LIES = {
    "ranks that read the same": {"same batches", "exactly once", "resume"},
    "ranks with unequal steps": set(PROMISES),
    "steps in reverse": {"same batches"},
}
"""What only steps can lie about, and the promises that it breaks."""
LOADER_LIES = {"a renamed sample": {"same batches, read"}, "hidden pads": {"exactly once, read"}}
"""What only loaders can lie about, and promises that it breaks."""


def lying_steps(lie):
    class LyingSteps(Steps):
        def __len__(self):
            return super().__len__() + (lie == "ranks with unequal steps" and self.world.rank == 1)

        def __iter__(self):
            if lie == "ranks that read the same":
                return iter(Steps(self.order, replace(self.world, rank=0), self.batch_size, self.start))
            steps = list(super().__iter__())
            if lie.startswith("position"):
                steps = [replace(step, end=LIES[lie](step.end)) for step in steps]
            elif lie == "steps in reverse" and self.world.world_size > 1:
                steps = [replace(step, positions=step.positions[::-1]) for step in steps]
            elif lie == "a repeated sample" and steps and self.world.rank == self.world.world_size - 1:
                step = steps[0]
                steps[0] = replace(step, positions=np.array([*step.positions[:1], *step.positions[:-1]]))
            elif LIES.get(lie):
                steps = LIES[lie](steps, self.start > 0)
            return iter(steps)

    return LyingSteps


def lying_loader(lie):
    class LyingLoader(Loader):
        is_resumed = False

        def load_state_dict(self, state_dict):
            self.is_resumed = True
            super().load_state_dict(state_dict)

        def state_dict(self):
            state = super().state_dict()
            return {**state, "position": LIES[lie](state["position"])} if lie.startswith("position") else state

        def __iter__(self):
            if rows := {"a repeated sample": [0, 0], "a swapped worker": [1, 0]}.get(lie):
                for columns in super().__iter__():
                    rows = [*rows[:2], *range(2, len(columns[2]))]
                    yield columns[0][rows], columns[1][rows], [columns[2][row] for row in rows]
            elif lie in LOADER_LIES:
                for positions, pads, keys in super().__iter__():
                    is_renamed = lie == "a renamed sample" and self.dataset.world().rank
                    yield positions, pads & (lie != "hidden pads"), ["another", *keys[1:]] if is_renamed else keys
            elif LIES[lie] and not lie.startswith("position"):
                yield from LIES[lie](list(super().__iter__()), self.is_resumed)
            else:
                yield from super().__iter__()

    return LyingLoader


@pytest.mark.parametrize("read", [False, True], ids=["positions", "read"])
@pytest.mark.parametrize("lie", LIES)
def test_each_kind_of_lie_is_noticed(numbers, monkeypatch, lie, read):
    number = list(LIES).index(lie)
    tail = "drop" if number % 2 != read or "resume" in lie else "pad"
    options = AuditOptions(2, 0 if read else 2, 5, tail=tail, read=read)
    if read:
        monkeypatch.setattr(wdsplit.loading.loader, "Loader", lying_loader(lie))
    else:
        monkeypatch.setattr(wdsplit.checks.audit, "Steps", lying_steps(lie))
    if lie == "a swapped worker" and not read:
        monkeypatch.setattr(wdsplit.checks.audit, "worker_of", next_worker)
    found = broken(numbers, options)
    assert found and {promise.endswith(", read") for promise in found} == {read}


@pytest.mark.parametrize(("lie", "expected"), STEP_LIES.items())
def test_steps_that_break_a_promise_are_found_by_its_name_and_the_command_fails(numbers, monkeypatch, lie, expected):
    monkeypatch.setattr(wdsplit.checks.audit, "Steps", lying_steps(lie))
    assert set(broken(numbers)) == expected
    ended = run("audit", numbers, "--world-size", 2, "--workers", 2, "--batch-size", 5)
    assert ended.code == 1
    failed = [line for line in ended.out.splitlines() if "FAILED" in line]
    assert {promise for promise in expected for line in failed if f"  {promise}  " in line} == expected


def test_a_loader_that_breaks_a_promise_is_found_by_its_name(numbers, monkeypatch):
    for lie, expected in LOADER_LIES.items():
        monkeypatch.setattr(wdsplit.loading.loader, "Loader", lying_loader(lie))
        assert expected <= set(broken(numbers, TWO_READING_RANKS)) <= set(READ_PROMISES)


# Classes in the batches of a rank


def classes_dataset(folder, num_rows=4000, num_classes=10, bytes_each=0, **plan):
    """Convert a table that is sorted by class; return the dataset's path."""
    rows = np.arange(num_rows)
    classes = rows * num_classes // num_rows
    columns = {"bin": [bytes(bytes_each)] * num_rows} if bytes_each else {}
    columns |= {"cls": classes, "txt": [f"class {number}" for number in classes.tolist()]}
    return converted(folder, pa.table(columns), mapping={name: name for name in columns}, **plan)


def classes_line(path, **options):
    """Return what an audit finds of the classes; None if nothing."""
    found = audit(path, AuditOptions(**({"world_size": 8, "batch_size": 16} | options))).findings
    lines = [finding for finding in found if finding.promise == "mixing of classes"]
    assert len(lines) <= 1
    return lines[0] if lines else None


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Return datasets of 10 classes: sorted, and sorted but shuffled when they were converted."""
    folder = tmp_path_factory.mktemp("classes")
    return {
        "sorted": classes_dataset(folder / "sorted", lanes=16, window=8),
        "shuffled": classes_dataset(folder / "shuffled", lanes=16, shuffle=True),
    }


def test_a_dataset_that_is_sorted_by_class_is_badly_mixed_and_the_remedy_mends_it(classes):
    line = classes_line(classes["sorted"])
    assert line.figure > 5 * line.ideal == 45
    assert (line.error, line.held) == (0, True)
    assert "10 classes of cls" in line.evidence and "estimated" not in line.evidence
    assert "badly mixed" in line.evidence and line.remedy in line.evidence
    assert "without --no-shuffle" in line.remedy
    line = classes_line(classes["shuffled"])
    assert (line.figure, line.remedy) == (pytest.approx(9, abs=1), "")
    assert "badly" not in line.evidence


def test_labels_of_packs_are_counted_by_their_samples(classes, tmp_path, monkeypatch):
    path = shutil.copytree(classes["sorted"], tmp_path / "packed")
    store_view(str(path), "packs", Rows(range(4000), form="packs"))
    monkeypatch.setattr(wdsplit.checks.classes, "_MAX_LABELS", 2000)
    assert "estimated" in classes_line(str(path), view="packs", batch_size=2).evidence


def test_any_field_can_be_measured_and_of_several_the_worst_mixed_is(classes, tmp_path):
    path = classes["sorted"]
    line = classes_line(path, class_field="txt")
    assert "classes of txt" in line.evidence and line.figure == classes_line(path).figure
    with pytest.raises(InputError, match="no field 'text'") as caught:
        classes_line(path, class_field="text")
    assert caught.value.remedy == "did you mean 'txt'?"
    assert classes_line(path, batch_size=1) is None
    assert classes_line(path, shuffle=False) is None
    assert classes_line(path, shuffle=False, class_field="cls").remedy
    assert classes_line(path, tail="uneven").remedy
    rows = np.arange(4000)
    table = pa.table({"id": rows, "width": rows % 3, "label": rows * 5 // 4000})
    mapping = {f"{name}.cls": name for name in table.column_names}
    assert "5 classes of label.cls" in classes_line(converted(tmp_path, table, lanes=16, mapping=mapping)).evidence
    shown = done("audit", path, "--world-size", 8, "--batch-size", 16, "--class-field", "txt").out
    epochs, of_classes = shown.splitlines()[-2:]
    assert re.match(r"epoch 0  mixing of epochs     \d+\.\d\d +times as often as by chance, ", epochs)
    assert re.match(r"epoch 0  mixing of classes    \d+\.\d\d +badly mixed: .*; random batches have 9;", of_classes)


def test_fields_without_classes_are_not_measured_or_refused_if_asked_for(numbers, tmp_path):
    assert classes_line(numbers) is None
    with pytest.raises(InputError, match="has no classes"):
        classes_line(numbers, class_field="cls")
    path = classes_dataset(tmp_path, 40, bytes_each=5000)
    with pytest.raises(InputError, match="field 'bin' has no classes") as caught:
        classes_line(path, class_field="bin")
    assert caught.value.found == "0 such values in 40 samples" and "--class-field" in caught.value.remedy


@pytest.mark.parametrize("bytes_each", [200, 18_000], ids=["small", "large"])
def test_of_a_large_dataset_in_a_bucket_only_labels_are_read(tmp_path, monkeypatch, bucket, fault_proxy, bytes_each):
    path = classes_dataset(tmp_path, 1000, bytes_each=bytes_each, shards=16, lanes=16)
    expected = classes_line(path)
    url = bucket.put(path)
    assert classes_line(url) == expected
    num_before = len(fault_proxy.exchanges)
    monkeypatch.setattr(wdsplit.checks.classes, "_MAX_REMOTE_BYTES", 0)
    monkeypatch.setattr(wdsplit.checks.classes, "_MAX_REMOTE_LABELS", 256)
    drawn = classes_line(url)
    assert "estimated from 16 batches" in drawn.evidence
    assert abs(drawn.figure - expected.figure) < 4 * drawn.error
    exchanges = fault_proxy.exchanges[num_before:]
    assert len(exchanges) <= 3 * 256
    dataset_bytes = sum(file.stat().st_size for file in Path(path).glob("*.tar"))
    # Small samples come whole, and with small gaps between them: that takes less time than more requests.
    assert sum(exchange.bytes_sent for exchange in exchanges) <= (dataset_bytes if bytes_each < 1000 else 256 * 4096)
