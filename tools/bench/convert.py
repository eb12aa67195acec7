"""Measure `wdsplit convert` side by side with other writers and with `cp` of the same bytes.

Two tables are made: *small* (rows of about 320 bytes of text and an integer label) and *image* (rows of 50 to 150 kB of
incompressible bytes and a label). In each round every contender converts them once, in a process of its own, to the
same kind of place. Printed are medians over the rounds, ratios of medians, processor time, and the most memory that one
process had. More jobs than processors show what a job costs where there are processors for all.
A contender that is not installed is left out (pip install '.[bench]'). The clock starts when the libraries are
imported and stops when the last byte is handed to the system. wdsplit has the environment of its command, which tells
Arrow how to use memory.

Example: python -m tools.bench.convert --output /dev/shm --rounds 5
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench import core, data, peers
from tools.bench.core import Aim, Result
from wdsplit.cli.__main__ import ENVIRONMENT

TABLES = ("small", "image")
BASE, COPY = "webdataset ShardWriter", "cp of the same bytes"
MODULE = "wdsplit.conversion.convert"


def with_wdsplit(source: str, output: str, jobs: int, **plan: Any) -> None:
    from wdsplit import ConvertOptions, convert

    convert(source, output, ConvertOptions(shard_size=peers.SHARD_BYTES, **plan, jobs=jobs))


def with_cp(source: str, output: str) -> None:
    """Copy wdsplit's shards of the same table, which lie beside it."""
    subprocess.run(["cp", "-r", str(Path(source).parent / data.SHARDS), output], check=True)


CONTENDERS: dict[str, tuple[str, Callable[[str, str], None]]] = {
    "wdsplit, 2 jobs": (MODULE, partial(with_wdsplit, jobs=2, shuffle=True)),
    "wdsplit --no-shuffle, 1 job": (MODULE, partial(with_wdsplit, jobs=1, shuffle=False)),
    **{
        f"wdsplit --no-shuffle, {jobs} jobs": (MODULE, partial(with_wdsplit, jobs=jobs, shuffle=False))
        for jobs in (2, 4, 8, 16)
    },
    BASE: ("webdataset", peers.write_webdataset),
    "MosaicML MDSWriter": ("streaming", peers.write_mds),
    "LitData optimize, 2 workers": ("litdata", peers.write_litdata),
    COPY: ("wdsplit", with_cp),
}
AIMS = {
    ("small", "wdsplit, 2 jobs", BASE): 20,
    ("image", "wdsplit --no-shuffle, 2 jobs", BASE): 3,
    ("image", "wdsplit --no-shuffle, 2 jobs", COPY): 0.55,
}
"""How many times as fast as another wdsplit shall be, by table, contender and the other."""


def convert_once(name: str, folder: str) -> Result:
    """Convert the table of a folder; the output is removed after the clock has stopped."""
    module, function = CONTENDERS[name]
    output = f"{folder}/out"
    clock = core.begin(module)
    try:
        function(f"{folder}/{data.SOURCE}", output)
        return {**clock.read(), "megabytes": core.peak_mib()}
    finally:
        shutil.rmtree(output, ignore_errors=True)


def compare(table: str, num_rows: int, folder: Path, rounds: int) -> list[Aim]:
    """Measure all contenders on a table, and print the medians; return what was aimed at."""
    data.MAKERS[table](folder / data.SOURCE, num_rows)
    with_wdsplit(str(folder / data.SOURCE), str(folder / data.SHARDS), jobs=1)
    num_bytes = sum(path.stat().st_size for path in (folder / data.SHARDS).iterdir())
    names = [name for name, (module, _) in CONTENDERS.items() if core.is_installed(name, module)]

    def measure(name: str) -> Result:
        environ = ENVIRONMENT if core.is_wdsplit(name) else None
        return core.in_own_process(convert_once, name, folder, environ=environ)

    results = core.run_rounds(names, rounds, measure)
    medians = {name: core.median_of(runs, lambda result: result["seconds"]) for name, runs in results.items()}
    rows = []
    for name, seconds in medians.items():
        ratios = [f"{medians[base] / seconds:.2f}" if base in medians else "" for base in (BASE, COPY)]
        memory = max(result["megabytes"] for result in results[name])
        busy = core.median_of(results[name], lambda result: result["busy"]) / num_bytes * 1e9
        speed = (f"{seconds:.2f}", f"{num_rows / seconds:,.0f}", f"{num_bytes / seconds / 1e6:,.0f}")
        rows.append((name, *speed, *ratios, f"{busy:.2f}", f"{memory:,.0f}"))
    title = f"{table}: {num_rows:,} rows, {num_bytes / 1e6:,.0f} MB of shards, medians of {rounds}"
    header = ("", "seconds", "rows/s", "MB/s", "x ShardWriter", "x cp", "CPU s/GB", "MiB of memory")
    core.print_table(title, header, rows)
    return [
        Aim(f"{table}: {name}", f"x {base}", f"{aim:g}", f"{medians[base] / medians[name]:.2f}")
        for (of, name, base), aim in AIMS.items()
        if of == table and base in medians
    ]


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--small-rows", type=int, default=400_000, help="Rows of the table small. Default: 400000.")
    parser.add_argument("--image-rows", type=int, default=12_000, help="Rows of the table image. Default: 12000.")
    arguments = parser.parse_args()
    core.print_machine()
    aims = []
    for table, num_rows in zip(TABLES, (arguments.small_rows, arguments.image_rows), strict=True):
        with core.work_folder(arguments.output) as folder:
            if num_rows:
                aims += compare(table, num_rows, folder, arguments.rounds)
    core.print_aims(aims)


if __name__ == "__main__":
    main()
