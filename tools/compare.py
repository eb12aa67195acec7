"""Run the installed libraries of docs/compared.md, and print what each does: equal steps, pads, other ranks, resuming.

Each reads 1,000 numbers in steps of 48 with its defaults for training, as its documentation shows, in one process a
rank. Where a library has a setting for elastic training it is on. Libraries that are not installed are left out
(pip install '.[torch]' webdataset datasets grain lancedb litdata megatron-energon). The newest releases of
mosaicml-streaming and of torchtitan need environments of their own, as they refuse newer versions of what others need.

Example: python -m tools.compare --only grain,LitData
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed

NUMBERS, SHARDS, STEP = 1_000, 8, 48
STOP = 5  # steps before the state is saved
DEADLINE_S = 240  # a rank that takes longer is taken to hang


class Job(NamedTuple):
    """What a rank does: reads an epoch from its beginning, or from the states of old ranks."""

    folder: Path
    rank: int
    world: int
    batch: int
    states: list[Any] | None


Opened = tuple[Iterable[Any], Callable[[], Any] | None]
"""Batches of numbers, or pairs of numbers and their flags as pads; and what returns the state, if there is one."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch.distributed", "pyarrow.parquet"])


def loaded(loader: Any, job: Job, load: str = "load_state_dict") -> Any:
    """Return a loader, with the state of the old rank of its number, or of the last one, if there is one."""
    if job.states:
        getattr(loader, load)(job.states[min(job.rank, len(job.states) - 1)])
    return loader


