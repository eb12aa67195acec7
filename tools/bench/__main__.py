"""Run the benchmarks one after another, and print at the end in one table what was aimed at and what was measured.

Each is a process of its own: all tables are those that it prints by itself. Everything takes an hour and a half on
two processors, which must have nothing else to do. With --page, docs/benchmarks.md has the table: the rows of the
benchmarks that ran are written, others stay. It has one row for all ways in which something was done.
tools/bench/history.py keeps what --json writes.

Examples:
    python -m tools.bench --output /dev/shm --page
    python -m tools.bench --output /dev/shm --only start,load --rounds 9
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.bench import core

RUNS = {
    "start": (),
    "convert": (),
    "shuffled": ("--rounds", "3"),
    "load": ("--part", "small,image,jpeg,webp,png", "--readers", "wdsplit,LitData,webdataset,TurboLoader"),
    "views": (),
    "random_access": ("--rounds", "3"),
    "packing": ("--rounds", "3"),
    "grow": ("--rounds", "3"),
    "billion": ("--rounds", "3"),
    "s3": ("--parts", "get,stream,link,cost", "--names", "wdsplit,pyarrow,botocore,webdataset through,MosaicML"),
    "imagenet": ("--rounds", "3"),
}
"""Modules, and their arguments: of the peers those that were fastest, as the others take hours."""
PAGE = core.ROOT / "docs" / "benchmarks.md"
COLUMNS = ("", "", "", "aim", "measured", "load")
NAMES = 3
"""The columns on the left: the benchmark, what was measured, and what it was compared with."""


def aims_of(name: str, arguments: list[str]) -> list[list[str]]:
    """Run a benchmark; return its rows of the table: what it prints last as its aims, none if it has none."""
    command, load = [sys.executable, "-m", f"tools.bench.{name}", *arguments], os.getloadavg()[0]
    print(f"\n## {' '.join(command[1:])} (load {load:.1f})\n", flush=True)
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=core.ROOT) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if running.returncode:
        raise SystemExit(f"{name} failed")
    header = 4  # the title, an empty line, the columns, and the line below them
    aims = map(core.cells_of, lines[lines.index("Aims\n") + header :] if "Aims\n" in lines else [])
    return [
        [name, what, base, aim, f"**{measured}**" if is_missed(aim, measured) else measured, f"{load:.1f}"]
        for what, base, aim, measured in aims
    ]


def is_missed(aim: str, measured: str) -> bool:
    """Tell whether a figure misses an aim such as `0.7`, `rate at least 0.5`, `at most 1.2` or `below 3`."""
    wanted, found = (float(re.findall(r"[\d.]+", text.replace(",", ""))[0]) for text in (aim, measured))
    return found > wanted if re.search("at most|below", aim) else found < wanted and "about" not in aim


def merged(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Make one row of those that differ in how something was done, which stands after a colon."""
    groups: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name, what, base, *figures in rows:
        title, _, way = what.partition(": ")
        groups.setdefault((name, title, base), []).append((way, *figures))
    found = []
    for (name, title, base), group in groups.items():
        ways, aims, measured, loads = map(list, zip(*group, strict=True))
        what = ": ".join(filter(None, (title, " / ".join(ways))))
        aim = " / ".join(aims if len(set(aims)) > 1 else aims[:1])
        found.append([name, what, base, aim, " / ".join(measured), loads[0]])
    return found


def write_page(rows: list[list[str]]) -> None:
    """Write rows into the table of the page; those of other benchmarks stay as they are."""
    text = PAGE.read_text()
    begin = text.index(core.table_line(COLUMNS))
    end = text.index("\n\n", begin)
    ran = {row[0] for row in rows}
    kept = [row for row in map(core.cells_of, text[begin:end].splitlines()[2:]) if row[0] not in ran]
    ordered = sorted([*kept, *merged(rows)], key=lambda row: [*RUNS].index(row[0]))
    PAGE.write_text(text[:begin] + "\n".join(core.table_lines(COLUMNS, ordered, NAMES)) + text[end:])


def write_json(path: Path, rows: list[list[str]]) -> None:
    """Write rows with the date, the commit and the machine."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=core.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    run = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit.stdout.strip()}
    run |= {"python": platform.python_version(), "system": platform.platform()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**run, "processors": os.cpu_count(), "rows": rows}, indent=1))


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--only", default=",".join(RUNS), help=f"Some of {','.join(RUNS)}. Default: all.")
    parser.add_argument("--page", action="store_true", help=f"Write the table into {PAGE.relative_to(core.ROOT)}.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write the table into a file, with the commit.")
    options = parser.parse_args()
    shared = ["--rounds", str(options.rounds), *(["--output", str(options.output)] if options.output else [])]
    rows = [row for name in options.only.split(",") for row in aims_of(name, [*shared, *RUNS[name]])]
    core.print_table("All aims", COLUMNS, rows, NAMES)
    if options.page:
        write_page(rows)
    if options.json:
        write_json(options.json, rows)


if __name__ == "__main__":
    main()
