"""Ctrl-C, and SIGTERM, by which batch systems, Kubernetes and systemd end programs: a command ends as by Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest

import wdsplit
from faults import Hold
from made_datasets import numbers_table
from tables import (
    DEADLINE_S,
    PROGRAM_WITH_PROCESSES,
    files_of,
    session_processes,
    start_process,
    start_script,
    wait_until,
    without_progress,
    write_table,
)
from wdsplit.cli.main import main
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.shards.manifest import HEADER_NAME
from wdsplit.storage.local import is_temporary

PROGRAM = [sys.executable, "-m", "wdsplit.cli"]
WITH_PROCESSES = [sys.executable, "-c", PROGRAM_WITH_PROCESSES]
SHARDS = 1000
HINT = "published shards are kept; continue with the same command and --resume"
ENDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "in.parquet", numbers_table(SHARDS), rows_per_group=1)


@pytest.fixture
def json_table(tmp_path):
    """Return a table whose jobs are processes, because they write JSON."""
    rows = numbers_table(SHARDS).append_column("json", pa.array([{"x": 1}] * SHARDS))
    return write_table(tmp_path / "json.parquet", rows, rows_per_group=1)


def conversion(table, output):
    return ["convert", table, output, "--no-shuffle", "--shards", SHARDS, "--jobs", 2]


def wait_for(condition, process, what):
    def is_there():
        assert process.poll() is None, process.communicate()
        return condition()

    wait_until(is_there, what)


def wait_for_shards(process, output):
    wait_for(lambda: len(list(output.glob("*.tar"))) >= 10, process, "10 shards are published")


def ended(process):
    """Wait for the end of all processes of a program; return its exit code and what it has said."""
    out, err = process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not session_processes(process.pid), "all processes have ended")
    assert "Traceback" not in err
    return process.returncode, out, without_progress(err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "kill", "number"),
    [
        ("table", os.kill, signal.SIGTERM),
        ("json_table", os.kill, signal.SIGTERM),
        ("json_table", os.killpg, signal.SIGINT),
    ],
)
def test_a_conversion_leaves_nothing_temporary_and_says_how_to_resume(request, tmp_path, kind, kill, number):
    """By threads and by processes; the command alone is told, or all its processes, as by systemd and terminals."""
    table, output = request.getfixturevalue(kind), tmp_path / "out"
    process = start_process([*WITH_PROCESSES, *conversion(table, output)])
    wait_for_shards(process, output)
    kill(process.pid, number)
    code, out, err = ended(process)
    assert (code, out) == (128 + number, "")
    assert re.fullmatch(rf"(?:warning: [\d,]+ shards .*\n)?{HINT}\n\n{ENDS[number]}\n", err), err
    assert not (output / HEADER_NAME).exists()
    assert not [path for path in output.rglob("*") if is_temporary(path.name)]
    code, out, _ = ended(start_process([*PROGRAM, *conversion(table, output), "--resume"]))
    assert code == 0
    assert re.search(r"resumed: [1-9][\d,]* shards existed already", out)
    wdsplit.convert(table, tmp_path / "undisturbed", ConvertOptions(shards=SHARDS, shuffle=False))
    assert files_of(output) == files_of(tmp_path / "undisturbed")


def test_ctrl_c_while_the_processes_start_is_no_traceback(json_table, tmp_path):
    process = start_process([*WITH_PROCESSES, *conversion(json_table, tmp_path / "out")])
    wait_until(lambda: len(session_processes(process.pid)) >= 3, "a worker process has been started")
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out, err.splitlines()[-1]) == (130, "", "interrupted")


def test_a_command_that_ignores_ctrl_c_ends_too(table, tmp_path):
    """Shells start what runs in their background so."""
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    process = start_process([*background, *PROGRAM, *conversion(table, tmp_path / "out")])
    wait_for_shards(process, tmp_path / "out")
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert process.poll() is None
    process.terminate()
    assert ended(process)[0] == 143


@pytest.mark.slow
def test_a_program_that_was_told_to_ignore_sigterm_does(table, tmp_path):
    output = tmp_path / "out"
    process = start_process(["sh", "-c", 'trap "" TERM; exec "$@"', "sh", *PROGRAM, *conversion(table, output)])
    wait_for_shards(process, output)
    process.terminate()
    assert ended(process)[0] == 0 and (output / HEADER_NAME).exists()


STEPPING = """
import sys, time
from wdsplit.cli.main import main
from wdsplit.engines import local

local._LOOK_S = 0.05

def announced(seconds, sleep=time.sleep):
    print("a step", flush=True)
    sleep(seconds)

