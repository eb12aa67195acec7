"""What the exercises share: a small dataset, the ranks that a script runs on, and the comparison of two loss curves.

python examples/exercises/common.py DIR          # write the dataset, to look at it or to pass it as --data
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed as dist

import wdsplit

NUM_SAMPLES = 1_500
"""No multiple of the global batches that the exercises use, so that the last step is filled with pads."""
NUM_FEATURES, NUM_CLASSES = 64, 10
SHARDS = 8
TOLERANCE = 1e-10
"""How far losses may be apart, in relation to their size. In float64 a sum in another order differs by some 1e-16,
which a few hundred steps multiply a little; another sample in a batch of 64 makes about 1/64."""


# The dataset


def make_dataset(folder: Path) -> str:
    """Write a dataset like handwritten digits of 8 x 8 pixels: a pattern of each class, and noise. Return its path.

    Its fields are `npy` (float32 of shape (64,)), `cls` (the class, 0 to 9) and `index` (the number of the row).
    """
    chance = np.random.default_rng(0)
    labels = chance.integers(0, NUM_CLASSES, NUM_SAMPLES)
    pixels = chance.normal(size=(NUM_CLASSES, NUM_FEATURES))[labels] + chance.normal(0, 2, (NUM_SAMPLES, NUM_FEATURES))
    features = pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel(), pa.float32()), NUM_FEATURES)
    table = pa.table({"pixels": features, "label": labels, "row": range(NUM_SAMPLES)})
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "table.parquet")
    mapping = {"npy": "pixels", "cls": "label", "index": "row"}
    options = {"shards": SHARDS, "lanes": SHARDS, "pad": "none", "mapping": mapping}
    wdsplit.convert(str(folder / "table.parquet"), str(folder / "dataset"), **options)
    return str(folder / "dataset")


@contextmanager
def dataset_path(data: str | None) -> Iterator[str]:
    """Give the path of a dataset: the one that was named, or one that rank 0 makes and that all ranks share."""
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="wdsplit-exercise-") as folder:
        path = [make_dataset(Path(folder)) if rank_and_world_size()[0] == 0 else ""]
        if dist.is_initialized():
            dist.broadcast_object_list(path)
        yield path[0]
        wait_for_all()


# The ranks


def join_ranks() -> tuple[int, int]:
    """Join the other ranks if torchrun has started this process; return rank and world size."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    return rank_and_world_size()


def rank_and_world_size() -> tuple[int, int]:
    """Return the place of this process: rank 0 of 1 if it runs alone."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def wait_for_all() -> None:
    """Wait until all ranks are here."""
    if dist.is_initialized():
        dist.barrier()


def gathered(value: Any) -> list[Any]:
    """Return what each rank has, on all of them."""
    everyone = [value] * rank_and_world_size()[1]
    if dist.is_initialized():
        dist.all_gather_object(everyone, value)
    return everyone


def say(*lines: str) -> None:
    """Print lines, on rank 0 only."""
    if rank_and_world_size()[0] == 0:
        print(*lines, sep="\n", flush=True)


def finish(fault: str) -> None:
    """End the script on all ranks; if there is a fault, with an error that rank 0 prints."""
    if fault and rank_and_world_size()[0] == 0:
        print(f"FAILED: {fault}", file=sys.stderr, flush=True)
    wait_for_all()
    if dist.is_initialized():
        dist.destroy_process_group()
    if fault:
        sys.exit(1)


# The command line


def parser_of(document: str | None) -> argparse.ArgumentParser:
    """Return a parser with what all exercises take; its help is the script's own description, example included."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a dataset such as common.py writes; by default one in a temporary folder")
    parser.add_argument("--seed", type=int, default=0, help="what the order depends on (default: %(default)s)")
    return parser


def add_break_split(parser: argparse.ArgumentParser) -> None:
    """Let a script make the mistake that it is to find."""
    parser.add_argument(
        "--break-split",
        action="store_true",
        help="make a mistake on purpose: every rank takes itself for the only one (rank=0, world_size=1)",
    )


def open_dataset(path: str, args: argparse.Namespace) -> wdsplit.Dataset:
    """Open the dataset; it finds out which rank this is, unless the split is broken on purpose."""
    if args.break_split:
        return wdsplit.Dataset(path, seed=args.seed, rank=0, world_size=1)
    return wdsplit.Dataset(path, seed=args.seed)


def share_of(global_batch: int, world_size: int) -> int:
    """Return the batch size of each rank."""
    batch_size, rest = divmod(global_batch, world_size)
    if rest:
        raise SystemExit(f"a global batch of {global_batch} cannot be shared by {world_size} ranks equally")
    return batch_size


# Curves


def difference(curve: Sequence[float], other: Sequence[float]) -> float:
    """Return how far two loss curves are apart at most, in relation to their size; infinitely, if in their steps."""
    if len(curve) != len(other) or not len(curve):
        return float("inf")
    a, b = np.asarray(curve), np.asarray(other)
    found = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    return float(found.max()) if np.isfinite(found).all() else float("inf")


def fault_between(curve: Sequence[float], other: Sequence[float], names: tuple[str, str]) -> str:
    """Say in what two loss curves differ beyond the tolerance; nothing if they coincide."""
    if difference(curve, other) <= TOLERANCE:
        return ""
    steps = f"{names[0]}: {len(curve)} steps, {names[1]}: {len(other)} steps"
    for step, (a, b) in enumerate(zip(curve, other, strict=False)):
        if not difference([a], [b]) <= TOLERANCE:
            return f"the loss curves differ ({steps}), first in step {step}: {a:.12f} and {b:.12f}"
    return f"the loss curves differ ({steps})"


def pyplot() -> Any:
    """Return matplotlib's pyplot, drawing into files; None if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        say("no picture file: matplotlib is not installed (pip install 'wdsplit[plot]')")
        return None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    print(make_dataset(Path(sys.argv[1])))
