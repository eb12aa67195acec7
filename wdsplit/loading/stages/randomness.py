"""Random numbers that do not depend on ranks and workers: each sample has its own generators.

A generator is seeded from the dataset's seed, the epoch and the sample's position, of a pack also its place in it. So a
function draws the same numbers on any number of ranks and workers, and after a resume.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from wdsplit.errors import InputError, PipelineError
from wdsplit.order.hashing import hash_stream
from wdsplit.order.units import PLACE

if TYPE_CHECKING:
    import torch

__all__ = ["IMAGES", "MAPS", "Drawing", "Draws", "GeneratorKind", "RandomMap", "Shift", "at_epoch"]

GeneratorKind = Literal["numpy", "torch", "python", "global"]
MAPS, IMAGES = 12, 15
"""Kinds of stages that draw: domains of the hash, beside those of `order`."""


@dataclass
class Shift:
    """Offset of positions before generators are seeded: a substitute draws the numbers of its own position."""

    by: int = 0


@dataclass(frozen=True)
class Draws:
    """The seed of a stage's generators, besides the position of each sample.

    Attributes:
        kind: The kind of the stage.
        seed: The dataset's seed.
        number: Which of a dataset's stages of this kind: each draws numbers of its own.
        epoch: The epoch.
        shift: Offset of positions.
    """

    kind: int
    seed: int
    number: int
    epoch: int = 0
    shift: Shift = dataclasses.field(default_factory=Shift)

    def seed_of(self, sample: Any, stage: str) -> int:
        """Return the seed of a sample that a stage draws random numbers for.

        Raises:
            PipelineError: An earlier stage has removed its position.
        """
        if not isinstance(sample, dict) or "__position__" not in sample:
            raise PipelineError(
                "a sample has no position to seed a generator from",
                expected="a dict with __position__",
                found=f"a {type(sample).__name__}",
                remedy=f"call {stage} before to_tuple, and keep __position__ in a map: return {{**sample, ...}}",
            )
        position, place = int(sample["__position__"]) + self.shift.by, sample.get(PLACE, 0)
        return hash_stream(self.seed, self.kind, self.number, self.epoch, position, *([place] if place else []))


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A stage that draws random numbers; none without a seed, as a decoder of a sample outside of a dataset."""

    draws: Draws | None = None


def at_epoch(stage: Any, epoch: int, shift: Shift | None = None) -> Any:
    """Return a stage for an epoch: another one if it draws random numbers."""
    if not isinstance(stage, Drawing) or stage.draws is None:
        return stage
    return replace(stage, draws=replace(stage.draws, epoch=epoch, shift=shift or Shift()))


@dataclass(frozen=True)
class RandomMap(Drawing):
    """A stage that maps each sample by a random function.

    Attributes:
        function: Called with the sample, or with the value of `field`, and a generator (unless it is `global`).
        field: The field that the result replaces; None for the whole sample.
        generator: The kind of generator.
    """

    function: Callable[..., Any]
    field: str | None
    generator: GeneratorKind
    draws: Draws = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        if self.generator not in get_args(GeneratorKind):
            raise InputError(
                "invalid generator", expected=", ".join(get_args(GeneratorKind)), found=repr(self.generator)
            )

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield the function's result for each sample."""
        if self.generator == "global" and threading.current_thread() is not threading.main_thread():
            raise PipelineError(
                "the global generators are shared by all threads",
                expected="generator='numpy', 'torch' or 'python', or workers that are processes",
                found="generator='global' in a thread",
                remedy="draw from the generator that the function receives, or use workers='process'",
            )
        return (self._mapped(sample) for sample in samples)

    def _mapped(self, sample: Any) -> Any:
        seed = self.draws.seed_of(sample, "map_random")
        if self.field is not None and self.field not in sample:
            raise PipelineError(
                "a sample lacks the field to map",
                place=f"sample {sample['__key__']!r} of {sample['__url__']}",
                expected=self.field,
                found=", ".join(sample),
                remedy="name a field that all samples have",
                key=sample["__key__"],
            )
        value = sample if self.field is None else sample[self.field]
        if self.generator == "global":
            with _seeded(seed):
                result = self.function(value)
        else:
            result = self.function(value, _GENERATORS[self.generator](seed))
        return result if self.field is None else {**sample, self.field: result}


def _torch_generator(seed: int) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(seed)


_GENERATORS: dict[str, Callable[[int], Any]] = {
    "numpy": lambda seed: np.random.Generator(np.random.Philox(key=seed)),
    "torch": _torch_generator,
    "python": random.Random,
}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of random, numpy and torch (of the CPU), and restore them afterwards."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), None if torch is None else torch.random.get_rng_state()
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.random.set_rng_state(states[2])
