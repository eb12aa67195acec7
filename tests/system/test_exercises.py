"""The exercises in examples/exercises, run as users run them, and with the mistakes that they are to find."""

import json
import re

import pytest

from paths import EXAMPLES
from torchruns import run_alone, torchrun
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage

pytestmark = pytest.mark.xdist_group("exercises")

EXERCISES = EXAMPLES / "exercises"
SCRIPTS = sorted(path.name for path in EXERCISES.glob("exercise*.py"))
NUM_SAMPLES = 1_500
NO_MATPLOTLIB = "no picture file: matplotlib is not installed"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = run("common.py", tmp_path_factory.mktemp("data")).stdout.strip()
    assert read_manifest(open_storage(path)).num_samples == NUM_SAMPLES
    return path


def run(script, *arguments):
    """Run a script in one process, without a launcher."""
    return run_alone(EXERCISES / script, *arguments)


def on_two_ranks(script, *arguments, out):
    return torchrun(2, EXERCISES / script, *arguments, out=out)


def assert_is_picture(path, output):
    """The picture is there, or the script has said why it is not."""
    assert path.read_bytes()[:4] == PNG if path.exists() else NO_MATPLOTLIB in output


def test_there_are_four_and_the_readme_explains_each():
    assert len(SCRIPTS) == 4
    readme = (EXERCISES / "README.md").read_text()
    for script in SCRIPTS:
        assert f"torchrun --standalone --nproc-per-node 2 examples/exercises/{script}" in readme
        assert f"examples/exercises/{script}" in (EXERCISES / script).read_text().partition('"""\n\n')[0]


def test_one_process_and_ddp_give_one_curve_and_what_is_not_the_same_is_found(dataset, tmp_path):
    curve = tmp_path / "curve.json"
    plain = run("exercise1_ddp.py", "--curve", curve)
    assert plain.returncode == 0, plain.stderr
    assert "1 rank(s), global batch 64 = 1 x 64: 72 steps" in plain.stdout
    ended = on_two_ranks("exercise1_ddp.py", "--data", dataset, "--curve", curve, out=tmp_path / "out")
    assert ended.returncode == 0, ended.output
    assert "2 rank(s), global batch 64 = 2 x 32: 72 steps" in ended.output
    assert "the parameters of all ranks are the same, bit by bit" in ended.output
    assert "the same curve as that of 1 rank(s)" in ended.output

    known = json.loads(curve.read_text())
    known["losses"][40] *= 1 + 1e-9
    curve.write_text(json.dumps(known))
    differing = run("exercise1_ddp.py", "--data", dataset, "--curve", curve)
    assert differing.returncode == 1
    assert "FAILED: the loss curves differ" in differing.stderr
    assert "first in step 40" in differing.stderr


def test_each_rank_sees_its_own_samples_and_the_picture_shows_them(dataset, tmp_path):
    picture = tmp_path / "seen.png"
    options = ["--data", dataset, "--steps=2", "--global-batch=8", f"--picture={picture}"]
    ended = on_two_ranks("exercise2_samples.py", *options, out=tmp_path / "out")
    assert ended.returncode == 0, ended.output
    assert re.findall(r"rank (\d) worker (\d)  \|(.*)\|", ended.output) == [
        ("0", "0", "0...0...|0...0..."),
        ("0", "1", "..0...0.|..0...0."),
        ("1", "0", ".1...1..|.1...1.."),
        ("1", "1", "...1...1|...1...1"),
    ]
    first = [set(names.split(", ")) for names in re.findall(r"first batch: (.*)", ended.output)]
    assert [len(names) for names in first] == [4, 4]
    assert not first[0] & first[1]
    assert f"audit by index: {NUM_SAMPLES:,} samples, each seen exactly once; 4 pads, flagged" in ended.output
    assert "batches of each rank: 188 188" in ended.output
    assert_is_picture(picture, ended.output)


def test_an_audit_by_key_finds_a_broken_split(dataset, tmp_path):
    options = ["--data", dataset, "--field=__key__", "--workers=0", "--break-split"]
    ended = on_two_ranks("exercise2_samples.py", *options, out=tmp_path / "out")
    assert ended.returncode == 1
    assert f"FAILED: {NUM_SAMPLES:,} samples were seen more than once, such as '" in ended.output
    assert "on the ranks [0, 1]" in ended.output
    assert "exactly once" not in ended.output


def test_a_fast_and_a_slow_input_are_told_apart_on_two_ranks_and_on_one(dataset, tmp_path):
    options = ["--data", dataset, "--steps=20", "--compute-ms=30", "--slow-ms=25"]
    ended = on_two_ranks("exercise3_pipeline.py", *options, out=tmp_path / "out")
    assert ended.returncode == 0, ended.output
    lines = re.findall(r"^(\w.*?) +(\d) +([\d,]+) +(\d+)% of the time: (\S+)$", ended.output, re.M)
    found = {(name, int(ranks)): (int(rate.replace(",", "")), int(share)) for name, ranks, rate, share, _ in lines}
    assert list(found) == [(name, ranks) for ranks in (2, 1) for name in ("fast", "slow", "slow, 4 workers")]
    assert {bound for *_, share, bound in lines if int(share) > 10} == {"loader-bound"}
    assert {bound for *_, share, bound in lines if int(share) < 10} <= {"compute-bound"}
    for ranks in (1, 2):
        slow_rate, slow_share = found["slow", ranks]
        fast_rate, fast_share = found["fast", ranks]
        assert fast_rate > 1.5 * slow_rate
        assert fast_share < slow_share
        assert found["slow, 4 workers", ranks][0] > 1.2 * slow_rate
    assert "loader-bound: the training waits for batches" in ended.output


def test_the_loss_curves_of_one_and_two_ranks_coincide(tmp_path):
    picture = tmp_path / "curves.png"
    ended = on_two_ranks("exercise4_loss_curves.py", f"--picture={picture}", out=tmp_path / "out")
    assert ended.returncode == 0, ended.output
    apart = re.search(r"the curves coincide: at most (\S+) apart", ended.output)
    assert apart, ended.output
    assert float(apart[1]) < 1e-10
    chart = re.findall(r"^ *\d\.\d{3} \|(.*)$", ended.output, re.M)
    assert set("".join(chart)) == {"*", " "}
    assert_is_picture(picture, ended.output)


def test_the_loss_curves_do_not_coincide_when_a_rank_ignores_its_rank(dataset, tmp_path):
    options = ["--data", dataset, "--epochs=1", "--break-split"]
    ended = on_two_ranks("exercise4_loss_curves.py", *options, out=tmp_path / "out")
    assert ended.returncode == 1
    assert (
        "FAILED: the loss curves differ (2 rank(s): 47 steps, 1 rank alone: 24 steps), first in step 0" in ended.output
    )
    assert "coincide" not in ended.output