time.sleep = announced
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_workers_of_a_loader_end_with_the_command(numbers):
    bench = ["bench", numbers, "--workers", 2, "--batch-size", 1, "--step-ms", 1000 * DEADLINE_S]
    process = start_script(STEPPING, *bench)
    assert process.stdout.readline() == "a step\n"
    assert len(session_processes(process.pid)) >= 3
    process.terminate()
    code, _, err = ended(process)
    assert (code, err.splitlines()[-1]) == (143, "ended by SIGTERM")


def test_a_check_ends_with_its_code_and_handlers_are_what_they_were(numbers, monkeypatch, capsys):
    def terminated(*arguments, **keywords):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(DEADLINE_S)

    monkeypatch.setattr("wdsplit.checks.verify.verify", terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as code:
        main(["verify", str(numbers)])
    assert (code.value.code, capsys.readouterr().err) == (143, "\nended by SIGTERM\n")
    assert signal.getsignal(signal.SIGTERM) is before


LOST = """
import os, signal, sys, time
from wdsplit.cli.signals import sigterm_as_ctrl_c

def receive():
    if not received:
        signal.raise_signal(getattr(signal, sys.argv[1]))
        time.sleep(0)

received = []
os.register_at_fork(after_in_parent=receive)
try:
    with sigterm_as_ctrl_c() as received:
        if os.fork() == 0:
            os._exit(0)
        received.append(0)
        time.sleep(float(sys.argv[2]))
    time.sleep(0.3)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("name", "seconds", "said"), [("SIGTERM", 600, ""), ("SIGINT", 600, ""), ("SIGTERM", 0, "not ")]
)
def test_a_signal_that_comes_while_a_worker_is_forked_is_not_lost_nor_raised_after_the_command(name, seconds, said):
    """Python ignores what callbacks of a fork raise, and a loader without persistent workers forks all the time."""
    command = [sys.executable, "-c", LOST, name, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.stdout, done.stderr) == (f"{said}interrupted\n", "")


INTERRUPTED_IMPORT = """
import sys
import threading

class Interrupted:
    times = 0

    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt
            raise ImportError("cannot load module more than once per process")

interrupted, *sys.argv[1:] = sys.argv[1:]
sys.meta_path.insert(0, Interrupted())
from wdsplit.cli.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["click", "numpy"])
def test_ctrl_c_while_python_imports_gives_no_traceback(table, tmp_path, name):
    """A library of C that was interrupted cannot be imported again."""
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, name, "convert", table, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_the_library_leaves_signals_alone(tmp_path):
    table = write_table(tmp_path / "in.parquet", numbers_table(40))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen = []

    def look(progress):
        seen.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])

    wdsplit.convert(table, tmp_path / "out", ConvertOptions(shards=4, jobs=2), look)
    assert seen and all(handlers == before for handlers in seen)


def test_ctrl_c_that_leaves_a_lock_of_threading_released_is_no_traceback(numbers, capsys):
    def interrupted():
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    with pytest.raises(SystemExit) as caught:
        main(["verify", str(numbers)], interrupted)
    assert caught.value.code == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


@pytest.fixture
def silent_store(bucket, fault_proxy, numbers):
    """Return the URL of a dataset, and the proxy before its store, which waits forever."""
    bucket.put(numbers, "numbers")
    write_table(bucket.folder / "in.parquet", numbers_table(100))
    return bucket.url, fault_proxy


SOON = """
from wdsplit.cli import signals
from wdsplit.cli.__main__ import main

signals._END_S = 0.2
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "silent", "num_requests", "number"),
    [
        ("verify {}/numbers --jobs 2", ".tar", 2, signal.SIGTERM),
        ("inspect {}/numbers", "", 1, signal.SIGINT),
        ("convert {}/in.parquet {}/out", ".parquet", 1, signal.SIGINT),
    ],
)
def test_a_command_ends_while_its_store_is_silent(silent_store, arguments, silent, num_requests, number):
    """Threads that wait for an answer cannot be interrupted, and Python would wait for them."""
    url, proxy = silent_store
    silence = Hold(threading.Event())
    proxy.plan = lambda request: silence if silent in request.path else None
    process = start_script(SOON, *arguments.replace("{}", url).split())
    wait_for(
        lambda: [each.fault for each in proxy.exchanges].count(silence) >= num_requests,
        process,
        "requests are not answered",
    )
    process.send_signal(number)
    code, out, err = ended(process)
    assert (code, out) == (128 + number, "")
    assert err.splitlines()[-1] == ENDS[number]
