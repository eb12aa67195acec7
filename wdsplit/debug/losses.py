"""The losses of each rank: written as JSON lines, read together, and compared.

Each rank has a file `rank-00003.jsonl` with a line a step: `{"step": 12, "rank": 3, "loss": 2.31}`. JSON has no number
for NaN and infinity, so those are texts. Each line is flushed, so a killed run loses at most its last one.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.loading.world import detect_rank
from wdsplit.order.split import whole

__all__ = ["Divergence", "LossLog", "Losses", "read_losses"]

logger = logging.getLogger(__name__)

_FILE = re.compile(r"rank-(\d{5,})\.jsonl")


class LossLog:
    """Writes the losses of this rank. A resumed run appends to the file; the last line of a step counts.

    Args:
        folder: The folder of the files, the same for all ranks; it is created if it does not exist.
        rank: This rank; detected if None.

    Raises:
        TopologyError: The rank cannot be detected, because its sources contradict each other.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int | None = None) -> None:
        self.rank = detect_rank().rank if rank is None else whole(rank)
        self.path = Path(folder) / f"rank-{self.rank:05d}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_torn = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")
        self._file = open(self.path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        if is_torn:
            self._file.write("\n")

    def log(self, step: int, loss: Any, **values: Any) -> None:
        """Write a line.

        Args:
            step: The step.
            loss: A number, or a tensor of one element; this waits for a GPU.
            values: Other numbers, such as a gradient norm.

        Raises:
            InputError: The step is not an integer, or a value is not a number, or is called `rank`.
        """
        if "rank" in values:
            raise InputError("invalid name of a value", place="rank", expected="another name: each line has the rank")
        if type(whole(step)) is not int:
            raise InputError("invalid step", expected="an integer", found=repr(step))
        numbers = {name: _number(name, value) for name, value in {"loss": loss, **values}.items()}
        self._file.write(json.dumps({"step": whole(step), "rank": self.rank, **numbers}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> LossLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _number(name: str, value: Any) -> float | str:
    try:
        number = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = type(value).__name__
        raise InputError("invalid value in a loss log", place=name, expected="a number", found=found) from error
    return number if math.isfinite(number) else str(number)


@dataclass(frozen=True)
class Divergence:
    """A rank whose loss leaves those of the others.

    Attributes:
        rank: The rank.
        step: Where it was first seen.
        loss: Its loss there, without the noise of single steps; NaN if it is not finite.
        others: The median of the ranks there.
    """

    rank: int
    step: int
    loss: float
    others: float

    def __str__(self) -> str:
        return f"rank {self.rank} from step {self.step} on: {self.loss:.4g}, the others {self.others:.4g}"


@dataclass(frozen=True)
class Losses:
    """The losses of all ranks, side by side.

    Attributes:
        ranks: The ranks, ascending.
        steps: int64 of shape (steps,): the steps that any rank has, ascending.
        losses: float64 of shape (steps, ranks): NaN where a rank does not have the step, too.
        present: bool of the same shape: whether the rank has the step.
    """

    ranks: tuple[int, ...]
    steps: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_]

    def behind(self) -> dict[int, int]:
        """Return the ranks that end before the others do, and the last step of each; -1 for none at all."""
        last = {
            rank: int(max(self.steps[own], default=-1)) for rank, own in zip(self.ranks, self.present.T, strict=True)
        }
        return {rank: step for rank, step in last.items() if step < max(last.values())}

    def diverged(self, window: int = 10, threshold: float = 6.0) -> list[Divergence]:
        """Return the ranks that leave the others, each once, in the order of the steps.

        A rank diverges where its loss is not finite, or where its distance from the median of all ranks, averaged
        over `window` steps, is more than `threshold` standard deviations of what noise alone would give. The noise is
        estimated as the median change of a loss from one step to the next. Of two ranks both are returned.

        Args:
            window: Steps to average over, at least 1.
            threshold: Standard deviations.

        Raises:
            InputError: The window is not an integer of at least 1.
        """
        if type(whole(window)) is not int or window < 1:
            raise InputError("invalid window", expected="an integer of at least 1", found=repr(window))
        changes = np.abs(np.diff(np.where(np.isfinite(self.losses), self.losses, np.nan), axis=0))
        changes = changes[changes > 0]  # rounded losses often do not change at all; NaN compares as False
        noise = float(np.median(changes)) if len(changes) else 0.0
        # The difference of two losses has twice the variance of one, and a mean of so many this share of it.
        bound = threshold * noise * math.sqrt(2 / window)
        others = self._others()
        signs = [self._first_sign(column, others[:, column], window, bound) for column in range(len(self.ranks))]
        return sorted((each for each in signs if each is not None), key=lambda each: (each.step, each.rank))

    def _others(self) -> npt.NDArray[np.float64]:
        """Return what each loss is compared with: the median of all ranks, or the other one of two; NaN for none."""
        finite = np.isfinite(self.losses)
        losses, counts = np.where(finite, self.losses, np.nan), finite.sum(axis=1, keepdims=True)
        medians = np.full(counts.shape, np.nan)
        known = counts[:, 0] > 0
        medians[known] = np.nanmedian(losses[known], axis=1, keepdims=True)
        others = np.where(finite & (counts == 2), 2 * medians - losses, medians)  # it lies halfway between the two
        others[finite & (counts == 1)] = np.nan
        return others

    def _first_sign(self, column: int, others: npt.NDArray[np.float64], window: int, bound: float) -> Divergence | None:
        """Return where the loss of a rank is first not finite, or on average too far from the others."""
        own = self.losses[:, column]
        rows = np.flatnonzero(np.isfinite(own) & ~np.isnan(others))
        means = np.full(len(own), np.nan)
        if len(rows) >= max(window, 2):
            means[rows[window - 1 :]] = np.convolve(own[rows] - others[rows], np.full(window, 1 / window), "valid")
        is_broken = self.present[:, column] & ~np.isfinite(own)
        away = np.flatnonzero(is_broken | (np.abs(means) > bound))
        if not len(away):
            return None
        row = away[0]
        loss = math.nan if is_broken[row] else float(others[row] + means[row])
        return Divergence(self.ranks[column], int(self.steps[row]), loss, float(others[row]))

    def __str__(self) -> str:
        if not len(self.steps):
            return "no steps"
        last = ", ".join(f"rank {rank} {self._mean(column):.4g}" for column, rank in enumerate(self.ranks))
        lines = [
            f"{len(self.ranks)} ranks, steps {self.steps[0]} to {self.steps[-1]}; mean loss of the last 10: {last}",
            *(f"ends early: rank {rank}, at step {step}" for rank, step in self.behind().items()),
            *(f"diverges: {each}" for each in self.diverged()),
        ]
        return "\n".join(lines)

    def _mean(self, column: int) -> float:
        own = self.losses[self.present[:, column], column][-10:]
        return float(own.mean()) if len(own) else math.nan


def read_losses(folder: str | os.PathLike[str]) -> Losses:
    """Read the losses that all ranks have written so far.

    A line that a killed run has left unfinished is skipped, with a warning.

    Raises:
        DatasetNotFoundError: There are no such files.
    """
    matches = [(match, path) for path in Path(folder).glob("rank-*.jsonl") if (match := _FILE.fullmatch(path.name))]
    files = sorted((int(match[1]), path) for match, path in matches)
    if not files:
        raise DatasetNotFoundError(
            "no losses found",
            place=str(folder),
            expected="files such as rank-00000.jsonl, as LossLog writes them",
            url=str(folder),
        )
    tables = [_read(path) for _, path in files]
    steps = sorted({step for table in tables for step in table})
    losses = np.full((len(steps), len(files)), math.nan)
    present = np.zeros(losses.shape, np.bool_)
    for column, table in enumerate(tables):
        rows = np.searchsorted(steps, list(table))
        losses[rows, column], present[rows, column] = list(table.values()), True
    return Losses(tuple(rank for rank, _ in files), np.array(steps, np.int64), losses, present)


def _read(path: Path) -> dict[int, float]:
    """Return the loss of each step of a file."""
    table: dict[int, float] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            values = json.loads(line)
            table[int(values["step"])] = float(values["loss"])
        except (ValueError, KeyError, TypeError):
            logger.warning("%s, line %d: no step and loss in %r; it is skipped", path, number, line[:100])
    return table
