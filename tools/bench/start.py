"""Measure how long starting takes: Python alone, `import wdsplit`, `--help`, a short conversion and a first batch.

Each is a new process, timed from outside with the interpreter's own start; the first batch is timed inside, after the
import of torch. Each is run once before, so that all modules are compiled. Printed are medians over the rounds, in
seconds.

Example: python -m tools.bench.start --rounds 9
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.bench import core, data
from tools.bench.core import Aim, Result

ROWS = 1_000
PROGRAM = ("-m", "wdsplit.cli")
FIRST_BATCH = """
import sys, time, torch
started = time.perf_counter()
from wdsplit import Dataset, Loader
next(iter(Loader(Dataset(sys.argv[1]), batch_size=64)))
print(time.perf_counter() - started)
"""


def python(*arguments: str) -> str:
    """Run Python; return its output."""
    environ = {**os.environ, "PYTHONPATH": str(core.ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True, env=environ)
    return done.stdout


def timed(*arguments: str) -> float:
    """Return the seconds that Python takes for some arguments."""
    started = time.perf_counter()
    python(*arguments)
    return time.perf_counter() - started


def convert(folder: Path) -> float:
    """Return the seconds of a conversion; its output is removed."""
    output = folder / "out"
    seconds = timed(*PROGRAM, "convert", str(folder / data.SOURCE), str(output))
    shutil.rmtree(output)
    return seconds


def main() -> None:
    arguments = core.parser_of(__doc__).parse_args()
    core.print_machine()
    with core.work_folder(arguments.output) as folder:
        data.make_small(folder / data.SOURCE, ROWS)
        data.make_shards(folder)
        starts: dict[str, tuple[float | None, Callable[[], float]]] = {
            "python, which does nothing": (None, partial(timed, "-c", "")),
            "import wdsplit": (0.25, partial(timed, "-c", "import wdsplit")),
            "wdsplit --help": (0.25, partial(timed, *PROGRAM, "--help")),
            f"wdsplit convert, {ROWS:,} rows": (0.6, partial(convert, folder)),
            "first batch of 64, after `import torch`": (
                0.15,
                lambda: float(python("-c", FIRST_BATCH, str(folder / data.SHARDS))),
            ),
        }

        def measure(name: str) -> Result:
            return {"seconds": starts[name][1]()}

        core.run_rounds(starts, 1, measure)
        results = core.run_rounds(starts, arguments.rounds, measure)
    medians = {name: core.median_of(runs, lambda result: result["seconds"]) for name, runs in results.items()}
    slowest = {name: max(run["seconds"] for run in runs) for name, runs in results.items()}
    rows = [(name, f"{medians[name]:.3f}", f"{slowest[name]:.3f}") for name in medians]
    core.print_table(f"Starting (medians of {arguments.rounds})", ("", "seconds", "slowest"), rows)
    aims = [Aim(name, "seconds", f"at most {aim}", f"{medians[name]:.3f}") for name, (aim, _) in starts.items() if aim]
    core.print_aims(aims)


if __name__ == "__main__":
    main()
