"""`wdsplit.report` and its command, on what users have: folders, buckets, tars, mixtures."""

import numpy as np
import pyarrow as pa
import pytest

import wdsplit
from commands import done, refused
from made_datasets import converted, numbers_dataset
from media_files import encoded
from report_datasets import CLASSES, facts_of, images, without_libraries
from wdsplit.errors import DatasetNotFoundError, InputError, MissingDependencyError, StorageError
from wdsplit.reporting.cluster import Topology
from wdsplit.reporting.pictures import pictures
from wdsplit.reporting.verdicts import verdicts

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def lying_sorted(tmp_path_factory):
    return images(tmp_path_factory.mktemp("sorted"), 1500, shuffle=False)


@pytest.fixture(scope="module")
def made(lying_sorted):
    return wdsplit.report(lying_sorted)


@pytest.fixture(scope="module")
def exact(made):
    return made.facts


def figures(facts):
    """Return what must be the same wherever the dataset is."""
    names = facts.labels.names
    mixes = [(mix.world_size, round(mix.chi_squared, 6)) for mix in facts.batches]
    return facts.num_samples, sorted(names), facts.labels.counts.tolist(), mixes, len(facts.cards)


def test_facts_are_those_of_the_table(exact):
    assert exact.num_samples == exact.num_scanned == 1500
    assert sorted(exact.labels.names) == sorted(CLASSES)
    assert exact.labels.counts.tolist() == [150] * 10
    assert [mix.world_size for mix in exact.batches] == [1, 2, 4, 8]
    assert exact.batches[-1].ratio > 2.5
    audited = {each.promise: each.figure for each in wdsplit.audit(exact.name, world_size=8, batch_size=64).findings}
    assert round(exact.meeting.figure, 4) == audited["mixing of epochs"]
    assert round(exact.batches[-1].chi_squared, 4) == audited["mixing of classes"]
    width = next(field for field in exact.fields if field.name == "jpg").measure("width")
    assert (width.minimum, width.maximum) == (24, 24)


def test_steps_pads_and_reads_are_those_of_assign_and_the_loader(lying_sorted, exact):
    for found in exact.topologies:
        ranks, workers = found.topology.world_size, found.topology.num_workers
        assigned = wdsplit.assign(lying_sorted, ranks, workers, batch_size=64)
        assert found.read_amplification == pytest.approx(assigned.read_amplification)
        assert found.readers_per_lane == assigned.readers_per_lane
        loader = wdsplit.Loader(wdsplit.Dataset(lying_sorted, rank=0, world_size=ranks), 64)
        assert found.steps == len(loader)
        assert found.pads == found.steps * 64 * ranks - 1500


def test_a_group_is_decoded_sample_by_sample(lying_sorted):
    made = wdsplit.report(wdsplit.Dataset(lying_sorted, group="label", size=10, allow_pads=True))
    num_groups = made.facts.num_samples
    assert f"<p>1,500 samples in {num_groups} groups ·" in made.html
    assert made.facts.judged.num_decoded == pytest.approx(1500 / num_groups)


