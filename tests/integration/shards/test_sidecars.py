"""The sidecars are what the readers' own documentation and tools say, and the real readers open the dataset by them."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import braceexpand
import orjson
import pyarrow as pa
import pytest
import yaml
from webdataset.tariterators import base_plus_ext

from commands import refused
from stops import stopped_at
from tables import files_below, files_of, is_pad_key, real_samples, tar_samples, write_table
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.errors import OutputExistsError, StorageError
from wdsplit.shards import sidecars
from wdsplit.shards.manifest import HEADER_NAME

ALL = ("dali", "energon", "wids")
NUM_ROWS = 45
NUM_SHARDS = 8
ENERGON_FILES = [".info.json", "dataset.yaml", "split.yaml"]


@pytest.fixture(scope="module")
def table_path(tmp_path_factory):
    """Write a table with nulls, dots and folders in its keys."""
    rows = range(NUM_ROWS)
    columns = {
        "name": [f"class-{row % 3}/item.{row}" if row % 2 else f"class-{row % 3}/item_{row}" for row in rows],
        "txt": [f"row {row} " * (row * 37 % 90) for row in rows],
        "cls": pa.array(rows, pa.int64()),
        "json": [{"row": row} if row % 4 else None for row in rows],
        "seg": pa.array([bytes(row * 41 % 1100) for row in rows], pa.binary()),
    }
    return write_table(tmp_path_factory.mktemp("input") / "table.parquet", columns, 7)


def converted(table_path, output, emit=ALL, shards=NUM_SHARDS, progress=None, key="name", **more):
    run = {name: more.pop(name) for name in ("jobs", "overwrite", "resume") if name in more}
    mapping = {"txt": "txt", "cls": "cls", "json": "json", "seg.bin": "seg"}
    options = ConvertOptions(shards=shards, null="omit", **more, mapping=mapping, key=key, emit=emit, **run)
    convert(table_path, str(output), options, progress)
    return Path(output)


@pytest.fixture(scope="module")
def dataset(table_path, tmp_path_factory):
    """Return a dataset of 8 shards with all sidecars, 3 of the shards with a pad."""
    return converted(table_path, tmp_path_factory.mktemp("dataset") / "out")


@pytest.fixture(scope="module")
def without_pads(table_path, tmp_path_factory):
    return converted(table_path, tmp_path_factory.mktemp("without_pads") / "out", pad="none")


def tars(folder):
    return sorted(Path(folder).glob("*.tar"))


def printed_by(script, *arguments, **environment):
    """Run a script in a process of its own and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {name: str(value) for name, value in environment.items()},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def documented_dali_index(path):
    """Make a shard's index from the tar, as DALI documents it: ext, data offset, size and name of each member."""
    samples = {}
    with tarfile.open(path) as tar:
        for member in tar:
            key, field = base_plus_ext(member.name)
            if not is_pad_key(key):
                samples.setdefault(key, []).append(f"{field} {member.offset_data} {member.size} {member.name}")
    lines = [f"v1.2 {len(samples)}", *(" ".join(members) for members in samples.values())]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def test_the_files_are_what_their_formats_demand_and_leave_out_pads(dataset, without_pads):
    for folder in (dataset, without_pads):
        assert len(tars(folder)) == NUM_SHARDS
        for path in tars(folder):
            assert path.with_suffix(".idx").read_bytes() == documented_dali_index(path)
        counts = {path.name: sum(not is_pad_key(key) for key, _ in tar_samples(path)) for path in tars(folder)}
        sizes = {path.name: path.stat().st_size for path in tars(folder)}
        listed = [{"url": name, "nsamples": count, "filesize": sizes[name]} for name, count in counts.items()]
        index = orjson.loads((folder / "wids.json").read_bytes())
        assert index == {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed}
        info = orjson.loads((folder / ".nv-meta" / ".info.json").read_bytes())
        assert info.keys() == {"energon_version", "shard_counts"} and info["shard_counts"] == counts


OPEN_WITH_WIDS = """
import json, sys, wids
dataset = wids.ShardListDataset(sys.argv[1], transformations=[])
samples = [dataset[number] for number in range(len(dataset))]
print(json.dumps([
    [sample["__key__"], {name: file.read().hex() for name, file in sample.items() if name.startswith(".")}]
    for sample in samples
]))
"""


def read_with_wids(folder, cache):
    samples = printed_by(OPEN_WITH_WIDS, folder / "wids.json", WIDS_CACHE=cache)
    return [(key, {name[1:]: bytes.fromhex(data) for name, data in fields.items()}) for key, fields in samples]


