"""The losses of each rank: written as JSON lines, read together, and compared.

Each rank has a file of its own, `rank-00003.jsonl`, with a line a step: `{"step": 12, "rank": 3, "loss": 2.31}`. What
is not finite is written as a text (`"nan"`, `"inf"`), because JSON has no number for it. A line is given to the system
as soon as it is complete, so a run that is killed leaves all of them but the last.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.loading.world import detect_rank
from wdsplit.order.split import whole

__all__ = ["Divergence", "LossLog", "Losses", "read_losses"]

logger = logging.getLogger(__name__)

_FILE = re.compile(r"rank-(\d{5,})\.jsonl")
_NORMAL = 1.4826
"""The standard deviation of what is normally distributed, in units of the median of its absolute deviations."""


class LossLog:
    """Writes the losses of this rank. A run that is resumed adds to the file; the last line of a step counts.

    Args:
        folder: The folder of the files, the same for all ranks; it is made if need be.
        rank: This rank; detected if None.

    Raises:
        TopologyError: The rank is to be detected, and what tells it contradicts itself.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int | None = None) -> None:
        self.rank = detect_rank().rank if rank is None else whole(rank)
        self.path = Path(folder) / f"rank-{self.rank:05d}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_torn = _ends_within_a_line(self.path)
        self._file = open(self.path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        if is_torn:
            self._file.write("\n")

    def log(self, step: int, loss: Any, **values: Any) -> None:
        """Write a line.

        Args:
            step: The step.
            loss: A number, or a tensor of one; a GPU is waited for.
            values: Other numbers, such as a gradient norm.

        Raises:
            InputError: The step is no integer, or a value is no number, or has the name `rank`.
        """
        if "rank" in values:
            raise InputError(
                "a value of the loss log cannot be", place="rank", expected="another name: a line has the rank already"
            )
        if type(whole(step)) is not int:
            raise InputError("the step cannot be", expected="an integer", found=repr(step))
        numbers = {name: _number(name, value) for name, value in {"loss": loss, **values}.items()}
        self._file.write(json.dumps({"step": whole(step), "rank": self.rank, **numbers}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> LossLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ends_within_a_line(path: Path) -> bool:
    """Tell whether the run that wrote a file was killed while it wrote."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _number(name: str, value: Any) -> float | str:
    try:
        number = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "a value of the loss log cannot be", place=name, expected="a number", found=type(value).__name__
        ) from error
    return number if math.isfinite(number) else str(number)


@dataclass(frozen=True)
class Divergence:
    """A rank whose loss leaves those of the others.

    Attributes:
        rank: The rank.
        step: Where it was first seen.
        loss: Its running mean there; NaN if its loss is not finite.
        others: The median of the running means of the other ranks.
    """

    rank: int
    step: int
    loss: float
    others: float

    def __str__(self) -> str:
        return f"rank {self.rank} from step {self.step} on: {self.loss:.4g}, the others {self.others:.4g}"


@dataclass(frozen=True)
class Losses:
    """The losses of all ranks, lined up.

    Attributes:
        ranks: The ranks, rising.
        steps: int64 of shape (steps,): the steps that any rank has, rising.
        losses: float64 of shape (steps, ranks): NaN where a rank has no such step, too.
        present: bool of the same shape: whether the rank has the step.
    """

    ranks: tuple[int, ...]
    steps: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_]

    def behind(self) -> dict[int, int]:
        """Return the ranks that end before the others do, and the last step of each; -1 for none at all."""
        last = {rank: self._last(column) for column, rank in enumerate(self.ranks)}
        return {rank: step for rank, step in last.items() if step < max(last.values())}

    def _last(self, column: int) -> int:
        own = self.steps[self.present[:, column]]
        return int(own[-1]) if len(own) else -1

    def diverged(self, window: int = 10, threshold: float = 6.0) -> list[Divergence]:
        """Return the ranks that leave the others, each once, in the order of the steps.

        Ranks see different samples, so their losses differ. Compared are running means over some steps, with how far
        means of such noise may be apart: `threshold` standard deviations. The noise is estimated from how much a loss
        changes from one step to the next. Of two ranks both are named. What is not finite diverges at once. Steps that
        only some of the ranks have are compared among those.

        Args:
            window: Steps of a running mean, at least 1.
            threshold: Standard deviations.

        Raises:
            InputError: The window cannot be.
        """
        if type(whole(window)) is not int or window < 1:
            raise InputError("the window cannot be", expected="an integer of at least 1", found=repr(window))
        found = [self._not_finite(column) for column in range(len(self.ranks))]
        if len(self.ranks) > 1:
            usable = self.present & np.isfinite(self.losses)
            patterns, which = np.unique(usable, axis=0, return_inverse=True)
            for number, having in enumerate(patterns):
                found += self._apart(having, which.reshape(-1) == number, window, threshold)
        first: dict[int, Divergence] = {}
        for each in sorted((each for each in found if each is not None), key=lambda each: (each.step, each.rank)):
            first.setdefault(each.rank, each)
        return list(first.values())

    def _not_finite(self, column: int) -> Divergence | None:
        broken = np.flatnonzero(self.present[:, column] & ~np.isfinite(self.losses[:, column]))
        if not len(broken):
            return None
        row = self.losses[broken[0]]
        others = np.delete(row, column)
        others = others[np.isfinite(others)]
        middle = float(np.median(others)) if len(others) else math.nan
        return Divergence(self.ranks[column], int(self.steps[broken[0]]), math.nan, middle)

    def _apart(
        self, having: npt.NDArray[np.bool_], rows: npt.NDArray[np.bool_], window: int, threshold: float
    ) -> list[Divergence | None]:
        """Return for some of the ranks, in the steps that just these have, who leaves the running means of the others.

        Args:
            having: bool of shape (ranks,).
            rows: bool of shape (steps,).
            window: As of `diverged`.
            threshold: As of `diverged`.
        """
        losses, steps = self.losses[np.ix_(rows, having)], self.steps[rows]
        if losses.shape[1] < 2 or len(losses) < max(window, 2):
            return []
        sums = np.cumsum(np.concatenate([np.zeros((1, losses.shape[1])), losses]), axis=0)
        means = (sums[window:] - sums[:-window]) / window
        changes = np.diff(losses, axis=0)
        apart = np.abs(changes - np.median(changes))
        noise = max(_NORMAL * float(np.median(apart)) / math.sqrt(2), _rounding(apart))
        bound = threshold * noise * math.sqrt(2 / window)
        found: list[Divergence | None] = []
        for column, rank in enumerate(np.array(self.ranks)[having].tolist()):
            others = np.median(np.delete(means, column, axis=1), axis=1)
            middle = np.median(means, axis=1) if means.shape[1] > 2 else others  # of two others, one may be away
            away = np.flatnonzero(np.abs(means[:, column] - middle) > bound)
            if len(away):
                at = int(away[0])
                step = int(steps[at + window - 1])
                found.append(Divergence(rank, step, float(means[at, column]), float(others[at])))
        return found

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


def _rounding(apart: npt.NDArray[np.float64]) -> float:
    """Return the standard deviation of what rounding adds, if changes from the median are mostly 0 or a step of it."""
    steps = apart[apart > 0]
    return float(np.median(steps)) / math.sqrt(12) if len(steps) else 0.0


def read_losses(folder: str | os.PathLike[str]) -> Losses:
    """Read the losses that all ranks have written so far, and line them up.

    A line that a killed run has left unfinished is skipped, with a warning.

    Raises:
        DatasetNotFoundError: There are no such files.
    """
    matches = [(match, path) for path in Path(folder).glob("rank-*.jsonl") if (match := _FILE.fullmatch(path.name))]
    files = sorted((int(match[1]), path) for match, path in matches)
    if not files:
        raise DatasetNotFoundError(
            "there are no losses",
            place=str(folder),
            expected="files such as rank-00000.jsonl, as LossLog writes them",
            url=str(folder),
        )
    tables = [_read(path) for _, path in files]
    steps = np.array(sorted({step for table in tables for step in table}), np.int64)
    return Losses(tuple(rank for rank, _ in files), steps, *_lined_up(steps.tolist(), tables))


def _lined_up(
    steps: Sequence[int], tables: Sequence[dict[int, float]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    losses = np.array([[table.get(step, math.nan) for table in tables] for step in steps], np.float64)
    present = np.array([[step in table for table in tables] for step in steps], np.bool_)
    shape = len(steps), len(tables)
    return losses.reshape(shape), present.reshape(shape)


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
