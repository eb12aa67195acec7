"""The guides in docs/ say what is so: their Python runs, and their commands print what is shown.

Of a guide, in order: ```python blocks run in one namespace, and print what a ```text block after them shows; one that
begins with `# NAME.py` is saved under that name instead. The commands of ```console blocks run. `...` in what is shown
stands for anything. ```sh blocks do not run: their options and files are looked up. What a guide marks as not run, or
as needing a library that is not installed, only has to compile.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from documents import OPTIONS
from paths import ROOT
from tables import start_process
from wdsplit.cli.main import cli

pytestmark = pytest.mark.xdist_group("guides")

DOCS = ROOT / "docs"
GUIDES = sorted(path.name for path in DOCS.glob("*.md"))
FROM_NOTHING = "quick-start.md"
"""Makes its own data; the others find `raw`, `data/train` and `data/val`."""

CELL = re.compile(r"^(?:<!-- (?P<note>[^>]*) -->\n+)?```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
NOT_RUN = "not run by the tests"
COMMAND_S = 250


@dataclass(frozen=True)
class Cell:
    """A block of code of a guide: what it is, what it holds, and whether it is run."""

    kind: str
    code: str
    is_run: bool


def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


def is_run(note):
    """Tell whether a block with a note is run."""
    library = re.match(r"needs (\w+)", note)
    return NOT_RUN not in note and (library is None or importlib.util.find_spec(library[1]) is not None)


def cells_of(document):
    cells = [Cell(found["kind"], found["code"], is_run(found["note"] or "")) for found in CELL.finditer(document)]
    assert len(cells) == len(FENCE.findall(document)), "a block does not say what it is"
    return cells


def matches(shown, printed):
    """Tell whether what was printed is what is shown, where `...` is anything."""
    pieces = map(re.escape, "\n".join(line.rstrip() for line in shown.strip().splitlines()).split("..."))
    printed = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(".*?".join(pieces), printed, re.S) is not None


def commands_of(code):
    """Return the commands of a console block, each with what it is shown to print."""
    parts = re.split(r"^\$ ", code.replace("\\\n", " "), flags=re.M)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def sh_commands_of(code):
    """Return the words of each command of an sh block."""
    lines = [shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines()]
    return [words for words in lines if words]


def run_command(command, folder):
    """Run a command and return what it printed, with its errors."""
    words = shlex.split(command)
    if words[0] == "wdsplit":
        return CliRunner().invoke(cli, words[1:]).output
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    running = start_process(words, cwd=folder, env=environ, stderr=subprocess.STDOUT)
    try:
        return running.communicate(timeout=COMMAND_S)[0]
    except subprocess.TimeoutExpired:
        running.terminate()  # torchrun then ends its ranks
        return running.communicate(timeout=COMMAND_S)[0] + "and did not end"


def run_guide(guide, folder):
    """Run the blocks of a guide; return how many were run."""
    names, printed, done = {"__name__": "guide"}, None, 0
    for cell in cells_of(text_of(guide)):
        if cell.kind == "text" and cell.is_run and printed is not None:
            assert matches(cell.code, printed), f"{guide} shows:\n{cell.code}\nbut this was printed:\n{printed}"
        if cell.kind == "python" and (saved := re.match(r"# (\w+\.py)\n", cell.code)):
            (folder / saved[1]).write_text(cell.code, encoding="utf-8")
        elif cell.kind == "python" and cell.is_run:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(cell.code, guide, "exec"), names)
            done += 1
            printed = out.getvalue()
            continue
        elif cell.kind == "console" and cell.is_run:
            for command, shown in commands_of(cell.code):
                output = run_command(command, folder)
                assert matches(shown, output), f"{guide} shows:\n$ {command}\n{shown}\nbut it printed:\n{output}"
                done += 1
        printed = None
    return done


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder as the guides take it: the examples, a table of digits, and two datasets made of it."""
    folder = tmp_path_factory.mktemp("guides")
    run_command(f"{sys.executable} {ROOT / 'examples' / 'make_digits.py'} raw", folder)
    for name, table in (("train", "train-*"), ("val", "test-*")):
        run_command(
            f"wdsplit convert {folder}/raw/{table}.parquet {folder}/data/{name} --world-size 2 --workers 2", folder
        )
    assert (folder / "data" / "val" / "wdsplit.json").exists()
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch, request):
    if request.node.callspec.params["guide"] != FROM_NOTHING:
        shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def has_runnable(guide):
    return any(cell.is_run and cell.kind in ("python", "console") for cell in cells_of(text_of(guide)))


RUNNABLE = [guide for guide in GUIDES if has_runnable(guide)]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its tars open
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(rdflib|mlcroissant)")
@pytest.mark.parametrize("guide", RUNNABLE)
def test_a_guide_runs_and_prints_what_it_shows(guide, folder):
    assert run_guide(guide, folder)


def test_there_are_guides_that_run():
    assert len(RUNNABLE) >= 6


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_of_a_guide_have_the_options_and_files_that_they_name(guide):
    for cell in cells_of(text_of(guide)):
        commands = sh_commands_of(cell.code) if cell.kind == "sh" else []
        if cell.kind == "console":
            commands = [shlex.split(command) for command, _ in commands_of(cell.code)]
        for words in commands:
            assert unknown_in(words) == [], " ".join(words)


def unknown_in(words):
    """Return the options of a command that it has not, and the files of the project that are not there."""
    missing = [word for word in words if re.match(r"(examples|tools|tests)/", word) and not (ROOT / word).exists()]
    if missing:
        return missing
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if words[0] == "wdsplit" and words[1] in cli.commands:
        return [option for option in options if (words[1], option) not in OPTIONS]
    scripts = [place for place, word in enumerate(words) if word.startswith("examples/") and word.endswith(".py")]
    if not scripts:
        return []
    own = [word.partition("=")[0] for word in words[scripts[0] :] if word.startswith("--")]
    folder = (ROOT / words[scripts[0]]).parent
    sources = [ROOT / words[scripts[0]], *folder.glob("image_task.py"), *folder.glob("common.py")]
    known = {name for path in sources for name in re.findall(r'"(--[\w-]+)"', path.read_text(encoding="utf-8"))}
    return [option for option in own if option not in known]


def test_what_is_shown_may_leave_things_out_and_no_more():
    assert matches("a ... c\n", "a b\nb c")
    assert not matches("a ... c", "a b")
    assert not matches("a", "a b")


def test_options_and_files_that_are_not_there_are_found():
    assert unknown_in(["wdsplit", "audit", "x", "--ranks", "2"]) == ["--ranks"]
    assert unknown_in(["wdsplit", "audit", "x", "--read"]) == []
    assert unknown_in(["python", "examples/none.py"]) == ["examples/none.py"]
    assert unknown_in(["torchrun", "--standalone", "examples/train_images.py", "--no-such"]) == ["--no-such"]