def write(name: str, folder: Path) -> None:
    """Write the numbers as a library reads them."""
    numbers = pa.table({"cls": range(NUMBERS), "n": range(NUMBERS)})
    if name in ("wdsplit", "Energon"):
        import wdsplit

        pq.write_table(numbers, folder / "table.parquet")
        wdsplit.convert(folder / "table.parquet", folder / "data", columns=["cls"], shards=SHARDS, emit=("energon",))
    elif name == "webdataset":
        import webdataset

        with webdataset.ShardWriter(f"{folder}/%06d.tar", maxcount=NUMBERS // SHARDS, verbose=0) as sink:
            for number in range(NUMBERS):
                sink.write({"__key__": f"{number:04d}", "cls": number})
    elif name == "MosaicML streaming":
        import streaming

        with streaming.MDSWriter(out=str(folder), columns={"n": "int"}, size_limit=2_000) as sink:
            for number in range(NUMBERS):
                sink.write({"n": number})
    elif name == "LitData":
        import litdata

        litdata.optimize(int, list(range(NUMBERS)), str(folder), num_workers=1, chunk_size=NUMBERS // SHARDS)
    elif name in ("HF datasets", "torchtitan"):
        for shard in range(SHARDS):
            pq.write_table(numbers.slice(shard * NUMBERS // SHARDS, NUMBERS // SHARDS), folder / f"{shard}.parquet")
    elif name == "LanceDB":
        import lancedb

        lancedb.connect(folder).create_table("numbers", numbers)


def open_wdsplit(job: Job) -> Opened:
    import wdsplit

    dataset = wdsplit.Dataset(job.folder / "data", seed=0).decode().to_tuple("cls", "__pad__")
    loader = loaded(wdsplit.Loader(dataset, job.batch), job)
    return ((numbers.tolist(), pads.tolist()) for numbers, pads in loader), loader.state_dict


def open_webdataset(job: Job) -> Opened:
    import webdataset

    urls = sorted(map(str, job.folder.glob("*.tar")))
    dataset = webdataset.WebDataset(urls, shardshuffle=SHARDS, nodesplitter=webdataset.split_by_node, seed=0)
    return (b[0].tolist() for b in dataset.decode().to_tuple("cls").batched(job.batch)), None


def open_streaming(job: Job) -> Opened:
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=str(job.folder), batch_size=job.batch, shuffle=True, num_canonical_nodes=SHARDS)
    loader = loaded(StreamingDataLoader(dataset, batch_size=job.batch), job)
    return (batch["n"].tolist() for batch in loader), loader.state_dict


def open_litdata(job: Job) -> Opened:
    import litdata

    dataset = litdata.StreamingDataset(str(job.folder), shuffle=True, drop_last=True)
    loader = loaded(litdata.StreamingDataLoader(dataset, batch_size=job.batch), job)
    return (batch.tolist() for batch in loader), loader.state_dict


def split_by_node(job: Job) -> Any:
    import datasets
    from datasets.distributed import split_dataset_by_node

    datasets.disable_progress_bars()
    files = sorted(map(str, job.folder.glob("*.parquet")))
    table = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return split_dataset_by_node(table.shuffle(seed=0, buffer_size=100), job.rank, job.world)


def open_datasets(job: Job) -> Opened:
    dataset = loaded(split_by_node(job), job)
    return (batch["n"] for batch in dataset.iter(job.batch)), dataset.state_dict


def open_torchtitan(job: Job) -> Opened:
    from torchtitan.components.dataloader import ParallelAwareDataloader

    loader = ParallelAwareDataloader(split_by_node(job), job.rank, job.world, batch_size=job.batch)
    if job.states:
        loader.load_state_dict({name: value for state in job.states for name, value in state.items()})
    return (batch["n"].tolist() for batch in loader), loader.state_dict


def open_energon(job: Job) -> Opened:
    from megatron import energon

    @energon.stateless  # type: ignore[untyped-decorator]
    def cook(sample: Any) -> Any:
        return {"n": sample["cls"]}

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
        cookers = (energon.Cooker(cook),)

        @energon.stateless  # type: ignore[untyped-decorator]
        def batch(self, samples: list[Any]) -> Any:
            return {"n": [int(sample["n"]) for sample in samples]}

    workers = energon.WorkerConfig(rank=job.rank, world_size=job.world, num_workers=4 // job.world)
    options = {"batch_size": job.batch, "worker_config": workers, "task_encoder": Encoder()}
    dataset = energon.get_val_dataset(job.folder / "data", split_part="train", **options)
    loader = loaded(energon.get_savable_loader(dataset), job, "restore_state_rank")
    return (batch["n"] for batch in loader), loader.save_state_rank


def open_grain(job: Job) -> Opened:
    import grain

    numbers = grain.MapDataset.range(NUMBERS).shuffle(seed=0)
    ranks = grain.sharding.ShardOptions(job.rank, job.world)
    loader = loaded(grain.experimental.ElasticIterator(numbers, STEP, ranks), job, "set_state")
    return (batch.tolist() for batch in loader), loader.get_state


def open_lancedb(job: Job) -> Opened:
    import lancedb
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    table = lancedb.connect(job.folder).open_table("numbers")
    dataset = StreamingDataset(table, num_splits=STEP // 2, rank=job.rank, world_size=job.world)
    if job.states:
        dataset.load_state_dict(StreamingDataset.merge_state_dicts(job.states))
    return (batch["n"].tolist() for batch in StreamingDataLoader(dataset, batch_size=job.batch)), dataset.state_dict


LIBRARIES: dict[str, tuple[str, Callable[[Job], Opened]]] = {
    "wdsplit": ("wdsplit", open_wdsplit),
    "webdataset": ("webdataset", open_webdataset),
    "MosaicML streaming": ("mosaicml-streaming", open_streaming),
    "LitData": ("litdata", open_litdata),
    "HF datasets": ("datasets", open_datasets),
    "torchtitan": ("torchtitan", open_torchtitan),
    "Energon": ("megatron-energon", open_energon),
    "grain": ("grain", open_grain),
    "LanceDB": ("lancedb", open_lancedb),
}


class Run(NamedTuple):
    """What a rank delivered: the numbers of each step, which of them it flagged as pads, and its state after STOP."""

    steps: list[list[int]]
    pads: list[list[bool]]
    state: Any


def read(name: str, job: Job, meeting: str) -> Run:
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK", "GLOBAL_RANK"), str(job.rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(job.world))
    torch.distributed.init_process_group("gloo", meeting, rank=job.rank, world_size=job.world)
    run, (batches, state_of) = Run([], [], []), LIBRARIES[name][1](job)
    for batch in batches:
        numbers, flags = batch if isinstance(batch, tuple) else (batch, [False] * len(batch))
        run.steps.append(list(map(int, numbers)))
        run.pads.append(flags)
        if len(run.steps) == STOP and state_of is not None and not job.states:
            run.state.append(state_of())
    return run


def epoch_of(name: str, folder: Path, world: int, states: list[Any] | None = None) -> list[Run]:
    """Run all ranks, and return what they delivered; raises the first error of a rank."""
    meeting = f"file://{tempfile.mktemp(dir=folder.parent)}"
    with ProcessPoolExecutor(world, mp_context=FORKS) as pool:
        jobs = [Job(folder, rank, world, STEP // world, states) for rank in range(world)]
        runs = [pool.submit(read, name, job, meeting) for job in jobs]
        done, missing = wait(runs, DEADLINE_S, FIRST_EXCEPTION)
        for process in list(pool._processes.values()):  # those that wait for a rank that failed, too
            process.kill()
    if missing and not any(run.exception() for run in done):
        raise TimeoutError(f"a rank does not end within {DEADLINE_S} s")
    return [run.result() for run in runs if run in done]


def delivered(runs: Iterable[Run], last: int | None = None) -> Counter[int]:
    """Count the numbers that came in the steps before `last`, without those that were flagged."""
    parts = (part for each in runs for part in zip(each.steps[:last], each.pads, strict=False))
    return Counter(number for step, flags in parts for number, flag in zip(step, flags, strict=True) if not flag)


def difference(found: Counter[int], expected: Iterable[int]) -> str:
    lost, repeated = len(set(expected) - set(found)), found.total() - len(found)
    return "exact" if not lost and not repeated else f"{lost} lost, {repeated} repeated"


def resumed(name: str, folder: Path, world: int, epoch: list[Run]) -> str:
    """Go on from the state after some steps on 2 ranks, and compare with the whole epoch on 2 ranks."""
    if not epoch[0].state:
        return "no state"
    rest = epoch_of(name, folder, world, [each.state[0] for each in epoch])
    return difference(delivered(epoch, STOP) + delivered(rest), delivered(epoch))


def tried(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, or the error as a text."""
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"


def rows_for(name: str, folder: Path) -> list[str]:
    """Return what a library did, in the order of HEAD."""
    write(name, folder)
    epochs = {world: tried(epoch_of, name, folder, world) for world in (1, 2, 3, 4)}
    for epoch in epochs.values():
        if isinstance(epoch, str):
            return [epoch]
    shares = ([each.steps for each in epochs[world]] for world in (1, 2, 4))
    steps = [[sorted(chain(*step)) for step in zip(*share, strict=False)] for share in shares]
    return [
        ", ".join(str(len(each.steps)) for each in epochs[3]),
        difference(delivered(epochs[3]), range(NUMBERS)),
        str(sum(map(sum, chain.from_iterable(each.pads for each in epochs[3])))),
        f"{sum(one == two == four for one, two, four in zip(*steps, strict=False))} of {len(steps[0])}",
        *(tried(resumed, name, folder, world, epochs[2]) for world in (2, 4, 1)),
    ]


HEAD = "| library | steps of 3 ranks | samples on 3 ranks | flagged pads | same steps on 1, 2, 4 ranks "
HEAD += "| stop on 2 ranks, resume on 2 | on 4 | on 1 |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(LIBRARIES), help="Libraries to run. Default: all.")
    options = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}\n\n{HEAD}\n|{'---|' * 8}", flush=True)
    for name in options.only.split(","):
        with contextlib.suppress(PackageNotFoundError), tempfile.TemporaryDirectory() as folder:
            cells = [f"{name} {version(LIBRARIES[name][0])}", *rows_for(name, Path(folder))]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
