import io
import json
import subprocess
import sys
import tarfile
import zipfile

import pytest

from paths import ROOT
from tools import check_release, soak


def output_of(*words):
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_check_of_gpus_checks_what_there_is_and_names_what_it_skips(tmp_path):
    found = output_of("tools.check_gpu", "--output", tmp_path, *["--images", "40", "--batch-size", "4", "--steps", "2"])
    assert "40 samples once" in found and "parameters are equal on all ranks" in found
    assert ("were skipped: nccl" in found) != ("ms without input" in found)


def test_two_rounds_of_the_soak_lose_nothing_and_leave_nothing(tmp_path):
    assert "2 rounds" in output_of("tools.soak", "--rounds", "2", "--output", tmp_path)
    assert list(tmp_path.iterdir()) == []


def surveys(**grown):
    """Return what forty rounds have found, an hour together, where some values rise by so much each round."""
    start = {
        "seconds": 0.0,
        "MiB": 100.0,
        "MiB, shared pages once": 50.0,
        "blocks of Python": 9,
        "connections": 9,
        **dict.fromkeys(soak.COUNTED, 5),
    }
    grown = {"seconds": 90.0, **{name.replace("_", " "): value for name, value in grown.items()}}
    return [{name: value + number * grown.get(name, 0) for name, value in start.items()} for number in range(40)]


@pytest.mark.parametrize(
    ("grown", "named"),
    [
        ({}, []),
        ({"MiB": 0.1}, []),
        ({"MiB": 0.5}, ["memory by 20.0 MiB an hour"]),
        ({"connections": 3}, []),
        ({"connections": 4}, ["connections to the store, 165 of at most 144"]),
        ({"descriptors": 1}, ["descriptors from 25 to 44"]),
        ({"temporary_files": 1, "threads": 1}, ["threads from 25 to 44", "temporary files from 25 to 44"]),
    ],
)
def test_a_soak_names_what_grows(grown, named):
    assert soak.judge(surveys(**grown)) == named


def archives(folder, wheel_names, sdist_names):
    """Write a wheel and an sdist of empty files, and return them."""
    made = check_release.Archives(folder / "wdsplit-1.whl", folder / "wdsplit-1.tar.gz")
    with zipfile.ZipFile(made.wheel, "w") as wheel:
        for name in wheel_names:
            wheel.writestr(name, "")
    with tarfile.open(made.sdist, "w:gz") as sdist:
        for name in sdist_names:
            sdist.addfile(tarfile.TarInfo(f"wdsplit-1/{name}"), io.BytesIO())
    return made


WHEEL = {"wdsplit/__init__.py", "wdsplit/py.typed", "wdsplit-1.dist-info/licenses/LICENSE"}
SDIST = {"wdsplit/__init__.py", "wdsplit/py.typed", "LICENSE", "pyproject.toml"}


@pytest.mark.parametrize(
    ("wheel", "sdist", "named"),
    [
        (WHEEL - {"wdsplit/py.typed"}, SDIST, "the wheel lacks wdsplit/py.typed"),
        (WHEEL | {"tests/test_x.py"}, SDIST, "the wheel has tests/test_x.py"),
        ({name for name in WHEEL if "LICENSE" not in name}, SDIST, "the wheel lacks LICENSE"),
        (WHEEL, SDIST - {"LICENSE"}, "the sdist lacks LICENSE"),
        (WHEEL, SDIST | {"tools/x.py"}, "the sdist has tools/x.py"),
    ],
)
def test_the_release_check_names_what_archives_lack_and_what_they_have_too_much(tmp_path, wheel, sdist, named):
    package = {"wdsplit/__init__.py", "wdsplit/py.typed"}
    check_release.check_contents(archives(tmp_path, WHEEL, SDIST), package)
    with pytest.raises(check_release.ReleaseError) as caught:
        check_release.check_contents(archives(tmp_path, wheel, sdist), package)
    assert str(caught.value) == named


def test_the_comparison_of_libraries_finds_that_ranks_deliver_and_resume_what_is_promised():
    found = output_of("tools.compare", "--only", "wdsplit")
    assert " | 21, 21, 21 | exact | 8 | 21 of 21 | exact | exact | exact |" in found


def test_figures_of_each_run_are_kept_on_a_branch_with_a_page_of_the_last_ones(tmp_path):
    home = tmp_path / "home.git"
    subprocess.run(["git", "init", "--quiet", "--bare", home], check=True)
    for number in range(14):
        measured = [["load", "rate", "x", "at least 2", f"{number}.5", "0.1"], ["s3", "new", "y", "1", "**2**", "0.1"]]
        run = {"date": f"2026-01-{number + 1:02d}", "commit": f"{number:040d}", "rows": measured[: 1 + number // 13]}
        (tmp_path / "run.json").write_text(json.dumps(run))
        output_of("tools.bench.history", str(tmp_path / "run.json"), "--repository", str(home))

    def kept(name):
        return subprocess.check_output(["git", "-C", home, "show", f"benchmarks:{name}"], text=True)

    assert [json.loads(line)["commit"] for line in kept("runs.jsonl").splitlines()] == [f"{n:040d}" for n in range(14)]
    page = [line.strip("| ").split(" | ") for line in kept("README.md").splitlines() if line.startswith("| ")]
    assert page[0][-1] == "2026-01-14 0000000"
    assert page[2] == ["load", "rate", "x", "at least 2", *(f"{number}.5" for number in range(2, 14))]
    assert kept("README.md").endswith(f"| s3 | new | y | 1 |{' |' * 11} **2** |\n")
