"""Add the figures of a run of `tools.bench` to those of earlier runs, on the branch "benchmarks" of a repository.

That branch has a line for each run in runs.jsonl, and a table of the last ones in README.md: a column for each run.
It is made with the first run, and pushed without force, so that no line is lost.

Example: python -m tools.bench.history build/benchmarks.json --repository https://github.com/wdsplit/wdsplit
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tools.bench import core

BRANCH = "benchmarks"
SHOWN = 12
NO_SUCH_BRANCH = 2
"""What `git ls-remote --exit-code` returns then; other codes are errors."""
HEAD = """# Benchmarks

Figures of the programs that [docs/benchmarks.md](../main/docs/benchmarks.md) describes, with date and commit.
The newest run is at the right. Bold misses the aim. `runs.jsonl` has all runs, and the load of the machine.

"""


def git(*words: str | Path, folder: Path | None = None) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True)


def open_branch(repository: str, folder: Path) -> None:
    """Clone the branch into a folder, or begin it there."""
    command = ["git", "ls-remote", "--quiet", "--exit-code", "--heads", repository, BRANCH]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode == NO_SUCH_BRANCH:
        git("init", "--quiet", f"--initial-branch={BRANCH}", folder)
    else:
        git("clone", "--quiet", "--depth=1", f"--branch={BRANCH}", repository, folder)


def page_of(runs: list[dict[str, Any]]) -> str:
    """Return the page: a row for each figure of the last run, and what each run has measured."""
    measured = [{tuple(row[:3]): row[4] for row in run["rows"]} for run in runs]
    header = ["", "", "", "aim", *(f"{run['date']} {run['commit'][:7]}" for run in runs)]
    rows = [[*row[:4], *(run.get(tuple(row[:3]), "") for run in measured)] for row in runs[-1]["rows"]]
    return HEAD + "\n".join(core.table_lines(header, rows, 3)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="The file that --json of tools.bench has written.")
    parser.add_argument("--repository", required=True, metavar="URL", help="Where the branch is.")
    options = parser.parse_args()
    run = json.loads(options.run.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        open_branch(options.repository, folder)
        with open(folder / "runs.jsonl", "a+") as lines:
            lines.write(json.dumps(run) + "\n")
            lines.seek(0)
            runs = list(map(json.loads, lines))
        (folder / "README.md").write_text(page_of(runs[-SHOWN:]))
        git("add", ".", folder=folder)
        author = ("-c", "user.name=benchmarks", "-c", "user.email=benchmarks@users.noreply.github.com")
        git(*author, "commit", "--quiet", "-m", f"Benchmarks of {run['commit']}", folder=folder)
        git("push", "--quiet", options.repository, BRANCH, folder=folder)


if __name__ == "__main__":
    main()
