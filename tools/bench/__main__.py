"""Run the benchmarks one after another, and print at the end in one table what was aimed at and what was measured.

Each is a process of its own: all tables are those that it prints by itself. Everything takes an hour and a half on
two processors, which must have nothing else to do.

Examples:
    python -m tools.bench --output /dev/shm
    python -m tools.bench --output /dev/shm --only start,load --rounds 9
"""

from __future__ import annotations

import os
import subprocess
import sys

from tools.bench import core

RUNS = {
    "start": (),
    "convert": (),
    "load": ("--part", "small,image,jpeg,webp,png"),
    "views": (),
    "packing": ("--rounds", "3"),
    "grow": ("--rounds", "3"),
    "billion": ("--rounds", "3"),
    "s3": ("--parts", "get,stream,link,cost", "--names", "wdsplit,pyarrow,botocore,webdataset through,MosaicML"),
    "imagenet": ("--rounds", "3"),
}
"""Modules, and their arguments."""


def aims_of(name: str, arguments: list[str]) -> list[str]:
    """Run a benchmark; return the rows of its table of aims, which it prints last; none if it has no aims."""
    command = [sys.executable, "-m", f"tools.bench.{name}", *arguments]
    print(f"\n## {' '.join(command[1:])} (load {os.getloadavg()[0]:.1f})\n", flush=True)
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=core.ROOT) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if running.returncode:
        raise SystemExit(f"{name} failed")
    header = 4  # the title, an empty line, the columns, and the line below them
    return lines[lines.index("Aims\n") + header :] if "Aims\n" in lines else []


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--only", default=",".join(RUNS), help=f"Some of {','.join(RUNS)}. Default: all.")
    options = parser.parse_args()
    shared = ["--rounds", str(options.rounds), *(["--output", str(options.output)] if options.output else [])]
    rows = [row for name in options.only.split(",") for row in aims_of(name, [*shared, *RUNS[name]])]
    core.print_table("All aims", ("", "", "aim", "measured"), (row.strip("| \n").split(" | ") for row in rows), names=2)


if __name__ == "__main__":
    main()