def test_a_cache_on_each_node_fetches_the_shards_that_its_ranks_had_not_read_before(lying_sorted):
    cluster, sizes = (
        wdsplit.Cluster(ranks_per_node=2),
        wdsplit.inspect(lying_sorted, 0).manifest.shards.column("num_bytes"),
    )
    (found,) = facts_of(lying_sorted, topologies=[Topology(3, 2)], cluster=cluster).topologies
    datasets, kept = [wdsplit.Dataset(lying_sorted, rank=rank, world_size=3) for rank in range(3)], [set(), set()]
    for epoch in range(4):
        num_bytes = 0
        for rank, dataset in enumerate(datasets):
            dataset.set_epoch(epoch)
            read = {sample["__url__"] for sample in dataset} - kept[rank // 2]
            num_bytes += sum(int(sizes[int(url.split("/")[-1][:6])]) for url in read)
            kept[rank // 2] |= read
        assert found.cached_bytes[epoch] == num_bytes
    assert found.cached_bytes[0] > found.cached_bytes[3]


@pytest.mark.parametrize("is_mixture", [False, True])
def test_chi_squared_is_that_of_the_batches_that_loaders_deliver(lying_sorted, exact, tmp_path, is_mixture):
    facts, opened = exact, lambda rank: wdsplit.Dataset(lying_sorted, rank=rank, world_size=2)
    if is_mixture:
        shares = {lying_sorted: 0.8, images(tmp_path, 400, shuffle=True): 0.2}
        mixture = wdsplit.mix(shares, num_samples=1000, seed=3)
        facts, opened = facts_of(mixture), lambda rank: mixture.at_rank(rank, 2)
    loaders = [wdsplit.Loader(opened(rank).decode().to_tuple("cls", "__pad__"), 64) for rank in (0, 1)]
    counts = np.array([np.bincount(cls[~pad], minlength=10) for loader in loaders for cls, pad in loader], float)
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    found = ((counts - expected) ** 2 / expected).sum() / (len(counts) - 1)
    assert next(mix for mix in facts.batches if mix.world_size == 2).chi_squared == pytest.approx(found)


def test_the_report_of_a_bucket_is_that_of_the_folder_or_sampled_if_it_is_too_large_to_read(
    lying_sorted, exact, bucket
):
    url = bucket.put(lying_sorted)
    assert figures(facts_of(url)) == figures(exact)
    facts = facts_of(url, max_read="300kB")
    assert 0 < facts.num_scanned < 200
    assert facts.scan_basis == f"sampled: {facts.num_scanned} of 1,500 samples"
    mixes = {mix.world_size: mix for mix in facts.batches}
    assert mixes[8].chi_squared == pytest.approx(exact.batches[-1].chi_squared, rel=0.5)
    assert mixes[8].error > 0
    assert facts.mixing_basis.startswith("sampled")


def test_tars_and_several_datasets_are_reported_and_a_mixture(lying_sorted, exact, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    facts = facts_of(f"{lying_sorted}/*.tar")
    assert facts.labels.counts.tolist() == exact.labels.counts.tolist()
    other = numbers_dataset(tmp_path, 300)
    both = facts_of([lying_sorted, other])
    assert (both.num_samples, len(both.parts)) == (1800, 2)
    facts = facts_of(wdsplit.mix({lying_sorted: 0.5, other: 0.5}, num_samples=600, seed=3))
    assert facts.num_samples == 600
    (images,) = (field for field in facts.fields if field.name == "jpg")
    assert (images.present, images.absent) == (1500, 300)
    (shards,) = (each for each in pictures(facts_of(other)) if each.name == "shards")
    manifest = wdsplit.inspect(other, 0).manifest
    columns = [sum(int(row[column]) for row in shards.rows) for column in (1, 2)]
    assert columns == [300, manifest.num_pads]


def test_the_command_writes_the_same_page_each_time_and_says_what_it_says(lying_sorted, made, tmp_path):
    assert wdsplit.report(lying_sorted).html == made.html
    output = tmp_path / "report.html"
    said = done("report", lying_sorted, "-o", output, "--topology", "4x2", "--link", "2.5", "--samples", "3").out
    assert "Is it mixed? no." in said
    text = output.read_text()
    assert "2.5 Gbit/s" in text and text.count('class="card"') == 3
    assert "4 ranks x 2 workers" in text and "8 ranks x 4 workers" not in text


def test_what_is_wrong_is_said_before_anything_is_read(lying_sorted, tmp_path):
    assert "such as 8x4" in refused(2, "report", lying_sorted, "-o", tmp_path / "x", "--topology", "8")
    for error, said, path, options in (
        (DatasetNotFoundError, "no dataset", tmp_path / "nowhere", {}),
        (InputError, "invalid options", lying_sorted, {"samples": -1, "batch_size": 0}),
        (InputError, "invalid size", lying_sorted, {"max_read": "much"}),
        (InputError, "no classes in this field", lying_sorted, {"class_field": "jpg"}),
        (StorageError, "No such file or directory", lying_sorted, {"output": tmp_path / "no" / "report.html"}),
    ):
        with pytest.raises(error, match=said):
            wdsplit.report(path, **options)


@pytest.mark.parametrize("library", ["jinja2", "vl_convert"])
def test_a_missing_library_is_named_with_how_to_install_it(lying_sorted, library):
    with without_libraries(library):
        with pytest.raises(MissingDependencyError, match=r"wdsplit\[report\]"):
            wdsplit.report(lying_sorted)
        assert "wdsplit[report]" in refused(1, "report", lying_sorted, "-o", "never.html")
        done("report", "--help")


def test_the_topology_that_is_judged_is_that_of_the_conversion_or_8x4_or_the_last(lying_sorted, exact, tmp_path):
    def judged(path, *topologies):
        return facts_of(path, **({"topologies": topologies} if topologies else {})).judged.topology

    eight, two, one = Topology(8, 4), Topology(2, 2), Topology(2, 1)
    assert exact.judged.topology == judged(lying_sorted, eight, one) == eight
    assert judged(lying_sorted, two, one) == one
    told = numbers_dataset(tmp_path, 300, world_size=2, workers=2)
    assert judged(told) == judged(told, one, two, eight) == two


@pytest.mark.slow
def test_a_page_stays_below_5_mb_whatever_is_in_it(tmp_path):
    rows = 250
    noise = np.random.default_rng(0)
    columns = {f"{name}.txt": ["&\"<>'" * 100] * rows for name in "abcdefghij"}
    columns |= {"png": [encoded(noise.integers(0, 255, (112, 112, 3), np.uint8), "PNG") for _ in range(rows)]}
    columns |= {"wav": [bytes(70_000)] * rows, "label": [f"<{row % 200:03d}>" + '"' * 40 for row in range(rows)]}
    names = {name: name for name in columns if name != "label"} | {"cls.txt": "label"}
    folder = converted(tmp_path, pa.table(columns), mapping=names)
    made = wdsplit.report(folder, options=wdsplit.ReportOptions(samples=200, max_read="64MB"))
    assert len(made.facts.cards) == 200
    assert len(made.html.encode()) < 5_000_000


@pytest.mark.parametrize(("shuffle", "grade"), [(True, "good"), (False, "unknown")])
def test_without_classes_it_counts_whether_rows_were_shuffled_and_samples_meet_again(tmp_path, shuffle, grade):
    table = pa.table({"txt": [f"text {row}" for row in range(600)]})
    path = converted(tmp_path, table, shuffle=shuffle)
    facts = facts_of(path)
    assert [each.grade for each in verdicts(facts)][1] == grade
    assert facts.labels is None
    made = wdsplit.report(wdsplit.Dataset(path, lanes=1, window=60), batch_size=8)
    assert made.facts.meeting.figure > 1.3
    assert "times as often as by chance; 1 is ideal. Of the 63 others in its step" in made.html
    answer = made.verdicts[1]
    assert (answer.grade, "More lanes" in answer.remedy) == (("bad", True) if shuffle else ("unknown", False))
    assert facts_of(wdsplit.Dataset(path, shuffle=False)).meeting is None
