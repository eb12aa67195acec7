import json
import re
import subprocess
import sys

import pytest

from commands import done, refused
from made_datasets import converted, images_table

TXT_BYTES = sum(len(f"row {row}") for row in range(96))
CLS_BYTES = sum(len(str(row)) for row in range(96))


def bench(dataset, *options):
    """Run `wdsplit bench`, which must succeed; return what it says."""
    ended = done("bench", dataset, *options)
    return ended.json if "--json" in options else ended.out


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(20), lanes=4, window=5)


@pytest.mark.parametrize("workers", [(), ("--workers", 2), ("--workers", 2, "--worker-kind", "thread")], ids=str)
def test_an_epoch_is_read_whole_and_counted(whole_lanes, workers):
    found = bench(whole_lanes, "--batch-size", 32, "--json", *workers)
    assert (found["dataset"], found["batches"], found["samples"]) == (whole_lanes, 3, 96)
    assert found["num_bytes"] == TXT_BYTES + CLS_BYTES
    assert found["windows_read"] >= 48
    assert found["read_amplification"] == pytest.approx(found["windows_read"] / 48)
    assert 0 < found["first_batch_s"] < found["seconds"]
    assert found["samples_per_s"] == pytest.approx(96 / found["seconds"])
    assert found["bytes_per_s"] == pytest.approx(found["num_bytes"] / found["seconds"])
    assert found["peak_bytes"] > 10_000_000


def test_the_part_of_one_rank_can_be_read_alone(whole_lanes):
    found = bench(whole_lanes, "--world-size", 2, "--rank", 1, "--batch-size", 16, "--json")
    assert (found["batches"], found["samples"]) == (3, 48)
    assert "rank" in refused(2, "bench", whole_lanes, "--world-size", 2, "--rank", 2)


def test_epochs_follow_one_another_and_a_window_that_one_reader_has_alone_is_read_once(whole_lanes):
    found = bench(whole_lanes, "--epochs", 3, "--batch-size", 96, "--json")
    assert (found["batches"], found["samples"], found["windows_read"]) == (3, 288, 144)
    assert (found["num_bytes"], found["read_amplification"]) == (3 * (TXT_BYTES + CLS_BYTES), 1.0)


def test_where_reading_stops_within_an_epoch_nothing_is_said_of_the_readings_of_a_window(whole_lanes):
    """All lanes have a window open, of which few samples were taken: 12 windows for 12 of 96 samples."""
    options = ("--batch-size", 12, "--seconds", 1e-9)
    found = bench(whole_lanes, *options, "--json")
    assert (found["batches"], found["windows_read"], found["read_amplification"]) == (1, 12, None)
    lines = bench(whole_lanes, *options).splitlines()
    assert lines[2] == (
        "windows: 12 read, 0 requests served from memory; stopped within an epoch, so some were only partly used"
    )


@pytest.mark.parametrize("batch_size", [96, 5000])
@pytest.mark.parametrize("world_size", [1, 4])
def test_pads_do_not_count_as_samples_whose_windows_must_be_read(whole_lanes, batch_size, world_size):
    """Each rank repeats samples of its own lanes, to fill up a batch larger than its part."""
    found = bench(whole_lanes, "--world-size", world_size, "--batch-size", batch_size, "--json")
    assert (found["batches"], found["samples"]) == (1, batch_size)
    assert found["read_amplification"] >= 1
    assert found["read_amplification"] == found["windows_read"] / (48 / world_size)


def test_only_the_fields_that_are_named_are_read(whole_lanes):
    assert bench(whole_lanes, "--batch-size", 32, "--fields", "txt", "--json")["num_bytes"] == TXT_BYTES
    both = bench(whole_lanes, "--batch-size", 32, "--fields", "txt, cls", "--json")
    assert both["num_bytes"] == TXT_BYTES + CLS_BYTES
    assert "no such field" in refused(2, "bench", whole_lanes, "--fields", "jpg")


def test_images_are_decoded_as_asked_for(images):
    assert bench(images, "--resize", 4, "--fields", "png,cls", "--batch-size", 5, "--json")["samples"] == 20
    assert bench(images, "--decode", "rgb8", "--batch-size", 5, "--json")["samples"] == 20
    assert "unknown decoder" in refused(2, "bench", images, "--decode", "rgb9")


def test_a_training_that_takes_its_time_waits_less(whole_lanes):
    hungry = bench(whole_lanes, "--batch-size", 12, "--json")
    slow = bench(whole_lanes, "--batch-size", 12, "--step-ms", 30, "--json")
    assert slow["seconds"] >= 7 * 0.03
    assert slow["wait_share"] < hungry["wait_share"] <= 1


def test_the_result_can_be_read_by_people(whole_lanes):
    lines = bench(whole_lanes, "--batch-size", 32).splitlines()
    assert re.fullmatch(rf"{whole_lanes}: 3 batches, 96 samples, \d+ B in \d+\.\d\d s", lines[0])
    assert re.fullmatch(r"[\d,]+ samples/s, [\d.]+ [kM]?B/s; first batch after \d+\.\d\d s", lines[1])
    assert re.fullmatch(
        r"windows: \d+ read, \d+ requests served from memory; each window is read 1\.\d\d times on average", lines[2]
    )
    assert re.fullmatch(r"waited for batches \d+% of the time", lines[3])
    assert re.match(r"peak memory: \d+\.\d [MG]B", lines[4])


def test_an_epoch_without_batches_is_said_to_be_one(whole_lanes):
    assert "no batches" in bench(whole_lanes, "--tail", "drop", "--batch-size", 1000)


def test_it_needs_no_torch_and_reports_no_memory_of_the_process_that_started_it(whole_lanes):
    large = bytearray(b"x") * 3 * 10**8
    script = f"""
import sys
sys.modules["torch"] = None
from wdsplit.cli.main import main
main(["bench", {whole_lanes!r}, "--batch-size", "48", "--json"])
"""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found["samples"] == 96
    assert 10**7 < found["peak_bytes"] < len(large) or sys.platform == "darwin"
