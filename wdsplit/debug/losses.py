"""The losses of each rank: written as JSON lines, and read together.

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
from pathlib import Path
from statistics import fmean
from typing import Any

from wdsplit.errors import DatasetNotFoundError
from wdsplit.loading.world import detect_rank

__all__ = ["LossLog", "Losses", "read_losses"]

logger = logging.getLogger(__name__)


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

    def __exit__(self, *error: object) -> None:
        self._file.close()


class Losses(dict[int, dict[int, float]]):
    """The losses of all ranks: by rank, then by step, both ascending. `print` shows the ranks side by side."""

    def __str__(self) -> str:
        last = {rank: max(steps, default=-1) for rank, steps in self.items()}
        means = (f"rank {rank} {fmean(list(steps.values())[-10:] or [math.nan]):.4g}" for rank, steps in self.items())
        broken = (
            (rank, next((step for step, loss in steps.items() if not math.isfinite(loss)), None))
            for rank, steps in self.items()
        )
        lines = [
            f"losses of {len(self)} ranks up to step {max(last.values())}; mean of the last 10: {', '.join(means)}",
            *(f"ends early: rank {rank}, at step {step}" for rank, step in last.items() if step < max(last.values())),
            *(f"not finite: rank {rank}, from step {step} on" for rank, step in broken if step is not None),
        ]
        return "\n".join(lines)


def read_losses(folder: str | os.PathLike[str]) -> Losses:
    """Read the losses that all ranks have written so far.

    A line that a killed run has left unfinished is skipped, with a warning.

    Raises:
        DatasetNotFoundError: There are no such files.
    """
    losses = Losses()
    for path in sorted(Path(folder).glob("rank-*[0-9].jsonl"), key=lambda path: int(path.stem[5:])):
        own: dict[int, float] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                values = json.loads(line)
                own[int(values["step"])] = float(values["loss"])
            except (ValueError, KeyError, TypeError):
                logger.warning("%s, line %d: no step and loss in %r; it is skipped", path, number, line[:100])
        losses[int(path.stem[5:])] = dict(sorted(own.items()))
    if not losses:
        expected = "files such as rank-00000.jsonl, as LossLog writes them"
        raise DatasetNotFoundError("no losses found", place=str(folder), expected=expected, url=str(folder))
    return losses
