"""`wdsplit bench`, and the function `wdsplit.bench` behind it."""

import json
import re
import subprocess
import sys

import pytest

import wdsplit
from commands import done, refused
from made_datasets import converted, images_table
from wdsplit.errors import InputError

TXT_BYTES = sum(len(f"row {row}") for row in range(96))
CLS_BYTES = sum(len(str(row)) for row in range(96))


def bench(dataset, *options):
    """Run `wdsplit bench`, which must succeed; return what it says."""
    ended = done("bench", dataset, *options)
    return ended.json if "--json" in options else ended.out


@pytest.mark.parametrize("workers", [(), ("--workers", 2), ("--workers", 2, "--worker-kind", "thread")], ids=str)
def test_an_epoch_is_read_whole_and_counted(whole_lanes, workers):
    found = bench(whole_lanes, "--batch-size", 32, "--json", *workers)
    assert (found["dataset"], found["batches"], found["samples"]) == (whole_lanes, 3, 96)
    assert found["num_bytes"] == TXT_BYTES + CLS_BYTES
    assert 0 < found["first_batch_s"] < found["seconds"]
    assert found["samples_per_s"] == pytest.approx(96 / found["seconds"])
    assert found["bytes_per_s"] == pytest.approx(found["num_bytes"] / found["seconds"])
    assert found["peak_bytes"] > 10_000_000


def test_options_choose_what_is_read_and_how_it_is_decoded(whole_lanes, tmp_path):
    found = bench(whole_lanes, "--world-size", 2, "--rank", 1, "--batch-size", 16, "--epochs", 2, "--json")
    assert (found["batches"], found["samples"]) == (6, 96)
    assert bench(whole_lanes, "--batch-size", 32, "--fields", "txt", "--json")["num_bytes"] == TXT_BYTES
    both = bench(whole_lanes, "--batch-size", 32, "--fields", "txt, cls", "--json")
    assert both["num_bytes"] == TXT_BYTES + CLS_BYTES
    images = converted(tmp_path, images_table(20), lanes=4, window=5)
    for options in (("--resize", 4, "--fields", "png,cls"), ("--decode", "rgb8")):
        assert bench(images, *options, "--batch-size", 5, "--json")["samples"] == 20
    for options, said in (
        (("--world-size", 2, "--rank", 2), "rank"),
        (("--fields", "jpg"), "no such field"),
        (("--decode", "rgb9"), "unknown decoder"),
    ):
        assert said in refused(2, "bench", whole_lanes, *options)


def test_the_result_can_be_read_by_people(whole_lanes):
    lines = bench(whole_lanes, "--batch-size", 32).splitlines()
    for line, expected in zip(
        lines,
        (
            rf"{whole_lanes}: 3 batches, 96 samples, \d+ B in \d+\.\d\d s",
            r"[\d,]+ samples/s, [\d.]+ [kM]?B/s; first batch after \d+\.\d\d s",
            r"waited for batches \d+ % of the time",
            r"peak memory: \d+\.\d [MG]B(, and .* per worker)?",
        ),
        strict=True,
    ):
        assert re.fullmatch(expected, line)
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


def test_a_loader_of_ones_own_is_measured_from_where_it_is(whole_lanes):
    dataset, calls = wdsplit.Dataset(whole_lanes).map(lambda sample: {"key": sample["__key__"]}), []
    loader = wdsplit.Loader(dataset, 24, collate_fn=list)
    list(loader)  # does not count
    result = wdsplit.bench(loader, epochs=2, step_s=0.01, progress=lambda *counts: calls.append(counts))
    assert (result.batches, result.samples) == (8, 192)
    assert calls == [(number, 8, 24 * number) for number in range(1, 9)]
    assert result.seconds >= 7 * 0.01
    next(iter(loader))
    resumed = wdsplit.Loader(wdsplit.Dataset(whole_lanes), 24)
    resumed.load_state_dict(loader.state_dict())
    result = wdsplit.bench(resumed)
    assert (result.batches, result.samples) == (3, 72)
    assert wdsplit.bench(resumed, seconds=1e-9).batches == 1
    for argument in ({"epochs": 0}, {"seconds": 0}, {"step_s": -1}):
        with pytest.raises(InputError, match="invalid bench arguments"):
            wdsplit.bench(resumed, **argument)
