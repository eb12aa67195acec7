"""What a command loads before it can speak, and what it looks like in a terminal."""

import contextlib
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest

import wdsplit
from commands import done
from loaded import modules_loaded_by
from made_datasets import converted, numbers_table
from tables import FULL_PROCESS_BYTES, write_table
from wdsplit.cli import progress
from wdsplit.cli.main import main
from wdsplit.engines import local
from wdsplit.engines.watching import watching

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

HELPS = """
import contextlib, io
from wdsplit.cli import progress
from wdsplit.cli.main import cli
for name in (None, *cli.commands):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        cli.main([*filter(None, [name]), "--help"], standalone_mode=False)
    assert "Usage:" in shown.getvalue()
"""
LARGE = {"numpy", "pyarrow", "torch", "webdataset", "pandas", "rich", "fsspec", "botocore", "multiprocessing"}


def test_help_is_shown_without_loading_what_a_run_needs():
    assert not modules_loaded_by(HELPS) & LARGE


def test_a_command_tells_arrow_how_to_use_memory_unless_the_user_does():
    names = ("MIMALLOC_PURGE_DELAY", "MIMALLOC_ALLOW_THP")
    shown = f"print(*[os.environ[name] for name in {names}])"
    program = f"import atexit, os; from wdsplit.cli.__main__ import main; atexit.register(lambda: {shown}); main()"
    for given, expected in (({}, "-1 0"), (dict.fromkeys(names, "7"), "7 7")):
        environ = {each: text for each, text in os.environ.items() if each not in names} | given
        command = [sys.executable, "-c", program, "--version"]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert ended.stdout.splitlines()[-1] == expected


# Terminals

COLOUR = re.compile(r"\x1b\[[\d;]+m")
GREEN, RED = "\x1b[32m", "\x1b[31m"


def run_and_exit(arguments, width):
    """Run the command line in this process, a fork whose first files are a terminal, and end it."""
    os.environ.update(TERM="xterm", COLUMNS=str(width))
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8") for number in (1, 2))  # noqa: SIM115
    local._PROCESS_BYTES = FULL_PROCESS_BYTES
    code = 1
    try:
        main([*map(str, arguments)])
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def in_terminal(*arguments, code=0, width=80, run=run_and_exit):
    """Run the command line in a terminal, and return all that it writes there, in the order in which it does."""
    pid, master = pty.fork()
    if pid == 0:
        run(arguments, width)
    written = b""
    with contextlib.suppress(OSError):  # at its end
        while piece := os.read(master, 65_536):
            written += piece
    os.close(master)
    shown = written.decode()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code, shown
    return shown


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Leave out what the user wants of colours."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def without_colours(shown):
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown)


def test_verdicts_and_errors_stand_out_in_a_terminal(numbers, tmp_path):
    shown = in_terminal("inspect", tmp_path / "nowhere", code=2)
    assert f"{RED}\x1b[1merror:" in shown and f"{GREEN}  remedy:" in shown
    assert "error: there is no dataset" in without_colours(shown)
    assert f"{RED}\x1b[1merror:" in in_terminal("inspect", code=2)
    copy = shutil.copytree(numbers, tmp_path / "copy")
    (copy / "000003.tar").write_bytes(b"")
    shown = in_terminal("verify", copy, code=1)
    assert f"{RED}\x1b[1mproblem:" in shown and f"{RED}\x1b[1m1 problem in" in shown


def test_headings_and_names_in_a_help_stand_out_in_a_terminal(monkeypatch):
    shown = in_terminal("verify", "--help")
    assert {f"{GREEN}\x1b[1mUsage:", f"{GREEN}\x1b[1mOptions"} <= set(re.findall(r"\x1b\[32m\x1b\[1m\w+:?", shown))
    assert re.search(r"  \x1b\[36m-h, --help\x1b\[0m +Show this message", shown)
    monkeypatch.setenv("COLUMNS", "80")
    assert done("verify", "--help").out == without_colours(shown).replace("\r\n", "\n")


def test_pipes_get_colours_only_if_they_are_forced(numbers, monkeypatch):
    assert not COLOUR.search(done("audit", numbers).out)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"{GREEN}ok:" in done("verify", numbers).out, "and no progress bar"
    assert not COLOUR.search(done("audit", numbers, "--json").out)


def test_a_terminal_shows_a_progress_bar_with_rates(tmp_path):
    table, output = write_table(tmp_path / "in.parquet", numbers_table(2000), rows_per_group=500), tmp_path / "out"
    shown = without_colours(in_terminal("convert", table, output, "--shards", 4, "--jobs", 1, width=160))
    assert re.search(
        r"planning .*1/2 shuffling .*2/2 writing .*4/4 shards +[\d,]+ samples/s, [\d.]+ [kM]?B/s", shown, re.DOTALL
    )
    assert f"{output}: 4 shards, 2,000 samples" in shown


