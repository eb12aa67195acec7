"""Exercise 2: which samples does each rank see? A picture of the first steps, and an audit of the whole epoch.

    torchrun --standalone --nproc-per-node 2 examples/exercises/exercise2_samples.py --workers 2 --picture seen.png

Each worker writes into its samples who it is, so what is drawn is what was delivered. A column of the picture is a
position of the epoch's order, a line is a worker of a rank. The script fails unless each sample was seen exactly once.
It runs on any dataset: --data DIR --field __key__
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import (
    add_break_split,
    dataset_path,
    finish,
    gathered,
    join_ranks,
    open_dataset,
    parser_of,
    pyplot,
    rank_and_world_size,
    say,
    share_of,
)

import wdsplit

MARKS = "0123456789abcdefghijklmnopqrstuvwxyz"
PAD = "+"


class Seen(NamedTuple):
    """A sample that a rank was given.

    Attributes:
        name: What tells it from others: its index, or its key.
        position: Its place in the epoch's order.
        pad: Whether it is a repetition that fills the last step.
        step: The step in which it came.
        rank: Who was given it.
        worker: The worker that made it; 0 if there are none.
    """

    name: Any
    position: int
    pad: bool
    step: int
    rank: int
    worker: int


def main() -> None:
    """Read an epoch on all ranks; draw its first steps, and audit all of it."""
    args = parse_arguments()
    rank, world_size = join_ranks()
    with dataset_path(args.data) as path:
        dataset = open_dataset(path, args)
        num_samples = dataset.manifest.num_samples
        parts = gathered(read_epoch(dataset, share_of(args.global_batch, world_size), args))
    first = [each for part in parts for each in part if each.step < args.steps]
    say(
        f"{num_samples:,} samples, {world_size} rank(s) x {max(1, args.workers)} worker(s), global batch "
        f"{args.global_batch}; the first {args.steps} steps, a mark for each position, | between steps:",
        "",
        *text_picture(first, args),
        "",
        *first_samples(first),
        "",
    )
    if args.picture and rank == 0:
        draw(first, args)
    fault = audit(parts, num_samples)
    if not fault:
        pads = sum(each.pad for part in parts for each in part)
        batches = [1 + max(each.step for each in part) for part in parts]
        say(
            f"audit by {args.field}: {num_samples:,} samples, each seen exactly once; {pads} pads, flagged; "
            f"batches of each rank: {' '.join(map(str, batches))}"
        )
    finish(fault)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--global-batch", type=int, default=16, help="samples of a step, over all ranks (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="workers of each rank (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="steps that are drawn (default: %(default)s)")
    parser.add_argument("--field", default="index", help="the field that tells samples apart (default: %(default)s)")
    parser.add_argument("--picture", type=Path, help="file of the picture, .png or .svg; needs matplotlib")
    add_break_split(parser)
    return parser.parse_args()


# Reading


def read_epoch(dataset: wdsplit.Dataset, batch_size: int, args: argparse.Namespace) -> list[Seen]:
    """Return what this rank is given in an epoch."""
    rank, _ = rank_and_world_size()
    names = (args.field, "__position__", "__pad__", "worker")
    fields = [] if args.field.startswith("__") else [args.field]
    stages = dataset.decode(only=fields).map(note_worker).to_tuple(*names)
    loader = wdsplit.Loader(stages, batch_size, num_workers=args.workers)
    seen = []
    for step, batch in enumerate(loader):
        for name, position, pad, worker in zip(*map(as_list, batch), strict=True):
            seen.append(Seen(name, position, pad, step, rank, worker))
    return seen


def note_worker(sample: dict[str, Any]) -> dict[str, Any]:
    """Write into a sample which worker makes it."""
    info = torch.utils.data.get_worker_info()
    return {**sample, "worker": 0 if info is None else info.id}


def as_list(column: Any) -> list[Any]:
    """Return a column of a batch, a tensor or a list, as a list."""
    return list(column.tolist() if isinstance(column, torch.Tensor) else column)


# The picture


def text_picture(seen: Sequence[Seen], args: argparse.Namespace) -> list[str]:
    """Return a line for each worker of each rank: its rank where it was given a position, else a dot."""
    lines = []
    readers = sorted({(each.rank, each.worker) for each in seen})
    for reader in readers:
        own = {each.position: PAD if each.pad else MARKS[each.rank % len(MARKS)] for each in seen_by(seen, reader)}
        marks = [own.get(position, ".") for position in range(args.steps * args.global_batch)]
        steps = ["".join(marks[at : at + args.global_batch]) for at in range(0, len(marks), args.global_batch)]
        lines.append(f"  rank {reader[0]} worker {reader[1]}  |{'|'.join(steps)}|")
    return lines


def first_samples(seen: Sequence[Seen]) -> list[str]:
    """Return a line for each rank: the samples of its first batch."""
    lines = []
    for rank in sorted({each.rank for each in seen}):
        names = [str(each.name) for each in seen if each.rank == rank and each.step == 0]
        more = " ..." if len(names) > 8 else ""
        lines.append(f"  rank {rank}, first batch: {', '.join(names[:8])}{more}")
    return lines


def seen_by(seen: Sequence[Seen], reader: tuple[int, int]) -> list[Seen]:
    """Return what one worker of a rank has made."""
    return [each for each in seen if (each.rank, each.worker) == reader]


def draw(seen: Sequence[Seen], args: argparse.Namespace) -> None:
    """Draw the picture into a file, with a colour for each rank; pads are hollow."""
    plot = pyplot()
    if plot is None:
        return
    readers = sorted({(each.rank, each.worker) for each in seen})
    figure, axes = plot.subplots(figsize=(12, 1.2 + 0.35 * len(readers)), layout="constrained")
    for line, reader in enumerate(readers):
        for pad in (False, True):
            positions = [each.position for each in seen_by(seen, reader) if each.pad == pad]
            colour = f"C{reader[0]}"
            axes.scatter(positions, [line] * len(positions), marker="s", c="none" if pad else colour, edgecolors=colour)
    for step in range(args.steps + 1):
        axes.axvline(step * args.global_batch - 0.5, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(readers)), [f"rank {rank} worker {worker}" for rank, worker in readers])
    axes.invert_yaxis()
    axes.set(xlabel="position in the epoch's order; grey: steps", title="Who is given which position")
    figure.savefig(args.picture)
    say(f"picture: {args.picture}")


# The audit


def audit(parts: Sequence[Sequence[Seen]], num_samples: int) -> str:
    """Say what is wrong with an epoch as all ranks were given it: nothing, if each sample was seen exactly once."""
    times = Counter(each.name for part in parts for each in part if not each.pad)
    repeated = [name for name, count in times.items() if count > 1]
    faults = []
    if repeated:
        name = repeated[0]
        ranks = sorted({each.rank for part in parts for each in part if each.name == name and not each.pad})
        faults.append(f"{len(repeated):,} samples were seen more than once, such as {name!r}, on the ranks {ranks}")
    if len(times) != num_samples:
        faults.append(f"{len(times):,} of {num_samples:,} samples were seen")
    batches = [len({each.step for each in part}) for part in parts]
    if len(set(batches)) > 1:
        faults.append(f"the ranks had {batches} batches")
    return "; ".join(faults)


if __name__ == "__main__":
    main()