@pytest.mark.slow
def test_wids_reads_every_sample_once_and_no_pad_also_of_a_dataset_that_was_moved(dataset, tmp_path):
    moved = tmp_path / "a" / "moved"
    shutil.copytree(dataset, moved)
    assert read_with_wids(moved, tmp_path / "cache") == real_samples(dataset)


# Energon

READ_WITH_ENERGON = """
import itertools, json, sys
from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, basic_sample_keys
from megatron.energon import get_loader, get_train_dataset, get_val_dataset, stateless

@stateless
def cook(sample):
    return dict(**basic_sample_keys(sample), fields={k: v for k, v in sample.items() if not k.startswith("__")})

class Encoder(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(cook)]

path, world_size, num_workers, trains = sys.argv[1], *map(int, sys.argv[2:])
training = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
ranks = []
if __name__ == "__main__":
    for rank in range(world_size):
        workers = WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers)
        options = {"batch_size": None, "worker_config": workers, "task_encoder": Encoder()}
        if trains:
            samples = itertools.islice(get_loader(get_train_dataset(path, **options, **training)), trains)
        else:
            samples = loader = get_loader(get_val_dataset(path, split_part="train", **options))
        samples = [[s["__key__"], {k: repr(v) for k, v in s["fields"].items()}] for s in samples]
        assert trains or len(loader) == len(samples)
        ranks.append(samples)
    print(json.dumps(ranks))
"""


def read_with_energon(folder, world_size=1, num_workers=0, trains=0):
    """Return the samples of each rank: those of an epoch, or the first ones of a training."""
    return printed_by(READ_WITH_ENERGON, folder, world_size, num_workers, trains)


@pytest.mark.slow
def test_energon_reads_every_sample_once_an_epoch_and_no_pad_and_prepares_nothing(dataset):
    before = files_of(dataset)
    expected = [[key, {name: repr(data) for name, data in fields.items()}] for key, fields in real_samples(dataset)]
    for options in ({"world_size": 1}, {"world_size": 3, "num_workers": 2}, {"trains": NUM_ROWS}):
        ranks = read_with_energon(dataset, **options)
        assert sorted((sample for rank in ranks for sample in rank), key=lambda sample: sample[0]) == sorted(expected)
        assert max(map(len, ranks)) - min(map(len, ranks)) <= options.get("num_workers", 0) + 1
    assert files_of(dataset) == before


def expanded(split):
    return {part: [name for each in names for name in braceexpand.braceexpand(each)] for part, names in split.items()}