def test_a_report_shows_that_it_works(numbers, tmp_path):
    def run(arguments, width):  # threads of the library that draws, which this process may have, are not in a fork
        os.execv(sys.executable, [sys.executable, "-m", "wdsplit.cli", *map(str, arguments)])

    shown = without_colours(in_terminal("report", numbers, "-o", tmp_path / "report.html", run=run))
    assert "making the page" in shown and "report.html:" in shown


@pytest.mark.parametrize(("level", "num_lines"), [(logging.WARNING, 2), (logging.INFO, 5)])
def test_outside_of_a_terminal_a_long_command_prints_lines_with_the_time_left(
    capsys, caplog, monkeypatch, level, num_lines
):
    now = [0.0]
    caplog.set_level(level, "wdsplit")
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress.progress_bar("planning") as bar:
        for done, now[0] in ((0, 1.0), (2, 9.0), (3, 13.0), (4, 17.0), (6, 25.0), (8, 33.0)):
            bar.update(done, 8, "2/2 writing", "shards", bytes=done * 1_000_000)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == num_lines
    assert {
        "2/2 writing: 3/8 shards, 250.0 kB/s, 00:20 left",
        "2/2 writing: 6/8 shards, 250.0 kB/s, 00:08 left",
    } <= set(said)


@pytest.mark.parametrize("command", ["annotate", "map", "erase"])
def test_the_passes_of_long_commands_are_numbered_and_count_something(tmp_path, monkeypatch, command):
    data = converted(tmp_path, numbers_table(50), shards=2)
    (tmp_path / "keys.txt").write_text("00000001\n")
    (tmp_path / "ones.py").write_text("def one(sample):\n    return {'one': 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    keys = [f"{row:08d}" for row in range(50)]
    table = write_table(tmp_path / "more.parquet", pa.table({"id": keys, "extra": range(50)}))
    arguments = {
        "annotate": (table, "--key", "id"),
        "map": ("ones:one", "--name", "ones", "--jobs", 1),
        "erase": ("--keys", tmp_path / "keys.txt"),
    }[command]
    shown = []
    monkeypatch.setattr(progress.Bar, "update", lambda _, done, total, what, unit, **more: shown.append((what, unit)))
    done(command, data, *arguments)
    passes = list(dict.fromkeys(what for what, _ in shown))
    last = passes[-1].split("/")[1][0]
    assert passes[0].startswith(f"1/{last} ") and passes[-1].startswith(f"{last}/{last} ")
    assert all(unit for _, unit in shown)


def test_lines_end_between_words_where_the_terminal_ends(numbers, tmp_path):
    shards = converted(tmp_path, numbers_table(200), shards=40)
    for command in (("audit", numbers, "--world-size", 2, "--batch-size", 5), ("assign", shards)):
        piped, shown = done(*command).out, without_colours(in_terminal(*command))
        lines = shown.replace("\r\n", "\n").splitlines()
        assert max(map(len, lines)) <= 80 < max(map(len, piped.splitlines()))
        assert " ".join(piped.split()) in " ".join(shown.split())
    assert "(40 in total)" in " ".join(shown.split())
    assert lines[2].startswith(" " * lines[0].index("shards"))


def test_what_precedes_the_passes_is_watched(tmp_path):
    table = pa.table({"row": range(9), "label": ["a", "b", "c"] * 3})
    paths = [write_table(tmp_path / f"{number}.parquet", table) for number in range(3)]
    options, seen = wdsplit.ConvertOptions(where="row > 3"), []
    with watching(lambda *progress: seen.append(progress)):
        wdsplit.plan(paths, options)
    files = [each for each in seen if each[0] != "counting classes"]
    assert files == [(what, done, 3) for what in ("opening files", "counting rows") for done in range(4)]
    assert ("counting classes", 3, 3) in seen


def test_the_samples_of_a_batch_fit_80_columns(tmp_path):
    names = [f"{row:03d}-{'very-long-key-' * 9}" for row in range(30)]
    table = pa.table({"id": names, "label": [f"class of things {row % 3} with a long name" for row in range(30)]})
    path = converted(tmp_path, table, key="id", mapping={"cls": "label"})
    shown = COLOUR.sub("", in_terminal("batch", path, "--step", 0, "--world-size", 2, "--batch-size", 2))
    rows = shown.splitlines()[-4:]
    assert all(re.match(r"[01] +\d+ +0000\d\d\.tar +class of things", row) for row in rows)
    assert max(map(len, rows)) <= 80
