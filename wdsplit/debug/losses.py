"""The losses of each rank: written as JSON lines, read together, and compared.

Each rank has a file `rank-00003.jsonl` with a line a step: `{"step": 12, "rank": 3, "loss": 2.31}`. JSON has no number
for NaN and infinity, so those are texts. Each line is flushed, so a killed run loses at most its last one.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsplit.errors import DatasetNotFoundError
from wdsplit.loading.world import detect_rank

__all__ = ["Divergence", "LossLog", "Losses", "read_losses"]

logger = logging.getLogger(__name__)

_WINDOW = 10  # steps
_THRESHOLD = 6.0  # standard deviations
ma: Any = np.ma  # numpy has no types for some of its functions


class LossLog(AbstractContextManager["LossLog"]):
    """Writes the losses of this rank. A resumed run appends to the file; the last line of a step counts.

    Args:
        folder: The folder of the files, the same for all ranks; it is created if it does not exist.
        rank: This rank; detected if None.

    Raises:
        TopologyError: The rank cannot be detected, because its sources contradict each other.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int | None = None) -> None:
        self.rank = detect_rank().rank if rank is None else operator.index(rank)
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
            values: Other numbers, such as a gradient norm; none may be called `rank`.

        Raises:
            TypeError, ValueError, RuntimeError: The step is not an integer, or a value is not a number.
        """
        numbers: dict[str, float | str] = {}
        for name, value in {"loss": loss, **values}.items():
            number = float(value.detach() if hasattr(value, "detach") else value)
            numbers[name] = number if math.isfinite(number) else str(number)
        self._file.write(json.dumps(dict(step=operator.index(step), rank=self.rank, **numbers)) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class Divergence(NamedTuple):
    """A rank whose loss diverges from the others'."""

    rank: int
    step: int  # where it was first seen
    loss: float  # its loss there
    others: float  # the median of all ranks there, or the other one's of two ranks; NaN if there is no other

    def __str__(self) -> str:
        return f"rank {self.rank} from step {self.step} on: {self.loss:.4g}, the others {self.others:.4g}"


@dataclass(frozen=True)
class Losses:
    """The losses of all ranks, side by side.

    Attributes:
        ranks: The ranks, ascending.
        steps: int64 of shape (steps,): the steps that any rank has, ascending.
        losses: float64 of shape (steps, ranks), masked where the rank does not have the step.
    """

    ranks: tuple[int, ...]
    steps: npt.NDArray[np.int64]
    losses: np.ma.MaskedArray[Any, np.dtype[np.float64]]

    def behind(self) -> dict[int, int]:
        """Return the ranks that end before the others do, and the last step of each; -1 for none at all."""
        is_present = ~ma.getmaskarray(self.losses).T
        last = {rank: int(max(self.steps[own], default=-1)) for rank, own in zip(self.ranks, is_present, strict=True)}
        return {rank: step for rank, step in last.items() if step < max(last.values())}

    def diverged(self) -> list[Divergence]:
        """Return the ranks that diverge from the others, each once, in the order of the steps.

        A rank diverges where its loss is not finite, or too far from the median of all ranks: by more than 6 standard
        deviations of the noise, averaged over 10 steps. The noise is estimated from the median change of a loss from
        one step to the next. If there are only two ranks, both are returned.
        """
        finite = ma.masked_invalid(self.losses)
        changes = np.abs(finite[1:] - finite[:-1]).compressed()
        changes = changes[changes > 0]  # rounded losses often do not change at all
        noise = float(np.median(changes)) if len(changes) else 0.0
        # The difference of two losses has twice the variance of one; a mean of _WINDOW such has 1 / _WINDOW of it.
        bound = _THRESHOLD * noise * math.sqrt(2 / _WINDOW)
        is_finite, counts = ~ma.getmaskarray(finite), finite.count(axis=1)[:, None]
        medians = ma.median(finite, axis=1)[:, None]
        others = ma.where(is_finite & (counts == 2), 2 * medians - finite, medians)  # it lies halfway between two
        others[is_finite & (counts == 1)] = ma.masked
        is_away = ~is_finite & ~ma.getmaskarray(self.losses)
        found = []
        for column, rank in enumerate(self.ranks):
            distances = finite[:, column] - others[:, column]
            rows = np.flatnonzero(~ma.getmaskarray(distances))
            if len(rows) >= _WINDOW:
                means = np.convolve(distances[rows].data, np.full(_WINDOW, 1 / _WINDOW), "valid")
                is_away[rows[_WINDOW - 1 :], column] |= np.abs(means) > bound
            for row in np.flatnonzero(is_away[:, column])[:1]:
                loss, other = self.losses[row, column], ma.filled(others, math.nan)[row, column]
                found.append(Divergence(rank, int(self.steps[row]), float(loss), float(other)))
        return sorted(found, key=lambda each: (each.step, each.rank))

    def __str__(self) -> str:
        if not len(self.steps):
            return "no steps"
        means = ma.filled(self.losses[-10:].mean(axis=0), math.nan)
        last = ", ".join(f"rank {rank} {mean:.4g}" for rank, mean in zip(self.ranks, means, strict=True))
        lines = [
            f"{len(self.ranks)} ranks, steps {self.steps[0]} to {self.steps[-1]}; mean loss of the last 10: {last}",
            *(f"ends early: rank {rank}, at step {step}" for rank, step in self.behind().items()),
            *(f"diverges: {each}" for each in self.diverged()),
        ]
        return "\n".join(lines)


def read_losses(folder: str | os.PathLike[str]) -> Losses:
    """Read the losses that all ranks have written so far.

    A line that a killed run has left unfinished is skipped, with a warning.

    Raises:
        DatasetNotFoundError: There are no such files.
    """
    tables: dict[int, dict[int, float]] = {}
    for path in Path(folder).glob("rank-*.jsonl"):
        if not path.stem[5:].isdigit():
            continue
        table = tables[int(path.stem[5:])] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                values = json.loads(line)
                table[int(values["step"])] = float(values["loss"])
            except (ValueError, KeyError, TypeError):
                logger.warning("%s, line %d: no step and loss in %r; it is skipped", path, number, line[:100])
    if not tables:
        raise DatasetNotFoundError(
            "no losses found",
            place=str(folder),
            expected="files such as rank-00000.jsonl, as LossLog writes them",
            url=str(folder),
        )
    ranks, steps = sorted(tables), sorted({step for table in tables.values() for step in table})
    losses = ma.masked_all((len(steps), len(ranks)), np.float64)
    for column, rank in enumerate(ranks):
        losses[np.searchsorted(steps, list(tables[rank])), column] = list(tables[rank].values())
    return Losses(tuple(ranks), np.array(steps, np.int64), losses)
