"""How many samples of each source a mixture takes: weights and repeats as whole numbers.

Pure (no I/O).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from numbers import Real
from typing import Any

from wdsplit.errors import InputError
from wdsplit.integers import whole

__all__ = ["MAX_MIXED_SAMPLES", "epoch_counts", "exact", "in_proportion", "refuse", "rounded"]

MAX_MIXED_SAMPLES = 2**50
"""Samples of a source, and of an epoch of a mixture: quotients of 64-bit floats are exact to within one up to here."""


def epoch_counts(
    sizes: Sequence[int],
    names: Sequence[str],
    weights: Sequence[Any] | None = None,
    repeats: Sequence[Any] | None = None,
    num_samples: int | None = None,
) -> list[int]:
    """Return how many samples of each source an epoch of the mixture has.

    With `weights`, the counts are in proportion to them, rounded to whole samples; the largest remainders are rounded
    up. Otherwise `repeats` give the count of each source. A float counts as the decimal number that it prints as: 0.1
    is one tenth.

    Args:
        sizes: Samples of each source.
        names: Names of the sources in messages.
        weights: A number of at least 0 for each source.
        repeats: For each source, how often an epoch has each of its samples (0.5: half of them, rounded to even); by
            default once.
        num_samples: Samples of an epoch; with weights only. By default as many as the sources have.

    Raises:
        InputError: The arguments are invalid, a source should give samples but has none, or a share rounds to 0.
    """
    sizes = [int(size) for size in sizes]
    problems = [
        f"{name}: expected {len(sizes)} values, one per source, found {len(values)}"
        for name, values in (("weights", weights), ("repeats", repeats))
        if values is not None and len(values) != len(sizes)
    ]
    if weights is not None and repeats is not None:
        problems.append("weights cannot be combined with repeats")
    if num_samples is not None and weights is None:
        problems.append("num_samples works only with weights")
    if num_samples is not None and (type(whole(num_samples)) is not int or num_samples < 1):
        problems.append(f"num_samples = {num_samples!r}: expected an integer of at least 1")
    refuse(problems)
    if weights is not None:
        shares = [exact(weight, f"{name}: weight", problems) for name, weight in zip(names, weights, strict=True)]
        exact_counts = in_proportion(shares, sum(sizes) if num_samples is None else whole(num_samples), problems)
    else:
        rows = zip(names, sizes, repeats or [1] * len(sizes), strict=True)
        exact_counts = [size * exact(repeat, f"{name}: repeat", problems) for name, size, repeat in rows]
    refuse(problems)
    counts = [round(count) for count in exact_counts] if weights is None else rounded(exact_counts)
    vanished = [
        f"{name}: its share, {float(share):.3g} of a sample in an epoch, rounds to 0"
        for name, size, share, count in zip(names, sizes, exact_counts, counts, strict=True)
        if size and share and not count
    ]
    refuse(vanished + _impossible(sizes, counts, names))
    return counts


def refuse(problems: list[str]) -> None:
    """Raise InputError if there are problems, with all of them."""
    if problems:
        raise InputError("invalid mixture", found="; ".join(problems))


def exact(value: Any, place: str, problems: list[str]) -> Fraction:
    """Return the exact value of a number's decimal text, or add a problem if it is invalid."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = Fraction(str(value))
        except ValueError:  # nan and the infinities
            number = Fraction(-1)
        if number >= 0:
            return number
    problems.append(f"{place} = {value!r}: expected a finite number of at least 0")
    return Fraction(0)


def in_proportion(shares: list[Fraction], num_samples: int, problems: list[str]) -> list[Fraction]:
    """Return numbers in proportion to the shares, with the given sum, or add a problem if all shares are 0."""
    total = sum(shares)
    if not total:
        problems.append("weights: expected at least one above 0")
        return shares
    return [num_samples * share / total for share in shares]


def rounded(numbers: list[Fraction]) -> list[int]:
    """Return whole numbers with the same sum: the largest remainders are rounded up, the first of equal ones."""
    counts = [floor(number) for number in numbers]
    by_remainder = sorted(range(len(numbers)), key=lambda source: counts[source] - numbers[source])
    for source in by_remainder[: int(sum(numbers)) - sum(counts)]:
        counts[source] += 1
    return counts


def _impossible(sizes: Sequence[int], counts: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return what is wrong with the counts of an epoch."""
    problems = [
        f"{name}: {count} samples an epoch, but the dataset has none"
        for name, size, count in zip(names, sizes, counts, strict=True)
        if count and not size
    ]
    if not sum(counts):
        problems.append("an epoch would have no samples")
    if max(sum(counts), *sizes, 0) > MAX_MIXED_SAMPLES:
        problems.append("expected at most 2**50 samples an epoch, and of each source")
    return problems
