"""Run the ranks of a cluster on this machine, and print what each node asks of one S3 server beside what a report says.

Each rank is a process without torch, started with a launcher's variables. Each node is a network of its own, whose link
to the server has a rate. All ranks wait for each other after each step. A proxy before the server (rclone's) delays
each answer, refuses some, and counts the requests; the link counts the bytes, with the headers of HTTP and TCP.

Fails unless all ranks have equally many steps, which have each sample once an epoch and the batches that one rank alone
has, also after a node was killed and all ranks went on from the last state. Needs root. Prints a Markdown table.

Example: python -m tools.bench.cluster --output /dev/shm --refuse 0.05 --slow-node 3 --kill 1
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import core, data, link
from tools.bench.core import ProcessError, Result
from tools.bench.data import SHARDS, SOURCE
from tools.bench.peers import BUCKETS, URL

Batches = list[list[list[Any]]]

SLOWER = 10
LAUNCHERS: Mapping[str, Callable[[int, int, int, int], dict[str, object]]] = {
    "torchrun": lambda rank, ranks, local, locals: {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": locals,
        "GROUP_RANK": rank // locals,
        "GROUP_WORLD_SIZE": ranks // locals,
    },
    "slurm": lambda rank, ranks, local, locals: {
        "SLURM_JOB_ID": 71,
        "SLURM_JOB_NAME": "train",
        "SLURM_STEP_ID": 0,
        "SLURM_PROCID": rank,
        "SLURM_STEP_NUM_TASKS": ranks,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": rank // locals,
    },
}
"""What a launcher puts into the environment of a rank, by rank, number of ranks, rank on the node, ranks of a node."""


# Ranks


def batches(loader: Any) -> Iterator[list[list[Any]]]:
    """Give for each batch of an epoch the position, the key, a checksum of the payload and whether it is a pad."""
    for positions, keys, images, pads in loader:
        sums = map(zlib.crc32, images)
        yield [list(each) for each in zip(positions.tolist(), keys, sums, pads.tolist(), strict=True)]


def loader_of(url: str, batch_size: int, ahead: int | None) -> Any:
    """Return a loader of arrays."""
    import wdsplit

    dataset = wdsplit.Dataset(url, read_ahead_bytes=ahead).to_tuple("__position__", "__key__", "jpg", "__pad__")
    return wdsplit.Loader(dataset, batch_size, output="numpy")


def train(url: str, batch_size: int, ahead: int | None, epochs: int, step_ms: float, state: Result | None) -> Result:
    """Be a rank: after each step, tell its batch and the state, and wait for all others."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    core.import_all("wdsplit.loading.loader", "botocore.session")
    core.meet()
    loader = loader_of(url, batch_size, ahead)
    if state:
        loader.load_state_dict(state)
    while (epoch := loader.epoch) < epochs:
        for batch in batches(loader):
            time.sleep(step_ms / 1000)
            print(json.dumps({"epoch": epoch, "batch": batch, "state": loader.state_dict()}))
            core.meet()
    return {"mib": core.resident_kib(line="VmHWM") / 1024}


def alone(path: str, batch_size: int, epochs: int) -> Result:
    """Return the batches of each epoch that one rank has."""
    loader = loader_of(path, batch_size, None)
    return {"epochs": [list(batches(loader)) for _ in range(epochs)]}


# The cluster


class Training:
    """The steps of all ranks, and what each node had fetched at their ends.

    Attributes:
        batches: The global batches of each epoch.
        counts: For each epoch, what the nodes had fetched at the begin and at the last step so far.
        state: The state after the last step.
    """

    def __init__(self, epochs: int, count: Callable[[], Any]) -> None:
        self.batches: list[Batches] = [[] for _ in range(epochs)]
        self.counts: list[list[Any]] = [[] for _ in range(epochs)]
        self.state: Result | None = None
        self._count = count

    def run(self, ranks: Sequence[core.Process], victims: Sequence[core.Process], killed_at: tuple[int, int]) -> None:
        """Run to the end, or until the victims are killed: when an epoch has so many steps and all begin the next."""
        is_killed, before = False, None
        while all(waiting := [rank.is_waiting() for rank in ranks]):
            count = self._count()
            if before is not None:
                said = [json.loads(rank.last_line) for rank in ranks]
                epoch, self.state = said[0]["epoch"], said[0]["state"]
                self.batches[epoch].append(sorted(chain.from_iterable(each["batch"] for each in said)))
                self.counts[epoch] = [(self.counts[epoch] or [before])[0], count]
                is_killed = bool(victims) and (epoch, len(self.batches[epoch])) == killed_at
            before = count
            for rank in ranks:
                rank.go_on()
            if is_killed:
                for rank in victims:
                    rank.kill()
        if not is_killed:
            peaks = [rank.result()["mib"] for rank, waits in zip(ranks, waiting, strict=True) if not waits]
            if any(waiting):
                raise ProcessError(f"{sum(waiting)} of {len(ranks)} ranks have more steps than the others")
            print(f"\n{len(ranks)} ranks, at most {max(peaks):.0f} MiB each")


