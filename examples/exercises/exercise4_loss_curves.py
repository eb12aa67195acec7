"""Exercise 4: the loss curves of 1 rank and of N at one global batch size, overlaid.

    torchrun --standalone --nproc-per-node 2 examples/exercises/exercise4_loss_curves.py --picture curves.png

All ranks train together; then rank 0 trains alone, from the same parameters. The global batch of a step has the same
samples on any number of ranks. So the curves coincide up to the order of floating-point sums; if not, the script
fails. With --break-split each rank acts as if it were the only one, and the curves differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from common import (
    TOLERANCE,
    dataset_path,
    difference,
    fault_between,
    finish,
    gathered,
    join_ranks,
    open_dataset,
    parser_of,
    pyplot,
    say,
)
from exercise1_ddp import add_training, train

import wdsplit

HEIGHT, WIDTH = 12, 72


def main() -> None:
    """Train on all ranks and on one, draw both curves, and compare them."""
    args = parse_arguments()
    rank, world_size = join_ranks()
    if world_size == 1:
        say("this is 1 rank: start it with torchrun, as --help shows, to compare with more")
    with dataset_path(args.data) as path:
        together, _ = train(open_dataset(path, args), world_size, args)
        alone: list[float] = []
        if rank == 0:
            alone, _ = train(wdsplit.Dataset(path, seed=args.seed, rank=0, world_size=1), 1, args)
        alone = gathered(alone)[0]
    names = f"{world_size} rank(s)", "1 rank alone"
    say(f"loss of each step; o: {names[0]}, x: {names[1]}, *: both", *text_chart(together, alone), "")
    if args.picture and rank == 0:
        draw(together, alone, names, args.picture)
    say(f"{names[0]}: {len(together)} steps, last loss {together[-1]:.15f}")
    say(f"{names[1]}: {len(alone)} steps, last loss {alone[-1]:.15f}")
    fault = fault_between(together, alone, names)
    if not fault:
        apart = difference(together, alone)
        say(f"the curves coincide: at most {apart:.1e} apart, in relation to the loss; tolerance {TOLERANCE:.0e}")
    finish(fault)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add_training(parser)
    parser.add_argument("--picture", type=Path, help="file of the curves, .png or .svg; needs matplotlib")
    return parser.parse_args()


def text_chart(curve: Sequence[float], other: Sequence[float]) -> list[str]:
    """Return two curves as lines of text: steps from left to right, losses from low to high."""
    low, high = min(*curve, *other), max(*curve, *other)
    num_steps = max(len(curve), len(other))
    marks: dict[tuple[int, int], str] = {}
    for values, mark in ((curve, "o"), (other, "x")):
        for step, value in enumerate(values):
            place = round((high - value) / (high - low or 1) * (HEIGHT - 1)), step * WIDTH // num_steps
            marks[place] = mark if marks.get(place, mark) == mark else "*"
    return [
        f"{high - (high - low) * line / (HEIGHT - 1):7.3f} |"
        + "".join(marks.get((line, column), " ") for column in range(WIDTH)).rstrip()
        for line in range(HEIGHT)
    ]


def draw(together: Sequence[float], alone: Sequence[float], names: tuple[str, str], path: Path) -> None:
    """Draw both curves into a file, and below how far they are apart."""
    plot = pyplot()
    if plot is None:
        return
    figure, (above, below) = plot.subplots(
        2, 1, figsize=(8, 6), height_ratios=(2, 1), sharex=True, layout="constrained"
    )
    above.plot(together, linewidth=5, alpha=0.4, label=names[0])
    above.plot(alone, "k--", linewidth=1, label=names[1])
    above.set(ylabel="loss of the global batch", title="One global batch size")
    above.legend()
    apart = [difference([a], [b]) for a, b in zip(together, alone, strict=False)]
    below.plot(apart, ".")
    below.axhline(TOLERANCE, color="red", linewidth=0.8, label="tolerance")
    below.set(xlabel="step", ylabel="apart, relative", yscale="log", ylim=(1e-17, 10))
    below.legend()
    figure.savefig(path)
    say(f"picture: {path}")


if __name__ == "__main__":
    main()