@pytest.mark.slow
def test_energons_files_hold_what_its_own_prepare_writes(without_pads, tmp_path):
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    for path in tars(without_pads):
        shutil.copy(path, prepared)
    program = Path(sys.executable).with_name("energon")
    command = [program, "prepare", "--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    subprocess.run([*command, prepared], check=True, capture_output=True)
    ours, theirs = without_pads / ".nv-meta", prepared / ".nv-meta"
    assert set(files_below(ours)) == {*ENERGON_FILES} < set(files_below(theirs))
    assert orjson.loads((ours / ".info.json").read_bytes()) == orjson.loads((theirs / ".info.json").read_bytes())
    assert (ours / "dataset.yaml").read_bytes() == (theirs / "dataset.yaml").read_bytes()
    our_split, their_split = (yaml.safe_load((folder / "split.yaml").read_bytes()) for folder in (ours, theirs))
    assert our_split.keys() == their_split.keys() == {"split_parts", "exclude"}
    assert expanded(our_split["split_parts"]) == expanded(their_split["split_parts"])
    assert our_split["exclude"] == their_split["exclude"] == []
    for path in tars(without_pads):
        assert path.with_suffix(".tar.idx").read_bytes() == (prepared / f"{path.name}.idx").read_bytes()


# All of them: complete or absent, the same bytes, resumed, replaced


def test_nothing_is_written_that_was_not_asked_for(table_path, dataset, tmp_path):
    plain, every = files_of(converted(table_path, tmp_path / "plain", emit=())), files_of(dataset)
    always = (".tar", ".tar.places", ".tar.parquet")
    assert {name for name in plain if not name.endswith(always)} == {HEADER_NAME, "shards.parquet"}
    assert all(every[name] == plain[name] for name in plain if name.endswith(always))
    numbers = [f"{shard:06d}" for shard in range(NUM_SHARDS)]
    energon = {*(f".nv-meta/{name}" for name in ENERGON_FILES), *(f"{number}.tar.idx" for number in numbers)}
    assert every.keys() - plain.keys() == {"wids.json", *(f"{number}.idx" for number in numbers), *energon}
    one = files_of(converted(table_path, tmp_path / "dali", emit=("dali",)))
    assert one.keys() - plain.keys() == {f"{number}.idx" for number in numbers}


def interrupted(table_path, output, num_shards, **changes):
    with stopped_at(done=num_shards) as stop:
        converted(table_path, output, progress=stop, **changes)
    assert not (output / HEADER_NAME).exists()
    return output


@pytest.mark.parametrize(("num_shards", "lost"), [(5, "000000.idx"), (NUM_SHARDS, "000000.tar.idx")])
def test_a_resumed_run_ends_with_the_same_bytes_also_where_a_sidecar_was_lost_and_is_of_the_same_ones(
    table_path, dataset, tmp_path, num_shards, lost
):
    output = interrupted(table_path, tmp_path / "out", num_shards)
    with pytest.raises(OutputExistsError, match="other sidecars") as caught:
        converted(table_path, output, resume=True, emit=("dali", "wids"))
    assert "--emit dali,energon,wids" in caught.value.found
    times = {path.name: path.stat().st_mtime_ns for path in tars(output) if path.stem != "000000"}
    (output / lost).unlink()
    converted(table_path, output, resume=True, emit=("wids", "energon", "dali", "wids"))
    assert files_of(output) == files_of(dataset)
    assert {path.name: path.stat().st_mtime_ns for path in tars(output)}.items() >= times.items()
    with pytest.raises(OutputExistsError, match="other sidecars"):
        converted(table_path, output, resume=True, emit=("dali", "wids"))
    converted(table_path, output, resume=True)


def test_a_dataset_that_lacks_its_sidecars_does_not_exist(table_path, dataset, tmp_path, monkeypatch):
    output = tmp_path / "out"

    def fail(*_):
        raise StorageError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no space left"):
        patch.setattr(sidecars, "_publish", fail)
        converted(table_path, output)
    assert not (output / HEADER_NAME).exists()
    (output / ".nv-meta").mkdir(exist_ok=True)
    (output / ".nv-meta" / ".split.yaml.1-1.tmp").touch()
    converted(table_path, output, resume=True)
    assert files_of(output) == files_of(dataset)


def test_overwriting_removes_what_is_no_longer_asked_for(table_path, tmp_path):
    output = interrupted(table_path, tmp_path / "out", 9, shards=16)
    converted(table_path, output, emit=(), overwrite=True)
    assert files_of(output) == files_of(converted(table_path, tmp_path / "plain", emit=()))
    converted(table_path, output, emit=ALL, overwrite=True)
    assert (output / ".nv-meta").is_dir()


def test_what_a_person_has_put_beside_energons_files_is_not_overwritten(table_path, tmp_path):
    output = converted(table_path, tmp_path / "out", emit=("energon",))
    (output / ".nv-meta" / "sample_loader.py").write_text("mine")
    with pytest.raises(OutputExistsError, match="did not write"):
        converted(table_path, output, overwrite=True)
    assert (output / ".nv-meta" / "sample_loader.py").read_text() == "mine"


@pytest.mark.slow
def test_shards_of_nothing_but_pads_are_left_out(tmp_path):
    columns = {"name": ["a", "b", "c"], "txt": ["x", "y", "z"], "cls": [0, 1, 2], "json": [{"a": 1}] * 3}
    table = write_table(tmp_path / "t.parquet", columns | {"seg": pa.array([b"", b"", b""], pa.binary())})
    folder = converted(table, tmp_path / "out", shards=5)
    assert len(tars(folder)) == 5
    assert sorted(path.name for path in folder.glob("??????.idx")) == ["000000.idx", "000001.idx", "000002.idx"]
    assert [shard["url"] for shard in orjson.loads((folder / "wids.json").read_bytes())["shardlist"]] == [
        "000000.tar",
        "000001.tar",
        "000002.tar",
    ]
    assert read_with_wids(folder, tmp_path / "cache") == real_samples(folder)
    ranks = read_with_energon(folder, world_size=2)
    assert sorted(key for rank in ranks for key, _ in rank) == ["a", "b", "c"]


@pytest.mark.parametrize("value", ["tfrecord", ""])
def test_the_command_refuses_what_emit_cannot_name(table_path, tmp_path, value):
    message = refused(2, "convert", table_path, tmp_path / "out", "--emit", value)
    assert ("some of dali, energon, wids" if value else "empty value") in message
    assert not (tmp_path / "out").exists()