@contextlib.contextmanager
def cluster(folder: Path, asked: Namespace) -> Iterator[tuple[list[tuple[Sequence[str], dict[str, str]]], Any]]:
    """Start the server and the nodes; give the place of each rank, and what counts each node's bytes and requests."""
    servers, faults = import_module("s3server"), import_module("faults")

    def plan(node: int) -> Callable[[Any], Any]:
        delay, refusal = faults.Delay(asked.latency_ms / 1000), faults.slow_down()
        return lambda request: refusal if random.Random(f"{node} {request.number}").random() < asked.refuse else delay

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(servers.S3Server(folder, *servers.FAST))
        places, proxies, devices = [], [], []
        for number in range(asked.nodes):
            rate = asked.link / (SLOWER if number == asked.slow_node else 1)
            device, address, prefix = stack.enter_context(link.node(number, rate))
            proxies.append(stack.enter_context(faults.FaultProxy(server.port, plan(number), as_s3=True, host=address)))
            devices.append(device)
            environ = {**server.environ, "AWS_ENDPOINT_URL": f"http://{address}:{proxies[-1].port}", "NO_PROXY": "*"}
            for local in range(asked.ranks):
                world = number * asked.ranks + local, asked.nodes * asked.ranks, local, asked.ranks
                variables = {name: str(value) for name, value in LAUNCHERS[asked.launcher](*world).items()}
                places.append((prefix, {**environ, **variables, "TMPDIR": str(folder.parent)}))

        def count() -> Any:
            """Return bytes, requests that were answered, those that were refused, and the time: a row a node."""
            sent, exchanges = link.sent_bytes(), [proxy.exchanges for proxy in proxies]
            refused = [sum(each.status == 503 for each in node) for node in exchanges]
            now = time.perf_counter()
            return np.array(
                [
                    (sent[device], len(node) - each, each, now)
                    for device, node, each in zip(devices, exchanges, refused, strict=True)
                ]
            )

        yield places, count


def predicted(path: Path, asked: Namespace) -> tuple[float, float, float, float]:
    """Return a node's bytes and requests of an epoch and requests before, and an epoch's seconds, as a report says."""
    import wdsplit
    from wdsplit.reporting.cluster import Cluster, Topology
    from wdsplit.reporting.subject import Subject
    from wdsplit.reporting.topologies import loads

    slow_link = 1 if asked.slow_node is None else SLOWER
    times = asked.latency_ms, asked.step_ms, 0
    node = Cluster(asked.link / 1000, *times, ranks_per_node=asked.ranks, slow_link=slow_link)
    subject = Subject(wdsplit.Dataset(str(path), read_ahead_bytes=asked.read_ahead).source)
    facts = loads(subject, [Topology(asked.nodes * asked.ranks)], asked.batch_size, node, 0)[0]
    loads_of_node = (each / asked.nodes for each in (facts.bytes_read, facts.requests, facts.start_requests))
    return *loads_of_node, facts.estimate.epoch_s


