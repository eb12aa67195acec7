"""Measure what the ranks of a cluster ask of one S3 server, through a link of a given rate, beside what a report says.

All ranks are threads of one process, each with a dataset of its own, and read an epoch at the same time. The server is
rclone's, on this machine; its log has the requests, and the link counts the bytes that pass, with the headers of HTTP
and TCP. Needs root, because the link is a network of its own; without it nothing limits the rate, and no bytes are
counted. Prints a Markdown table.

Example: python -m tools.bench.cluster --output /dev/shm --ranks 64 --links 500,1000
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.bench import core, data, link
from tools.bench.core import Result
from tools.bench.data import SOURCE
from tools.bench.peers import BUCKETS, URL

SAMPLES, RANKS, LINKS = 4096, 64, (500, 1000)
BATCH_SIZE = 16


def epoch(ranks: int, megabits: int, step_ms: float) -> Result:
    """Read an epoch by all ranks at once; return what was read, in which time, and what a report predicts."""
    import wdsplit
    from wdsplit.reporting.cluster import Cluster, Topology
    from wdsplit.reporting.subject import Subject
    from wdsplit.reporting.topologies import loads

    clock = core.begin("torch", "wdsplit.loading.loader", "botocore.session")

    def read(rank: int) -> int:
        return sum(1 for sample in wdsplit.Dataset(URL, rank=rank, world_size=ranks) if not sample["__pad__"])

    with ThreadPoolExecutor(ranks) as pool:
        samples = sum(pool.map(read, range(ranks)))
    found = {**clock.read(), "samples": samples}
    cluster = Cluster(link_gbits=(megabits or 10**6) / 1000, step_ms=step_ms, sample_ms=0, ranks_per_node=ranks)
    subject = Subject(wdsplit.Dataset(URL).source)
    facts = loads(subject, [Topology(ranks)], BATCH_SIZE, cluster, 0)[0]
    return {**found, "predicted": [facts.requests, facts.bytes_read, facts.estimate.epoch_s]}


def sent_bytes() -> int:
    """Return the bytes that the limited link has carried."""
    shown = subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", "lo"], check=True, capture_output=True, text=True)
    return int(json.loads(shown.stdout)[0]["bytes"])


def measured(folder: Path, ranks: int, megabits: int) -> Sequence[str]:
    """Return a row of the table."""
    servers = import_module("s3server")
    server = servers.S3Server(folder, *servers.FAST, "-vv")
    log = folder.with_name(f"{folder.name}.log")
    with server, link.limited(megabits):
        before = log.stat().st_size
        result = core.in_own_process(epoch, ranks, megabits, 0.001, environ=server.environ)
        num_bytes = f"{sent_bytes() / 1e6:,.0f}" if megabits else ""
        with open(log, "rb") as file:
            file.seek(before)
            requests = len(re.findall(rb"GET OBJECT", file.read()))
    predicted: Any = result["predicted"]
    own = 2  # of the report's own dataset
    return (
        str(megabits) if megabits else "no limit",
        f"{requests - own:,}",
        f"{predicted[0]:,.0f}",
        num_bytes,
        f"{predicted[1] / 1e6:,.0f}",
        f"{result['seconds']:.1f}",
        f"{predicted[2]:.1f}" if megabits else "",
    )


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"Samples of 100 kB. Default: {SAMPLES}.")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"Ranks. Default: {RANKS}.")
    parser.add_argument("--lanes", type=int, help="Lanes of the dataset. Default: as for the ranks.")
    parser.add_argument("--links", type=core.numbers, default=LINKS, help="Mbit/s, such as 500,1000; 0 for no limit.")
    arguments = parser.parse_args()
    links = arguments.links
    if reason := link.why_not():
        links = (0,)
        print(f"nothing limits the rate: {reason}")
    else:
        link.enter()
    sys.path.insert(0, str(core.ROOT / "tests" / "support"))
    core.print_machine()
    with core.work_folder(arguments.output) as output:
        folder = output / BUCKETS
        folder.mkdir()
        data.make_image(folder / SOURCE, arguments.samples)
        data.make_shards(folder, emit=(), world_size=arguments.ranks, lanes=arguments.lanes)
        (folder / SOURCE).unlink()
        rows = [measured(folder, arguments.ranks, rate) for rate in links]
    header = ("link, Mbit/s", "GETs", "predicted", "MB", "predicted", "seconds", "predicted")
    core.print_table(f"{arguments.ranks} ranks, {arguments.samples:,} samples of 100 kB, one epoch", header, rows)


if __name__ == "__main__":
    main()
