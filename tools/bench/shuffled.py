"""Compare converting with --no-shuffle, shuffled in memory, and shuffled by a spill of a table larger than memory.

All are measured side by side, each in a process of its own, with the same jobs. Printed are medians of seconds and of
processor seconds, and what share of the speed of --no-shuffle they are. They have the environment of the command, which
tells Arrow how to use memory.

Example: python -m tools.bench.shuffled --output /dev/shm
"""

from __future__ import annotations

import shutil
from operator import itemgetter
from pathlib import Path

from tools.bench import core, data
from tools.bench.core import Aim, Result
from wdsplit.cli.__main__ import ENVIRONMENT

TABLES = {"image": "0.7", "small": "0.8"}
"""Tables, and what is aimed at in memory."""
SPILLED_AIM = "0.4"
BASE, IN_MEMORY, SPILLED = "wdsplit --no-shuffle", "wdsplit, in memory", "wdsplit, spilled"
SHARD_BYTES = 64_000_000
LITTLE_MEMORY, MUCH_MEMORY = 600 * 1024**2, 16 * 1024**3


def convert_once(name: str, folder: str, jobs: int) -> Result:
    """Convert the table of a folder; the output is removed after the clock has stopped."""
    output = f"{folder}/out"
    clock = core.begin("wdsplit", "wdsplit.conversion.convert")
    from wdsplit import ConvertOptions, convert

    options = ConvertOptions(shard_size=SHARD_BYTES, shuffle=name != BASE)
    memory = LITTLE_MEMORY if name == SPILLED else MUCH_MEMORY
    try:
        convert(f"{folder}/{data.SOURCE}", output, options, jobs=jobs, memory=memory)
        return {**clock.read(), "megabytes": core.peak_mib()}
    finally:
        shutil.rmtree(output, ignore_errors=True)


def compare(table: str, num_rows: int, folder: Path, rounds: int, jobs: int) -> list[Aim]:
    """Measure all on a table, and print the medians; return what was aimed at."""
    data.MAKERS[table](folder / data.SOURCE, num_rows)
    names = (BASE, IN_MEMORY, SPILLED)

    def measure(name: str) -> Result:
        return core.in_own_process(convert_once, name, str(folder), jobs, environ=ENVIRONMENT)

    results = core.run_rounds(names, rounds, measure)
    medians = {
        name: [core.median_of(runs, itemgetter(of)) for of in ("seconds", "busy")] for name, runs in results.items()
    }
    ratios = {name: [base / own for base, own in zip(medians[BASE], medians[name], strict=True)] for name in names}
    rows = []
    for name in names:
        times = [f"{value:.2f}" for value in (*medians[name], *ratios[name])]
        rows.append((name, *times, f"{max(run['megabytes'] for run in results[name]):,.0f}"))
    title = f"{table}: {num_rows:,} rows, {jobs} jobs, medians of {rounds}"
    header = ("", "seconds", "processor s", "x --no-shuffle", "x by processor s", "MiB of memory")
    core.print_table(title, header, rows)
    aims = {IN_MEMORY: TABLES[table], SPILLED: SPILLED_AIM}
    return [Aim(f"{table}: {name}", BASE, aim, f"{ratios[name][0]:.2f}") for name, aim in aims.items()]


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--small-rows", type=int, default=400_000, help="Rows of the table small. Default: 400000.")
    parser.add_argument("--image-rows", type=int, default=12_000, help="Rows of the table image. Default: 12000.")
    parser.add_argument("--jobs", type=int, default=2, help="Jobs. Default: 2.")
    arguments = parser.parse_args()
    core.print_machine()
    aims = []
    for table, num_rows in zip(TABLES, (arguments.image_rows, arguments.small_rows), strict=True):
        with core.work_folder(arguments.output) as folder:
            if num_rows:
                aims += compare(table, num_rows, folder, arguments.rounds, arguments.jobs)
    core.print_aims(aims)


if __name__ == "__main__":
    main()