def measured(folder: Path, asked: Namespace) -> Iterator[Sequence[str]]:
    """Run the cluster; give the rows of the table, a row an epoch and node."""
    shards = folder / SHARDS
    with cluster(folder, asked) as (places, count):
        training = Training(asked.epochs, count)
        num_steps = -(-asked.samples // (asked.batch_size * len(places)))
        killed_at = (min(1, asked.epochs - 1), num_steps // 2) if asked.kill is not None else (-1, 0)
        for killed in dict.fromkeys((asked.kill, None)):
            arguments = URL, asked.batch_size, asked.read_ahead, asked.epochs, asked.step_ms, training.state
            with core.started(train, arguments, places) as ranks:
                victims = [] if killed is None else ranks[killed * asked.ranks : (killed + 1) * asked.ranks]
                training.run(ranks, victims, killed_at)
    expected = core.in_own_process(alone, str(shards), asked.batch_size * len(places), asked.epochs)["epochs"]
    for epoch, (found, one) in enumerate(zip(training.batches, expected, strict=True)):
        keys = [key for batch in found for _, key, _, is_pad in batch if not is_pad]
        if len(keys) != len(set(keys)) or len(keys) != asked.samples:
            raise ProcessError(f"epoch {epoch} has {len(keys)} samples, {len(set(keys))} different, of {asked.samples}")
        if found != one:
            raise ProcessError(f"epoch {epoch} has other batches than one rank alone has")
    print(f"{asked.epochs} epochs have each sample once, and in {len(one)} steps the batches of one rank alone")
    num_bytes, each_epoch, before, seconds = predicted(shards, asked)
    for epoch, (begin, end) in enumerate(training.counts):
        requests = each_epoch + (before if epoch == 0 else 0)
        for number, (sent, answered, refused, took) in enumerate((end - begin).tolist()):
            yield (
                f"{epoch}{', killed' if epoch == killed_at[0] else ''}",
                f"{number}{', slow' if number == asked.slow_node else ''}",
                *(f"{sent / 1e6:,.1f}", f"{num_bytes / 1e6:,.1f}", f"{sent / num_bytes:.2f}"),
                *(f"{answered:.0f}", f"{requests:.1f}", f"{answered / requests:.2f}", f"{refused:.0f}"),
                *(f"{took:.1f}", f"{seconds:.1f}", f"{took / seconds:.2f}"),
            )


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=4096, help="Samples of 100 kB. Default: 4096.")
    parser.add_argument("--nodes", type=int, default=4, help="Nodes. Default: 4.")
    parser.add_argument("--ranks", type=int, default=8, help="Ranks of each node. Default: 8.")
    parser.add_argument("--lanes", type=int, help="Lanes of the dataset. Default: as for the ranks.")
    parser.add_argument("--epochs", type=int, default=4, help="Epochs. Default: 4.")
    parser.add_argument("--batch-size", type=int, default=16, help="Samples a step and rank. Default: 16.")
    parser.add_argument("--step-ms", type=float, default=100, help="Milliseconds of a step. Default: 100.")
    parser.add_argument("--read-ahead", type=int, help="Bytes that a rank reads ahead. Default: that of Dataset.")
    parser.add_argument("--link", type=float, default=200, help="Mbit/s of each node. Default: 200.")
    parser.add_argument("--latency-ms", type=float, default=30, help="Milliseconds of each answer. Default: 30.")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="torchrun", help="Default: torchrun.")
    parser.add_argument("--refuse", type=float, default=0, help="The share of requests to refuse. Default: 0.")
    parser.add_argument("--slow-node", type=int, help=f"A node whose link is {SLOWER} times slower. Default: none.")
    parser.add_argument("--kill", type=int, help="A node to kill in the second epoch. Default: none.")
    asked = parser.parse_args()
    if reason := link.why_not():
        raise SystemExit(f"no networks for the nodes: {reason}")
    link.enter()
    sys.path.insert(0, str(core.ROOT / "tests" / "support"))
    core.print_machine()
    with core.work_folder(asked.output) as output:
        folder = output / BUCKETS
        folder.mkdir()
        data.make_image(folder / SOURCE, asked.samples)
        data.make_shards(folder, emit=(), world_size=asked.nodes * asked.ranks, lanes=asked.lanes)
        (folder / SOURCE).unlink()
        rows = list(measured(folder, asked))
    header = ("epoch", "node", "MB", "predicted", "ratio", "GETs", "predicted", "ratio", "refused")
    title = f"{asked.nodes} nodes of {asked.ranks} ranks, {asked.samples:,} samples of 100 kB, {asked.link:g} Mbit/s"
    core.print_table(title, (*header, "seconds", "predicted", "ratio"), rows, names=2)


if __name__ == "__main__":
    main()
