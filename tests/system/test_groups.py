import subprocess
import sys

from paths import SUPPORT

CONFTEST = f"""
import sys
sys.path.append({str(SUPPORT)!r})
from groups import GroupScheduling
def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
FILE = """
import os, pathlib, time
import pytest
{mark}
@pytest.mark.parametrize("number", range(6))
def test(number):
    time.sleep(0.02)
    with open(pathlib.Path(__file__).with_suffix(".txt"), "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_tests_of_a_group_run_in_one_process_and_others_where_there_is_time(tmp_path):
    mark = 'pytestmark = pytest.mark.xdist_group("{}")'
    marks = {"test_a": mark.format("one"), "test_b": mark.format("one"), "test_c": "", "test_d": mark.format("two")}
    for name, text in {**{name: FILE.format(mark=mark) for name, mark in marks.items()}, "conftest": CONFTEST}.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    ended = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    workers = {name: (tmp_path / f"{name}.txt").read_text().split() for name in marks}
    assert [len(workers[name]) for name in marks] == [6] * 4
    assert len({*workers["test_a"], *workers["test_b"]}) == 1
    assert len({*workers["test_d"]}) == 1
    assert {*workers["test_a"], *workers["test_c"], *workers["test_d"]} == {"gw0", "gw1"}
